#!/usr/bin/env python3
"""compute-sanitizer over small cases of every GPU kernel but the instruments' own (roof, spin):

  bench/sanitize.py TOOL[,TOOL] PROGRAM OUTPUT.json [--implementation NAME[,NAME]] [--append]

TOOL is memcheck, racecheck or initcheck; PROGRAM is build/flashlab. Besides implementations NAME
may be weighted-sum, which `bench weighted-sum` runs, and merge, which no command runs: there the
tool watches the merges of cuda_inputs_test, looked for beside PROGRAM. Of cublas the kernels
between its products are meant; where cuBLASLt is not found it is left out, and the file says so.

memcheck's cases are the fewest of the conformance list that reach every kernel and every branch of
its Config (element types, alignments, masks, accumulation, split keys, both paths of fp32), found
by planning all of them. racecheck, which makes kernels a thousand times slower, gets small ones
with several tiles. initcheck gets one shape or two of each pass and type. A run without the tool
comes first: it fills the cache of kernels, so that the tool watches kernels and not the compiler.
OUTPUT.json gets what was run and what was found; --append keeps the runs that are in it. Exit code
1 when something was found or a run did not do what it should, 77 when compute-sanitizer is not
there or cannot run.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import os
import re
import shutil
import sys
import tempfile

import check
from processes import run, stop_with_this_script

REACH = ("fp32-bool-mask-form-0,bf16-064,fp16-head-dim-2,fp32-060,bf16-003,"
         "fp32-decode-bottom-right,fp16-044,bf16-080,fp32-055,bf16-095,fp32-115,fp16-020,"
         "bf16-padded-gqa-accumulate,bf16-082,fp32-fill-2,fp32-fill-4-causal,"
         "fp32-deterministic-uneven,bf16-additive-mask-own-type,bf16-softcap-mask,"
         "bf16-alibi-both-sides,bf16-group-of-8")
# Of cublas' kernels these reach the rest: masks of bf16, rows aligned to 8 bytes, empty rows.
REACH_CUBLAS = REACH + (",bf16-000,bf16-023,head-dim-4,all-rows-but-one-empty,fp16-038,bf16-010,"
                        "bf16-111")
# For racecheck: of production kernels every pipeline, of the ladder's one shape of several tiles,
# of cublas' every kind of mask. In sm80's 16-bit forward one lane gives a place back for its warp,
# behind a barrier of the warp: racecheck does not follow that, so the rings do not go round here.
SMALL = {"sm80": "bare-causal,bf16-padded-gqa-accumulate,fp32-decode-bottom-right,head-dim-192,"
                 "fp32-head-dim-7",
         "sm90": "bf16-bare-causal,bf16-head-dim-192,bf16-additive-mask-own-type,"
                 "bf16-softcap-mask,bf16-alibi-both-sides,bf16-group-of-8,"
                 "bf16-alibi-softcap-window-128",
         "cublas": "bare-causal,bool-mask-form-0,bf16-000,fp32-055"}
SMALL_LADDER = "bf16-bare-causal,fp16-head-dim-33"
# Those with a ring of tiles, several times around it, and the repair of a row.
HOPPER_LADDER = ("fa2-tma", "fa2-wgmma", "fa3", "fa3-turns", "fa3-frozen")
SMALL |= dict.fromkeys(HOPPER_LADDER, "bf16-growing-causal,fp16-bare-causal")
# `check` fills the workspace before a call, which would hide what was never written: initcheck
# watches `bench`.
SHAPE = "--heads 2 --kv-heads 1 --seqlen 200 --head-dim 40,64 --causal"
PROBLEMS = (
    ("sm80,naive,fa2,fa2-deterministic", f"{SHAPE} --dtype fp32,bf16 --pass both"),
    ("sm80", "--heads 2 --seqlen 3 --seqlen-k 1500 --causal=bottom-right --dtype fp32,bf16"),
    ("sm90", f"{SHAPE} --dtype bf16,fp16"),
    ("sm90", "--heads 2 --kv-heads 1 --seqlen 200 --head-dim 64,128 --causal --dtype bf16 "
             "--pass backward"),
    ("fa2-mma", f"{SHAPE} --dtype bf16 --pass both"),
    (",".join(HOPPER_LADDER), f"{SHAPE} --dtype bf16,fp16"),
    ("fa1,fa1-vector,fa1-shuffle,fa2-vector,fa2-shuffle", f"{SHAPE} --dtype fp32,bf16"),
    ("fa1-mma", f"{SHAPE} --dtype bf16"),
    # The first half of the rows sees no key: they are cleared by a kernel of their own.
    ("cublas", "--heads 2 --seqlen 200 --seqlen-k 100 --causal=bottom-right --dtype fp32,bf16 "
               "--pass both"),
)
# Hopper's backward: tiles of keys cut into parts, then a group's heads abreast, whose blocks claim
# the tiles of dQ that they clear. No case of `check` is large enough for these.
LARGE = (
    ("sm90", "--batch 1 --heads 1 --seqlen 512,1024 --head-dim 32,64,128 --causal --dtype bf16 "
             "--pass backward"),
    ("sm90", "--batch 8 --heads 16 --kv-heads 2 --seqlen 512 --head-dim 64,128 --causal "
             "--dtype bf16 --pass backward"),
    ("sm90", "--batch 4 --heads 32 --kv-heads 4 --seqlen 1024 --head-dim 128 --causal "
             "--dtype bf16 --pass backward"),
)
# Both forms, rows in one chunk and in many, columns that fit vectors and that do not.
WEIGHTED_SUM = "--rows 33,2000 --dim 7,100 --dtype fp32,fp16,bf16 --warmup 1 --repeats 1 --check"
# Two of the merges give no LSE, and their test copies that unwritten memory to the host all the
# same, which initcheck would report.
MERGES = {"initcheck": "Shapes/Merge.*-*/2:*/5"}
ALL_MERGES = "Shapes/Merge.*"
MERGE_TEST = "cuda_inputs_test"
# racecheck does not follow the barriers of NVIDIA's own products.
ONLY_OURS = {("racecheck", "cublas"): ["--kernel-regex", "kns=flash_"]}
# Nor one lane's arrival for its warp, by which Hopper's forward gives back a task: it runs before
# each backward, with more tasks a block than its ring has places. With every lane's arrival
# racecheck finds nothing there (H200, 2026-11-28).
ONLY_BACKWARD = ("--kernel-regex", "kns=flash_bwd")
BESIDES = ("cublas", "weighted-sum", "merge")  # what check.ours() does not name
TESTS_PASSED = re.compile(r"\[  PASSED  \] (\d+) test")
SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)")
SKIPPED = 77
JOBS = 3


def sanitizer():
    """The path of compute-sanitizer, or None."""
    return shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path="/usr/local/cuda/bin")


@dataclasses.dataclass
class Watched:
    """What a tool watches."""
    arguments: list  # program and flags
    results: str = ""  # the --json file that it leaves
    options: tuple = ()  # of the tool


def weighted_sum(program, path):
    return Watched([program, "bench", "weighted-sum", "--device", "cuda", *WEIGHTED_SUM.split(),
                    "--json", path], path)


def merge(tool, program):
    test = os.path.join(os.path.dirname(program), MERGE_TEST)
    return Watched([test, f"--gtest_filter={MERGES.get(tool, ALL_MERGES)}"])


def benched(tool, program, names, folder):
    problems = [(*each, ()) for each in PROBLEMS] if tool == "initcheck" else []
    problems += [(*each, ONLY_BACKWARD if tool == "racecheck" else ()) for each in LARGE]
    for number, (group, problem, options) in enumerate(problems):
        chosen = ",".join(name for name in group.split(",") if name in names)
        if chosen:
            batch = [] if "--batch" in problem else ["--batch", "1"]
            path = os.path.join(folder, f"{tool}-{chosen[:20]}-{number}.json")
            yield Watched([program, "bench", "--device", "cuda", *batch, "--warmup", "1",
                           "--repeats", "1", "--implementation", chosen, *problem.split(),
                           "--json", path], path, options)


def of_implementations(tool, program, names, folder):
    yield from benched(tool, program, names, folder)
    if tool == "initcheck":
        return
    apart = names if tool == "racecheck" else [name for name in names if name == "cublas"]
    together = [name for name in names if name not in apart]
    for group in [*apart, *([",".join(together)] if together else [])]:
        if tool == "racecheck":
            cases = SMALL.get(group, SMALL_LADDER)
        else:
            cases = REACH_CUBLAS if group == "cublas" else REACH
        path = os.path.join(folder, f"{tool}-{group[:20]}.json")
        yield Watched([program, "check", "--device", "cuda", "--case", cases, "--dtype",
                       "fp32,fp16,bf16", "--implementation", group, "--json", path], path,
                      tuple(ONLY_OURS.get((tool, group), ())))


def commands(tool, program, names, folder):
    """What a tool watches of these names."""
    yield from of_implementations(
        tool, program, [name for name in names if name not in ("weighted-sum", "merge")], folder)
    if "weighted-sum" in names:
        yield weighted_sum(program, os.path.join(folder, f"{tool}-weighted-sum.json"))
    if "merge" in names:
        yield merge(tool, program)


def counts(path, text):
    """{passed, failed, unsupported} of a run, from its results or a test program's text."""
    if path and os.path.exists(path):
        with open(path, encoding="utf-8") as stream:
            document = json.load(stream)
        if "results" not in document:
            return {key: document[key] for key in check.COUNTS}
        statuses = [row["status"] for row in document["results"]]
        return {"passed": statuses.count("ok"), "unsupported": statuses.count("unsupported"),
                "failed": sum(status not in ("ok", "unsupported") for status in statuses)}
    tests = TESTS_PASSED.search(text)
    return {"passed": int(tests[1])} if tests else {"passed": 0}


def watch(path, tool, watched, limit):
    """One run under the tool, as it goes into the file."""
    arguments = watched.arguments
    if watched.results and os.path.exists(watched.results):
        os.remove(watched.results)  # of the run without the tool
    code, text, seconds = run([path, "--tool", tool, "--error-exitcode", "9", "--print-limit", "5",
                               *watched.options, *arguments], limit)
    found = SUMMARY.findall(text)
    shown = [line for line in text.splitlines() if line.startswith("=========")]
    return {"tool": tool,
            "command": " ".join(arguments[:-2] if watched.results else arguments),
            "options": list(watched.options), "seconds": round(seconds, 1), "exit_code": code,
            "found": sum(int(a or b) for a, b in found) if found else None,
            "excerpt": [] if code == 0 else shown[:40] or text.splitlines()[-10:],
            **counts(watched.results, text)}


def both(path, tool, watched, limit):
    """A run without the tool, then one with it."""
    if not os.access(watched.arguments[0], os.X_OK):
        return {"tool": tool, "command": " ".join(watched.arguments), "seconds": 0.0,
                "exit_code": 127, "found": None, "passed": 0, "seconds_without": 0.0,
                "excerpt": [f"there is no program {watched.arguments[0]}; build it"]}
    code, text, seconds = run(watched.arguments, limit)
    if code != 0:
        print(f"without {tool}, exit code {code}: {' '.join(watched.arguments)}\n{text[-2000:]}")
    return watch(path, tool, watched, limit) | {"seconds_without": round(seconds, 1)}


def left_out(tool, name, reason):
    """What stands in the file for kernels that cannot run here."""
    print(f"{tool}: {name} is left out: {reason}", flush=True)
    return {"tool": tool, "implementation": name, "left_out": reason}


def clean(runs):
    """Nothing was found, and every run did something."""
    return all("left_out" in one or (fine(one) and one.get("passed", 1) > 0) for one in runs)


def fine(one):
    # What a peer computes is not the tool's matter: `check` says 4 where it differs from fp64.
    differs = " cublas" in one["command"] and one["exit_code"] == 4 and one["found"] == 0
    return one["exit_code"] == 0 or differs


def without_cublas(info):
    """Why cublas cannot run here, or an empty text."""
    missing = [name for name, there in info.get("libraries", {}).items()
               if "cublas" in name.lower() and not there]
    return f"{missing[0]} was not found" if missing else ""


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
    parser.add_argument("--implementation", default="", help="default: everything")
    parser.add_argument("--append", action="store_true")
    parser.add_argument("--limit", type=float, default=500, help="seconds of one run")
    asked = parser.parse_args()
    stop_with_this_script()
    path = sanitizer()
    os.environ["FLASHLAB_LINE_INFO"] = "1"  # findings then name source lines
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
    info = check.info(asked.program)
    environment = info["environment"] | {"command": " ".join(["bench/sanitize.py", *sys.argv[1:]])}
    names = (asked.implementation.split(",") if asked.implementation
             else [*check.ours(asked.program).split(","), *BESIDES])
    with tempfile.TemporaryDirectory() as folder:
        for tool in asked.tools.split(","):
            if "cublas" in names and without_cublas(info):
                runs.append(left_out(tool, "cublas", without_cublas(info)))
                write(asked.output, environment, runs)
            there = [name for name in names if name != "cublas" or not without_cublas(info)]
            todo = list(commands(tool, asked.program, there, folder))
            # Side by side: most of a run is the tool's own work on one thread of the host.
            with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
                running = [pool.submit(both, path, tool, each, asked.limit)
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
