#!/usr/bin/env python3
"""compute-sanitizer over small cases of every GPU kernel:

  bench/sanitize.py TOOL[,TOOL] PROGRAM OUTPUT.json [--implementation NAME[,NAME]] [--append]

TOOL is memcheck, racecheck or initcheck; PROGRAM is build/flashlab. memcheck's cases are the fewest
of the conformance list that reach every kernel and every branch of its Config (element types,
alignments, masks, accumulation, split keys, both paths of fp32), found by planning all of them.
racecheck, which makes kernels a thousand times slower, gets small ones with several tiles. A run
without the tool comes first: it fills the cache of kernels, so that the tool watches kernels and
not the compiler. OUTPUT.json gets what was run and what was found; --append keeps the runs that are
in it. Exit code 1 when something was found, 77 when compute-sanitizer is not there or cannot run.
"""

import argparse
import concurrent.futures
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import check

REACH = ("fp32-bool-mask-form-0,bf16-064,fp16-head-dim-2,fp32-060,bf16-003,"
         "fp32-decode-bottom-right,fp16-044,bf16-080,fp32-055,bf16-095,fp32-115,fp16-020,"
         "bf16-padded-gqa-accumulate,bf16-082,fp32-fill-2,fp32-fill-4-causal,"
         "fp32-deterministic-uneven")
# For racecheck: of production kernels every pipeline, of the ladder's one shape of several tiles.
SMALL = {"sm80": "bare-causal,bf16-padded-gqa-accumulate,bf16-decode-bottom-right,"
                 "fp32-decode-bottom-right,head-dim-192,fp32-head-dim-7"}
SMALL_LADDER = "bf16-bare-causal,fp16-head-dim-33"
# `check` fills the workspace before a call, which would hide what was never written: initcheck
# watches `bench`.
SHAPE = "--heads 2 --kv-heads 1 --seqlen 200 --head-dim 40,64 --causal"
PROBLEMS = (
    ("sm80,naive,fa2,fa2-deterministic", f"{SHAPE} --dtype fp32,bf16 --pass both"),
    ("sm80", "--heads 2 --seqlen 3 --seqlen-k 1500 --causal=bottom-right --dtype fp32,bf16"),
    ("fa2-mma", f"{SHAPE} --dtype bf16 --pass both"),
    ("fa1,fa1-vector,fa1-shuffle,fa2-vector,fa2-shuffle", f"{SHAPE} --dtype fp32,bf16"),
    ("fa1-mma", f"{SHAPE} --dtype bf16"),
)
SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)")
SKIPPED = 77
JOBS = 3


def sanitizer():
    """The path of compute-sanitizer, or None."""
    return shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path="/usr/local/cuda/bin")


def run(command, limit):
    """(exit code, output, seconds) of a command; 124 when it took too long."""
    start = time.monotonic()
    # A group of its own: the tool starts the program, and both must go.
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", start_new_session=True) as process:
        try:
            text, _ = process.communicate(timeout=limit)
            code = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            text, _ = process.communicate()
            code = 124
    return code, text, time.monotonic() - start


def commands(tool, program, names, folder):
    """What a tool watches: lists of arguments, and where each leaves its results, if anywhere."""
    if tool == "initcheck":
        for group, problem in PROBLEMS:
            chosen = ",".join(name for name in group.split(",") if name in names.split(","))
            if chosen:
                yield ([program, "bench", "--device", "cuda", "--batch", "1", "--warmup", "1",
                        "--repeats", "1", "--implementation", chosen, *problem.split()], None)
        return
    for group in names.split(",") if tool == "racecheck" else [names]:
        cases = SMALL.get(group, SMALL_LADDER) if tool == "racecheck" else REACH
        path = os.path.join(folder, f"{tool}-{group[:20]}.json")
        yield ([program, "check", "--device", "cuda", "--case", cases, "--dtype", "fp32,fp16,bf16",
                "--implementation", group, "--json", path], path)


def watch(path, tool, arguments, results, limit):
    """One run under the tool, as it goes into the file."""
    if results and os.path.exists(results):
        os.remove(results)  # of the run without the tool
    code, text, seconds = run([path, "--tool", tool, "--error-exitcode", "9", "--print-limit", "5",
                               *arguments], limit)
    found = SUMMARY.findall(text)
    shown = [line for line in text.splitlines() if line.startswith("=========")]
    out = {"tool": tool, "command": " ".join(arguments[:-2] if results else arguments),
           "seconds": round(seconds, 1), "exit_code": code,
           "found": sum(int(a or b) for a, b in found) if found else None,
           "excerpt": [] if code == 0 else shown[:40] or text.splitlines()[-10:]}
    if results and os.path.exists(results):
        with open(results, encoding="utf-8") as stream:
            document = json.load(stream)
        out |= {key: document[key] for key in ("passed", "failed", "unsupported")}
    return out


def both(path, tool, arguments, results, limit):
    """A run without the tool, then one with it."""
    code, text, seconds = run(arguments, limit)
    if code != 0:
        print(f"without {tool}, exit code {code}: {' '.join(arguments)}\n{text[-2000:]}")
    watched = watch(path, tool, arguments, results, limit)
    return watched | {"seconds_without": round(seconds, 1)}


def clean(runs):
    return all(one["exit_code"] == 0 for one in runs)


def write(path, environment, runs):
    with open(path, "w", encoding="utf-8") as stream:
        json.dump({"schema": "flashlab.sanitize/1", "environment": environment, "runs": runs,
                   "ok": clean(runs)}, stream, indent=1)
        stream.write("\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tools")
    parser.add_argument("program")
    parser.add_argument("output")
    parser.add_argument("--implementation", default="", help="default: all of this project")
    parser.add_argument("--append", action="store_true")
    parser.add_argument("--limit", type=float, default=500, help="seconds of one run")
    asked = parser.parse_args()
    path = sanitizer()
    if path is None:
        print("sanitize: skipped, there is no compute-sanitizer here")
        return SKIPPED
    # Containers often forbid what it needs (debugging the GPU): a small problem says so.
    code, text, _ = run([path, "--tool", "memcheck", asked.program, "bench", "--device", "cuda",
                         "--batch", "1", "--heads", "1", "--seqlen", "16", "--repeats", "1"],
                        asked.limit)
    if code != 0:
        print(f"sanitize: skipped, compute-sanitizer cannot run here:\n{text[-2000:]}")
        return SKIPPED
    runs = []
    if asked.append and os.path.exists(asked.output):
        with open(asked.output, encoding="utf-8") as stream:
            runs = json.load(stream)["runs"]
    environment = check.info(asked.program)["environment"]
    names = asked.implementation or check.ours(asked.program)
    with tempfile.TemporaryDirectory() as folder:
        for tool in asked.tools.split(","):
            todo = list(commands(tool, asked.program, names, folder))
            # Side by side: most of a run is the tool's own work on one thread of the host.
            with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
                running = [pool.submit(both, path, tool, *each, asked.limit)
                           for each in todo]
                for one in map(concurrent.futures.Future.result,
                               concurrent.futures.as_completed(running)):
                    runs.append(one)
                    write(asked.output, environment, runs)
                    print(f"{tool}: {one['found']} found, exit code {one['exit_code']}, "
                          f"{one['seconds']} s ({one['seconds_without']} s without): "
                          f"{one['command']}", flush=True)
                    for line in one["excerpt"]:
                        print(line, flush=True)
    return 0 if clean(runs) else 1


if __name__ == "__main__":
    sys.exit(main())
