#!/usr/bin/env python3
"""Every test on this machine, its GPU included, with counts:

  bench/suite.py BUILD_FOLDER OUTPUT.json [--python PROGRAM] [--memcheck SECONDS] [--jobs N]
                 [--only WORD[,WORD]] [--time-limit SECONDS] [--dry-run]

Runs the test programs of BUILD_FOLDER, `*_test`; with an interpreter that has PyTorch and flashlab
(BUILD_FOLDER/python counts), tests/python; and with --memcheck, bench/sanitize.py's memcheck cases
for at most that long. It needs neither ctest nor a compiler: a build can be carried to a machine
with a GPU, to a folder of the same path, which some tests know. OUTPUT.json gets the environment,
of each program, or of each part of a long one, its counts, failures and reasons of skips, and the
sums of groups: GPU tests, mutations, primitives, two GPUs, PyTorch, all else. It is written anew
after each, so that nothing is lost when time runs out: what did not start is listed as such.
--dry-run lists what would run.
Exit code 1 when a test failed, a program ended badly, the sanitizer found something, not every
program ran, or tests that this machine could run skipped themselves.
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

import sanitize
from processes import TOO_LONG, run, stop_with_this_script

HERE = os.path.dirname(os.path.abspath(__file__))
PYTHON_TESTS = os.path.join(HERE, "..", "tests", "python")
PROGRAM_LIMIT_S = 590
COUNTS = ("passed", "failed", "skipped")
# Groups of programs by name, the first that fits, and how many GPUs one needs to run at all.
# Programs that take longest, as H200 records have them, the longest first: none of them may be the
# last to start.
LONGEST = ("cuda_mutation", "conformance", "test_torch_operator", "test_flash_attention_rule",
           "test_peers", "test_examples", "test_torch_dropins", "test_torch_autograd",
           "attention_emulated", "test_core_frameworks", "test_torch_cuda",
           "train_.*_test", "test_torch", "cuda_kernels", "cuda_calls")
# Programs of one thread for minutes, and into how many parts GoogleTest cuts them: cuda_mutation
# took over 220 s beside eleven others on an H200 (2026-11-24).
PARTS = {"cuda_mutation_test": 6, "attention_emulated_test": 2}
GROUPS = (("two GPUs", "two_gpus", 2), ("mutations", "cuda_mutation", 1),
          ("primitives", "cuda_(ptx|mma|tile)", 1), ("PyTorch", "test_torch", 0),
          ("GPU", "^cuda_|^peers_|test_core_frameworks", 1), ("all else", "", 0))


def reasons_of(text):
    """Why tests skipped themselves: what GoogleTest prints after "Skipped"; its report has none."""
    said = re.findall(r": Skipped\n(.+)\n", text)
    return collections.Counter(reason.strip().removeprefix("skipped: ") for reason in said)


def parts_of(program):
    """The names under which a GoogleTest program runs, and the environment of each."""
    name = os.path.basename(program)
    count = PARTS.get(name, 1)
    if count == 1:
        return [(name, [])]
    return [(f"{name} {part + 1}/{count}",
             [f"GTEST_TOTAL_SHARDS={count}", f"GTEST_SHARD_INDEX={part}"])
            for part in range(count)]


def gtest_record(program, name, variables, limit):
    """Counts of one GoogleTest program, or of a part of it, from its own report."""
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.json")
        code, text, seconds = run(["env", *variables, program, f"--gtest_output=json:{report}"],
                                  limit)
        out = {"program": name, "seconds": round(seconds, 1),
               "exit_code": code, **dict.fromkeys(COUNTS, 0), "skip_reasons": {}}
        if not os.path.exists(report):
            why = f"stopped after {limit:.0f} s" if code == TOO_LONG else "it wrote no report"
            return out | {"failed": 1, "failures": [f"{why}: {text[-2000:]}"]}
        with open(report, encoding="utf-8") as stream:
            suites = json.load(stream)["testsuites"]
    failures = []
    for suite in suites:
        for test in suite["testsuite"]:
            name = f'{suite["name"]}.{test["name"]}'
            if test.get("failures"):
                out["failed"] += 1
                failures.append(f'{name}: {test["failures"][0]["failure"][:2000]}')
            elif test["result"] == "SKIPPED":
                out["skipped"] += 1
            elif test["result"] == "COMPLETED":
                out["passed"] += 1
    return out | {"failures": failures, "skip_reasons": dict(reasons_of(text))}


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
    """[(name, function of a time limit)], the longest first."""
    found = [path for path in sorted(glob.glob(os.path.join(folder, "*_test")))
             if os.path.isfile(path) and os.access(path, os.X_OK)]
    out = [(name, lambda limit, one=(path, name, variables): gtest_record(*one, limit))
           for path in found for name, variables in parts_of(path)]
    if python and has_package(python):
        for file in sorted(glob.glob(os.path.join(PYTHON_TESTS, "test_*.py"))):
            out.append((f"python {os.path.basename(file)}",
                        lambda limit, file=file: python_record(python, file, limit)))
    elif python:
        print(f"python tests: skipped, {python} has no flashlab or no PyTorch")

    def place(one):
        return next((i for i, name in enumerate(LONGEST) if re.search(name, one[0])), len(LONGEST))
    return sorted(out, key=place)


def group_of(program):
    return next(name for name, pattern, _ in GROUPS if re.search(pattern, program))


def group_sums(records):
    sums = {name: dict.fromkeys(COUNTS, 0) for name, _, _ in GROUPS}
    for record in records:
        for key in COUNTS:
            sums[group_of(record["program"])][key] += record[key]
    return sums


def idle(document):
    """What this machine has the GPUs for, and did not run: groups without a passed test, programs
    that skipped tests for want of a GPU."""
    programs_of = collections.Counter(group_of(one["program"]) for one in document["programs"])
    groups = [name for name, _, gpus in GROUPS
              if programs_of[name] and gpus <= document["gpus"]
              and document["groups"][name]["passed"] == 0]
    wants = [text for text, gpus in (("no GPU", 1), ("no second GPU", 2))
             if gpus <= document["gpus"]]
    return groups + [one["program"] for one in document["programs"]
                     if any(reason.startswith(text) for reason in one["skip_reasons"]
                            for text in wants)]


def gpus():
    """How many there are, asked of the driver's own program."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.PIPE, check=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return 0
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())


def memcheck_record(folder, limit):
    """What memcheck found in bench/sanitize.py's cases; that script's own document."""
    with tempfile.TemporaryDirectory() as scratch:
        path = os.path.join(scratch, "memcheck.json")
        code, text, seconds = run([sys.executable, os.path.join(HERE, "sanitize.py"), "memcheck",
                                   os.path.join(folder, "flashlab"), path], limit)
        runs = []
        if os.path.exists(path):
            with open(path, encoding="utf-8") as stream:
                runs = json.load(stream)["runs"]
    why = {TOO_LONG: f"stopped after {limit:.0f} s", sanitize.SKIPPED: "skipped"}.get(code, "")
    return {"exit_code": code, "seconds": round(seconds, 1), "ok": code in (0, sanitize.SKIPPED),
            "why": why, "found": sum(one.get("found") or 0 for one in runs), "runs": runs,
            "output": [] if code == 0 else text.splitlines()[-20:]}


def environment(folder):
    command = [os.path.join(folder, "flashlab"), "info", "--json", "-"]
    try:
        return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        return {"error": str(error)}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("build_folder")
    parser.add_argument("output")
    parser.add_argument("--only", help="programs whose name holds one of these words")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--jobs", type=int, default=max(1, cores // 3))
    parser.add_argument("--time-limit", type=float, default=float("inf"))
    parser.add_argument("--python", help="an interpreter with PyTorch and flashlab")
    parser.add_argument("--memcheck", type=float, default=0, metavar="SECONDS",
                        help="compute-sanitizer over small cases of every kernel, at most so long")
    parser.add_argument("--dry-run", action="store_true", help="list what would run")
    return parser.parse_args()


def dry_run(flags, todo):
    for name, _ in todo:
        print(f"{group_of(name):12}{name}")
    if flags.memcheck:
        where = sanitize.sanitizer() or "skipped: there is no compute-sanitizer here"
        print(f"{'memcheck':12}at most {flags.memcheck:.0f} s: {where}")
    print(f"{len(todo)} programs, {flags.jobs} at a time, {gpus()} GPUs")
    return 0


class Document:
    """What is written: all that ran so far."""

    def __init__(self, flags, todo):
        self.path = flags.output
        self.content = {
            "schema": "flashlab.suite/1",
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "command": " ".join(["bench/suite.py", *sys.argv[1:]]),
            "environment": environment(flags.build_folder), "gpus": gpus(), "ok": False,
            "not_run": [name for name, _ in todo], "programs": []}

    def save(self):
        content = self.content
        content["groups"] = group_sums(content["programs"])
        for key in COUNTS:
            content[key] = sum(group[key] for group in content["groups"].values())
        content["idle"] = idle(content)
        content["ok"] = (content["failed"] == 0 and not content["not_run"]
                         and not content["idle"]
                         and content.get("memcheck", {"ok": True})["ok"])
        with open(self.path, "w", encoding="utf-8") as stream:
            json.dump(content, stream, indent=1)
            stream.write("\n")

    def add(self, name, record):
        self.content["not_run"].remove(name)
        self.content["programs"].append(record)
        print("{passed:5} passed {failed:4} failed {skipped:5} skipped {seconds:7.1f} s  "
              "{program}".format(**record), flush=True)
        self.save()

    def add_memcheck(self, record):
        self.content["memcheck"] = record
        print(f"memcheck: {record['found']} found in {len(record['runs'])} runs, "
              f"{record['seconds']} s {record['why']}", flush=True)
        for line in record["output"]:
            print(f"  {line}")
        self.save()

    def summary(self):
        for name, sums in self.content["groups"].items():
            print("{:12}{passed:6} passed {failed:4} failed {skipped:5} skipped".format(name,
                                                                                       **sums))
        print("{passed} passed, {failed} failed, {skipped} skipped".format(**self.content))
        for name in self.content["not_run"]:
            print(f"not run: {name}")
        for name in self.content["idle"]:
            print(f"skipped what this machine can run: {name}")


def main():
    flags = arguments()
    stop_with_this_script()
    package = os.path.abspath(os.path.join(flags.build_folder, "python"))
    if os.path.isdir(os.path.join(package, "flashlab")):
        paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    words = flags.only.split(",") if flags.only else [""]
    todo = [one for one in programs(flags.build_folder, flags.python)
            if any(word in one[0] for word in words)]
    if flags.dry_run:
        return dry_run(flags, todo)
    document = Document(flags, todo)
    start = time.monotonic()
    document.save()

    def left():
        return flags.time_limit - flags.memcheck - (time.monotonic() - start)

    def work(function):
        return function(min(left(), PROGRAM_LIMIT_S)) if left() > 5 else None

    with concurrent.futures.ThreadPoolExecutor(flags.jobs) as pool:
        jobs = {pool.submit(work, function): name for name, function in todo}
        for job in concurrent.futures.as_completed(jobs):
            if job.result() is not None:
                document.add(jobs[job], job.result())
    if flags.memcheck:
        document.add_memcheck(memcheck_record(flags.build_folder, flags.memcheck))
    document.summary()
    return 0 if document.content["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
