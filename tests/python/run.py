#!/usr/bin/env python3
"""Runs one file of tests for ctest:  tests/python/run.py FILE [TEST...]

Shows each reason for a skip with its count. Exit code 1 when something failed, 77 when everything
was skipped.
"""

import collections
import os
import sys
import unittest


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, here)
    name, tests = os.path.splitext(os.path.basename(sys.argv[1]))[0], sys.argv[2:]
    loader = unittest.defaultTestLoader
    names = [f"{name}.{test}" for test in tests] or [name]
    try:
        suite = loader.loadTestsFromNames(names)
    except unittest.SkipTest as reason:
        print(reason)
        return 77
    result = unittest.TextTestRunner(verbosity=1, stream=sys.stdout).run(suite)
    reasons = collections.Counter(reason for _, reason in result.skipped)
    for reason, count in sorted(reasons.items()):
        print(f"{count} skipped: {reason.removeprefix('skipped: ')}")
    if not result.wasSuccessful():
        return 1
    if result.testsRun == len(result.skipped):
        print("; ".join(sorted(reasons)) or "skipped: no test here")
        return 77
    return 0


if __name__ == "__main__":
    sys.exit(main())
