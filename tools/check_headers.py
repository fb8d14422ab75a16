#!/usr/bin/env python3
"""Compiles every header alone, twice in one file:  tools/check_headers.py [--compiler g++]

A header that needs another one first, or that cannot be included twice, fails here. Public headers
are also compiled pedantically and as C++23, because they are compiled by other people's builds.
Highway's per-target files (*-inl.h) are parts of one source file and are left out.

Reading the standard library takes nine tenths of that time, so a few sets of headers are compiled
in advance. A header only gets a set of which it includes every member, itself or by a header of
its own: what it would lack alone, it lacks beside that set, too.
"""

import argparse
import concurrent.futures
import functools
import itertools
import os
import re
import subprocess
import sys
import tempfile

import console
import source

INCLUDE_DIRS = ("include", "src", "cases", "tests", "src/cuda/kernels")
FLAGS = ["-Wall", "-Wextra", "-Werror", "-Wno-psabi"]
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"][^>"]+[>"])', re.M)
SETS = 12


def headers():
    for path in source.tree_files():
        if path.endswith(".h") and not path.endswith("-inl.h"):
            # Device headers are compiled by NVRTC, not here.
            if path.startswith(("include/", "src/", "cases/", "fuzz/")) and \
                    (path.endswith("plan.h") or not path.startswith("src/cuda/kernels/")):
                yield path


@functools.cache
def included_by(path):
    """All that a header includes, at any depth: paths of this tree, names of others as <name>."""
    found = set()
    with open(os.path.join(source.ROOT, path), encoding="utf-8") as file:
        text = file.read()
    for name in INCLUDE.findall(text):
        places = [os.path.normpath(os.path.join(folder, name[1:-1]))
                  for folder in (*INCLUDE_DIRS, os.path.dirname(path))]
        here = [place for place in places if os.path.exists(os.path.join(source.ROOT, place))]
        if not here:
            found.add(f"<{name[1:-1]}>")
        # A set holds whole headers; other files enter it by who includes them.
        elif here[0].endswith(".h") and not here[0].endswith("-inl.h"):
            found |= {here[0]} | included_by(here[0])
    return frozenset(found)


def sets_in_advance(paths):
    """The sets that save most, one after another; a set is worth as much as it has members."""
    needs = [included_by(path) for path in paths]
    candidates = {a & b for a, b in itertools.combinations_with_replacement(needs, 2)}
    served = [0] * len(needs)
    chosen = []
    for _ in range(SETS):
        def gain(candidate):
            return sum(max(len(candidate) - has, 0) for need, has in zip(needs, served)
                       if candidate <= need)
        chosen.append(max(sorted(candidates, key=sorted), key=gain))
        served = [max(has, len(chosen[-1])) if chosen[-1] <= need else has
                  for need, has in zip(needs, served)]
    return chosen


def compile_text(compiler, text, *flags):
    # The arguments are relative to the tree, so that messages are short.
    return subprocess.run([compiler, *flags, "-I.", *FLAGS], input=text, text=True,
                          capture_output=True, cwd=source.ROOT, check=False)


def include_flags(path):
    return [f"-I{d}" for d in INCLUDE_DIRS if not path.startswith("include/") or d == "include"]


def compile_set(compiler, folder, number, members):
    """The set's file and members; without members what the compiler said."""
    name = os.path.join(folder, f"set{number}.h")
    with open(name, "w", encoding="utf-8") as file:
        file.writelines(f"#include {one}\n" if one.startswith("<") else f'#include "{one}"\n'
                        for one in sorted(members))
    done = compile_text(compiler, "", "-std=c++20", *include_flags("src/"), "-x", "c++-header",
                        name, "-o", name + ".gch")
    return (name, members) if done.returncode == 0 else (done.stderr, None)


def check(compiler, path, advance):
    """None, or what the compiler said. `advance`: file and members of each compiled set."""
    text = f'#include "{path}"\n' * 2
    fit = [(len(members), name) for name, members in advance if members <= included_by(path)]
    variants = [["-std=c++20", *(["-include", max(fit)[1]] if fit else [])]]
    if path.startswith("include/"):
        variants.append(["-std=c++23" if "clang" not in compiler else "-std=c++2b", "-pedantic"])
    for variant in variants:
        run = compile_text(compiler, text, *variant, *include_flags(path), "-fsyntax-only",
                           "-x", "c++", "-")
        if run.returncode != 0:
            return f"{path} does not compile alone ({variant[0]}):\n{run.stderr.rstrip()}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--compiler", default=os.environ.get("CXX", "g++"))
    compiler = parser.parse_args().compiler
    paths = list(headers())
    with concurrent.futures.ThreadPoolExecutor(console.jobs()) as pool, \
            tempfile.TemporaryDirectory() as folder:
        compiled = list(pool.map(lambda one: compile_set(compiler, folder, *one),
                                 enumerate(sets_in_advance(paths))))
        advance = [one for one in compiled if one[1]]
        failures = [said for said, members in compiled if members is None]
        failures += [f for f in pool.map(lambda path: check(compiler, path, advance), paths) if f]
    for failure in failures:
        print(failure)
    print(f"headers: {len(paths)} compiled alone, {len(failures)} failed")
    return 1 if failures or not paths else 0


if __name__ == "__main__":
    sys.exit(main())
