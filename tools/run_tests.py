#!/usr/bin/env python3
"""Runs ctest quietly:  tools/run_tests.py LABEL [CTEST-ARGUMENT...]

Shows a bar and then what failed; keeps the full output in build/test.log and the results in
build/test-results.xml (JUnit). Exit code 0 when nothing failed.
"""

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import console
import nvrtc

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CTEST_LINE = re.compile(r"^ *(\d+)/(\d+) Test +#\d+: (\S+)")
FAILURES_SHOWN = 10
LINES_SHOWN = 40


def cases_of(results_xml):
    return ElementTree.parse(results_xml).getroot().iter("testcase")


def outcome(case):
    """'passed', 'skipped', or 'failed': what ctest could not run has failed, whatever it says."""
    skipped = case.find("skipped")
    if skipped is not None:
        # SKIP_REGULAR_EXPRESSION_MATCHED, SKIP_RETURN_CODE=77; else: no executable, no folder, …
        return "skipped" if "SKIP_" in (skipped.get("message") or "") else "failed"
    if case.get("status") == "disabled":
        return "skipped"
    return "passed" if case.get("status") == "run" else "failed"


def totals(results_xml):
    """(passed, failed, skipped) of a JUnit file that ctest wrote."""
    outcomes = [outcome(case) for case in cases_of(results_xml)]
    return tuple(outcomes.count(kind) for kind in ("passed", "failed", "skipped"))


def reasons_of_skips(results_xml):
    """{reason: count}: the last line that a skipped test printed before gtest's own lines."""
    reasons = {}
    for case in cases_of(results_xml):
        if outcome(case) != "skipped":
            continue
        output = case.findtext("system-out") or ""
        said = [line.strip() for line in output.splitlines()
                if line.strip() and not re.match(r"^(\[|Note:|Running main|.*: Skipped$)", line)]
        reason = said[-1] if said else "no reason given"
        reason = reason.removeprefix("skipped: ")
        reasons[reason] = reasons.get(reason, 0) + 1
    return reasons


def show_failures(results_xml):
    failures = [case for case in cases_of(results_xml) if outcome(case) == "failed"]
    for case in failures[:FAILURES_SHOWN]:
        print(f"\nfailed: {case.get('name')}")
        for line in (case.findtext("system-out") or "").splitlines()[-LINES_SHOWN:]:
            print(f"  {line}")
    if len(failures) > FAILURES_SHOWN:
        print(f"\n… and {len(failures) - FAILURES_SHOWN} more, see build/test.log")


def run_ctest(step, binary_dir, log_path, results_xml, arguments):
    """Runs ctest under a bar; returns its exit code."""
    if os.path.exists(results_xml):
        os.remove(results_xml)
    # Some tests wait rather than work: one more at a time than there are cores. Only a hang reaches
    # the time limit: beside twenty other programs the longest test takes ten minutes.
    jobs = len(os.sched_getaffinity(0)) + 1
    command = ["ctest", "--test-dir", binary_dir, "--output-on-failure", "--no-tests=error",
               "--timeout", "1800", "-j", str(jobs), "--output-junit",
               os.path.abspath(results_xml), *arguments]
    with open(log_path, "w", errors="replace") as log:
        log.write("$ " + " ".join(command) + "\n")
        ctest = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                 stdin=subprocess.DEVNULL, text=True, errors="replace",
                                 env={**os.environ, **nvrtc.environment()})
        done = 0
        for line in ctest.stdout:
            log.write(line)
            match = CTEST_LINE.match(line)
            if match:
                done += 1
                step.progress(done, int(match.group(2)), match.group(3))
        return ctest.wait()


def main():
    label, arguments = sys.argv[1], sys.argv[2:]
    os.chdir(SOURCE)
    step = console.Step(label, "test")
    results = "build/test-results.xml"
    try:
        code = run_ctest(step, "build", "build/test.log", results, arguments)
    except KeyboardInterrupt:
        step.finish("stopped")
        return 130
    if not os.path.exists(results):
        step.finish("failed")
        print("flashlab: ctest did not run; the end of build/test.log:\n"
              + console.tail_of("build/test.log", 25), file=sys.stderr)
        return 1
    passed, failed, skipped = totals(results)
    step.finish(f"{passed} passed, {failed} failed, {skipped} skipped")
    for reason, count in sorted(reasons_of_skips(results).items()):
        print(f"{'':16} {count} skipped: {reason}")
    if failed:
        show_failures(results)
    return 1 if failed or code != 0 else 0


if __name__ == "__main__":
    sys.exit(main())
