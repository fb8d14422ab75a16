#!/usr/bin/env python3
"""flashlab check of every GPU kernel, side by side: one process per implementation and type.

  bench/check.py PROGRAM OUTPUT.json [--implementation NAME[,NAME]] [--dtype TYPE[,TYPE]] [--jobs N]
                 [--pairs]

Most of a check is the fp64 oracle on the host, so one process after the other would take longer
than ten minutes. --pairs checks the list of pairs of features instead. OUTPUT.json gets each
command, its counts, and the failures whole; it is written anew after each, so that nothing is lost
when time runs out. Exit code 1 when a case failed or a process ended badly.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile

from processes import run, stop_with_this_script

OTHERS = ("cublas", "cudnn")  # other people's: checked where they are named
# Types a kernel does not know are refused, which the counts say.
DTYPES = "fp32,tf32,bf16,fp16"
COUNTS = ("passed", "failed", "unsupported")


def info(program):
    """What the program says of itself and this machine."""
    return json.loads(subprocess.run([program, "info", "--json", "-"], check=True,
                                     stdout=subprocess.PIPE).stdout)


def ours(program):
    """The GPU implementations of this project, as --implementation takes them."""
    return ",".join(name for name in info(program)["cuda_implementations"] if name not in OTHERS)


def check(program, implementation, dtype, threads, pairs=False):
    """(environment, record) of one process."""
    # Every case's name has a dash; naming cases leaves out the ruler, which wants a quiet machine.
    command = [program, "check", "--device", "cuda", "--implementation", implementation,
               "--dtype", dtype, "--case=-", "--threads", str(threads),
               *(["--pairs"] if pairs else [])]
    with tempfile.TemporaryDirectory() as folder:
        results = os.path.join(folder, "check.json")
        code, text, seconds = run([*command, "--json", results])
        document = None
        if os.path.exists(results):
            with open(results, encoding="utf-8") as stream:
                document = json.load(stream)
    out = {"implementation": implementation, "dtype": dtype, "command": " ".join(command),
           "seconds": round(seconds, 1), "exit_code": code}
    if document is None:
        return None, out | {"ok": False, "output": text.splitlines()[-10:]}
    counts = {key: document[key] for key in COUNTS}
    # A type that a kernel does not know is refused case by case: check then ends with 1.
    refused = document["ok"] and document["passed"] == 0 and document["unsupported"] > 0
    failures = [one for one in document["reports"]
                if one["status"] != "unsupported" and not one["passed"]]
    return document["environment"], out | {"ok": code == 0 or refused} | counts | {
        "failures": failures}


def all_ok(runs):
    """Every process ended well, and every implementation passed something."""
    passed = collections.Counter()
    for one in runs:
        passed[one["implementation"]] += one.get("passed", 0)
    return all(one["ok"] for one in runs) and all(passed.values())


def write(path, environment, runs):
    totals = {key: sum(one.get(key, 0) for one in runs) for key in COUNTS}
    with open(path, "w", encoding="utf-8") as stream:
        json.dump({"schema": "flashlab.check_record/1", "environment": environment, **totals,
                   "ok": all_ok(runs), "runs": runs}, stream, indent=1)
        stream.write("\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("output")
    parser.add_argument("--implementation", default="", help="default: all of this project")
    parser.add_argument("--dtype", default=DTYPES)
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--pairs", action="store_true", help="the list of pairs of features")
    parser.add_argument("--jobs", type=int, default=max(1, cores // 3))
    asked = parser.parse_args()
    stop_with_this_script()
    environment, runs = None, []
    # Idle processors of one check help another: most of its cases are small.
    threads = max(1, 2 * cores // asked.jobs)
    with concurrent.futures.ThreadPoolExecutor(asked.jobs) as pool:
        running = [pool.submit(check, asked.program, implementation, dtype, threads,
                               asked.pairs)
                   for implementation in (asked.implementation or ours(asked.program)).split(",")
                   for dtype in asked.dtype.split(",")]
        for done in concurrent.futures.as_completed(running):
            described, one = done.result()
            # Of the first to end: the others' differ in the command and in what moves (clocks).
            if environment is None and described is not None:
                environment = described | {
                    "command": " ".join(["bench/check.py", *sys.argv[1:]])}
            runs.append(one)
            write(asked.output, environment, runs)
            print(f"{one.get('passed', 0)} passed, {one.get('failed', 0)} failed, "
                  f"{one.get('unsupported', 0)} refused, exit code {one['exit_code']}, "
                  f"{one['seconds']} s: {one['command']}", flush=True)
            for line in one.get("output", []) + [str(case) for case in one.get("failures", [])]:
                print("  " + line[:400], flush=True)
    return 0 if all_ok(runs) else 1


if __name__ == "__main__":
    sys.exit(main())
