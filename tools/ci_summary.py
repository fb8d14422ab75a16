#!/usr/bin/env python3
"""The last line of .ci/run:  tools/ci_summary.py TEST-EXIT-CODE VERIFY-EXIT-CODE

Adds up build/test-results.xml and build/verify-results.json. A stage that failed without saying
where (no packages, no build, no results) counts as one failure. Exit code 0 when nothing failed.
"""

import json
import os
import sys
import xml.etree.ElementTree as ElementTree

import run_tests
import source


def counts_of_tests(path="build/test-results.xml"):
    try:
        return run_tests.totals(path)
    except (OSError, ElementTree.ParseError):
        return None


def counts_of_verify(path="build/verify-results.json"):
    try:
        with open(path, encoding="utf-8") as stream:
            counts = json.load(stream)
        return counts["passed"], counts["failed"], counts["skipped"]
    except (OSError, ValueError, KeyError):
        return None


def add_stage(total, counts, exit_code):
    """Totals after one stage; a stage without results, or with a failure of its own, failed."""
    passed, failed, skipped = counts or (0, 0, 0)
    if counts is None or passed == 0 or (exit_code != 0 and failed == 0):
        failed += 1
    return total[0] + passed, total[1] + failed, total[2] + skipped


def main():
    os.chdir(source.ROOT)
    total = add_stage((0, 0, 0), counts_of_tests(), int(sys.argv[1]))
    total = add_stage(total, counts_of_verify(), int(sys.argv[2]))
    sys.stdout.write(f"{total[0]} passed, {total[1]} failed, {total[2]} skipped\n")
    return 1 if total[1] else 0


if __name__ == "__main__":
    sys.exit(main())
