#!/usr/bin/env python3
"""Every test on this machine, its GPU included, with counts:

  bench/suite.py BUILD_FOLDER OUTPUT.json [--only WORD[,WORD]] [--jobs N] [--time-limit SECONDS]
                 [--python PROGRAM]

Runs the test programs of BUILD_FOLDER (`*_test`: unit, conformance, mutation, GPU kernels) and,
with an interpreter that has PyTorch and flashlab, tests/python. It needs neither ctest nor a
compiler, so that a build can be carried to a machine with a GPU. OUTPUT.json gets the environment,
and of each program its counts, its failures and the reasons of its skips; it is written anew after
each, so that nothing is lost when time runs out: what did not start is listed as such. Exit code 1
when a test failed, a program ended badly, or not every program ran.
"""

import argparse
import collections
import concurrent.futures
import glob
import json
import os
import re
import subprocess
import sys
import tempfile
import time

from processes import TOO_LONG, run, stop_with_this_script

HERE = os.path.dirname(os.path.abspath(__file__))
PYTHON_TESTS = os.path.join(HERE, "..", "tests", "python")
PROGRAM_LIMIT_S = 590
COUNTS = ("passed", "failed", "skipped")


def reason_of(messages):
    """Why a test skipped itself: the last line of what it said."""
    lines = [line.strip() for text in messages for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("skipped: ") if lines else "no reason given"


def gtest_record(program, limit):
    """Counts of one GoogleTest program, from its own report."""
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.json")
        code, text, seconds = run([program, f"--gtest_output=json:{report}"], limit)
        out = {"program": os.path.basename(program), "seconds": round(seconds, 1),
               "exit_code": code, **dict.fromkeys(COUNTS, 0)}
        if not os.path.exists(report):
            why = f"stopped after {limit:.0f} s" if code == TOO_LONG else "it wrote no report"
            return out | {"failed": 1, "failures": [f"{why}: {text[-2000:]}"]}
        with open(report, encoding="utf-8") as stream:
            suites = json.load(stream)["testsuites"]
    failures, reasons = [], collections.Counter()
    for suite in suites:
        for test in suite["testsuite"]:
            name = f'{suite["name"]}.{test["name"]}'
            if test.get("failures"):
                out["failed"] += 1
                failures.append(f'{name}: {test["failures"][0]["failure"][:2000]}')
            elif test["result"] == "SKIPPED":
                out["skipped"] += 1
                said = [one.get("message", "") for one in test.get("skipped", [])]
                reasons[reason_of(said)] += 1
            elif test["result"] == "COMPLETED":
                out["passed"] += 1
    return out | {"failures": failures, "skip_reasons": dict(reasons)}


def python_record(python, file, limit):
    """Counts of one file of tests/python, from what run.py prints."""
    code, text, seconds = run([python, os.path.join(PYTHON_TESTS, "run.py"), file], limit)
    ran = int((re.findall(r"^Ran (\d+) test", text, re.M) or ["0"])[-1])
    told = {kind: int(count)
            for kind, count in re.findall(r"(failures|errors|skipped)=(\d+)", text)}
    failed = told.get("failures", 0) + told.get("errors", 0)
    if code not in (0, 77) and failed == 0:
        failed = 1
    skipped = told.get("skipped", 0)
    reasons = {reason: int(count)
               for count, reason in re.findall(r"^(\d+) skipped: (.+)$", text, re.M)}
    out = {"program": f"python {os.path.basename(file)}", "seconds": round(seconds, 1),
           "exit_code": code, "passed": max(0, ran - failed - skipped), "failed": failed,
           "skipped": skipped, "skip_reasons": reasons}
    return out | ({"failures": [text[-4000:]]} if failed else {"failures": []})


def has_package(python):
    return subprocess.run([python, "-c", "import flashlab.torch"], stderr=subprocess.DEVNULL,
                          check=False).returncode == 0


def programs(folder, python):
    """[(name, function of a time limit)], the longest kinds first."""
    found = [path for path in glob.glob(os.path.join(folder, "*_test"))
             if os.path.isfile(path) and os.access(path, os.X_OK)]
    def order(path):
        return not re.search("mutation|conformance|kernels", path), path
    long_first = sorted(found, key=order)
    out = [(os.path.basename(path), lambda limit, path=path: gtest_record(path, limit))
           for path in long_first]
    if python and has_package(python):
        for file in sorted(glob.glob(os.path.join(PYTHON_TESTS, "test_*.py"))):
            out.append((os.path.basename(file),
                        lambda limit, file=file: python_record(python, file, limit)))
    elif python:
        print(f"python tests: skipped, {python} has no flashlab or no PyTorch")
    return out


def environment(folder):
    command = [os.path.join(folder, "flashlab"), "info", "--json", "-"]
    try:
        return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        return {"error": str(error)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("build_folder")
    parser.add_argument("output")
    parser.add_argument("--only", help="programs whose name holds one of these words")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--time-limit", type=float, default=float("inf"))
    parser.add_argument("--python", help="an interpreter with PyTorch and flashlab")
    flags = parser.parse_args()
    stop_with_this_script()
    words = flags.only.split(",") if flags.only else [""]
    todo = [one for one in programs(flags.build_folder, flags.python)
            if any(word in one[0] for word in words)]
    document = {"schema": "flashlab.suite/1", "date": time.strftime("%Y-%m-%dT%H:%M:%SZ",
                                                                   time.gmtime()),
                "environment": environment(flags.build_folder), "ok": False,
                "not_run": [name for name, _ in todo], "programs": []}
    start = time.monotonic()

    def save():
        totals = {key: sum(one[key] for one in document["programs"]) for key in COUNTS}
        document.update(totals)
        document["ok"] = totals["failed"] == 0 and not document["not_run"]
        with open(flags.output, "w", encoding="utf-8") as stream:
            json.dump(document, stream, indent=1)
            stream.write("\n")
        return totals

    def work(function):
        left = flags.time_limit - (time.monotonic() - start)
        return function(min(left, PROGRAM_LIMIT_S)) if left > 5 else None

    save()
    with concurrent.futures.ThreadPoolExecutor(flags.jobs) as pool:
        jobs = {pool.submit(work, function): name for name, function in todo}
        for job in concurrent.futures.as_completed(jobs):
            record = job.result()
            if record is None:
                continue
            document["not_run"].remove(jobs[job])
            document["programs"].append(record)
            print("{passed:5} passed {failed:4} failed {skipped:5} skipped {seconds:7.1f} s  "
                  "{program}".format(**record), flush=True)
            save()
    totals = save()
    print("{passed} passed, {failed} failed, {skipped} skipped".format(**totals))
    for name in document["not_run"]:
        print(f"not run: {name}")
    return 0 if document["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
