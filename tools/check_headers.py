#!/usr/bin/env python3
"""Compiles every header alone, twice in one file:  tools/check_headers.py [--compiler g++]

A header that needs another one first, or that cannot be included twice, fails here. Public headers
are also compiled pedantically and as C++23, because they are compiled by other people's builds.
Highway's per-target files (*-inl.h) are parts of one source file and are left out.
"""

import argparse
import concurrent.futures
import os
import subprocess
import sys

import console
import source

INCLUDE_DIRS = ("include", "src", "cases", "tests")
FLAGS = ["-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-Wno-psabi", "-x", "c++", "-"]


def headers():
    for path in source.tree_files():
        if path.endswith(".h") and not path.endswith("-inl.h"):
            # Device headers are compiled by NVRTC, not here.
            if path.startswith(("include/", "src/", "cases/", "fuzz/")) and \
                    (path.endswith("plan.h") or not path.startswith("src/cuda/kernels/")):
                yield path


def check(compiler, path):
    """None, or what the compiler said."""
    # The arguments are relative to the tree, so that messages are short.
    includes = [f"-I{d}" for d in INCLUDE_DIRS if not path.startswith("include/") or d == "include"]
    text = f'#include "{path}"\n' * 2
    variants = [["-std=c++20"]]
    if path.startswith("include/"):
        variants.append(["-std=c++23" if "clang" not in compiler else "-std=c++2b", "-pedantic"])
    for variant in variants:
        run = subprocess.run([compiler, *variant, *includes, "-I.", *FLAGS], input=text, text=True,
                             capture_output=True, cwd=source.ROOT, check=False)
        if run.returncode != 0:
            return f"{path} does not compile alone ({' '.join(variant)}):\n{run.stderr.rstrip()}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--compiler", default=os.environ.get("CXX", "g++"))
    compiler = parser.parse_args().compiler
    paths = list(headers())
    with concurrent.futures.ThreadPoolExecutor(console.jobs()) as pool:
        failures = [f for f in pool.map(lambda path: check(compiler, path), paths) if f]
    for failure in failures:
        print(failure)
    print(f"headers: {len(paths)} compiled alone, {len(failures)} failed")
    return 1 if failures or not paths else 0


if __name__ == "__main__":
    sys.exit(main())
