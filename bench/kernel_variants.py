#!/usr/bin/env python3
"""Changes to kernel sources beside the sources as they are, in turns:

  bench/kernel_variants.py bench/variants/sm90-forward --json results/gpu/h200-variants.json
  bench/kernel_variants.py bench/variants/sm90-forward --dry-run     # anywhere: do they apply?

FOLDER holds NAME.patch files against src/cuda/kernels, each one idea, and cases.json: {case:
{"flags": [of flashlab bench], "variants": [names]}}; "a+b" is both patches. Every variant gets a
copy of the sources; FLASHLAB_KERNEL_SOURCES makes the same program compile and run it.
Rounds go over all variants of a case in turn; the median over rounds is reported, and its ratio
to the unchanged sources, "base". Before anything is timed each variant passes `flashlab check
--quick` with the implementation of --check; a patch whose name begins with "what-if-" computes
wrong results on purpose, to see where time goes, and is not checked. --seconds ends the run early,
with what there is. A run needs an NVIDIA GPU. Exit code 1 if a patch does not apply, a check fails
or a variant could not be timed.
"""

import argparse
import datetime
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SOURCES = os.path.join(ROOT, "src", "cuda", "kernels")
BASE = "base"
PER_CALL_SECONDS = 60  # a kernel that hangs is ended


def variants(folder, cases):
    """{name: files of its patches}, the unchanged sources first; what has no file is left out."""
    single = {name[:-len(".patch")]: os.path.abspath(os.path.join(folder, name))
              for name in sorted(os.listdir(folder)) if name.endswith(".patch")}
    found = {BASE: []} | {name: [file] for name, file in single.items()}
    for name in (name for what in cases.values() for name in what["variants"]):
        parts = name.split("+")
        if all(part in single for part in parts):
            found[name] = [single[part] for part in parts]
    return found


def copy_with(patches, target):
    """The kernel sources with patches in `target`; returns what was wrong, or ""."""
    shutil.copytree(SOURCES, target)
    for patch in patches:
        done = subprocess.run(["patch", "-p1", "--no-backup-if-mismatch", "-s", "-i", patch],
                              cwd=target, capture_output=True, text=True, check=False)
        if done.returncode:
            return done.stdout.strip()
    return ""


def run(program, folder, arguments):
    """A finished process of the program with the sources in `folder`; None if it hung."""
    environment = dict(os.environ, FLASHLAB_KERNEL_SOURCES=folder)
    try:
        return subprocess.run([program, *arguments], capture_output=True, text=True, check=False,
                              env=environment, timeout=PER_CALL_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def median_ms(program, folder, flags):
    done = run(program, folder, ["bench", "--device", "cuda", *flags, "--json", "-"])
    try:
        row = json.loads(done.stdout)["results"][0]
        return row["median_ms"] if row["status"] == "ok" else None
    except (AttributeError, IndexError, KeyError, ValueError):
        return None


def checked(asked, folders):
    """Names of variants that pass; says which do not."""
    good = []
    for name, folder in folders.items():
        if name == BASE or name.startswith("what-if-") or not asked.check:
            good.append(name)
            continue
        done = run(asked.flashlab, folder, ["check", "--device", "cuda", "--quick",
                                            "--implementation", asked.check, "--dtype", "bf16"])
        if done is not None and done.returncode == 0:
            good.append(name)
        else:
            print(f"{name}: check failed: "
                  f"{'hung' if done is None else done.stdout.strip()[-200:]}", flush=True)
    return good


def measure(asked, folders, cases, names, end):
    """[{case, variant, ms: [by round]}]"""
    rows = []
    for case, what in cases.items():
        wanted = [name for name in names if name == BASE or name in what["variants"]]
        taken = {name: [] for name in wanted}
        for _ in range(asked.rounds):
            for name in wanted:
                if time.monotonic() < end:
                    ms = median_ms(asked.flashlab, folders[name], what["flags"])
                    taken[name] += [] if ms is None else [ms]
        base = statistics.median(taken[BASE]) if taken[BASE] else None
        for name, samples in taken.items():
            if not samples or not base:
                print(f"{case:<14}{name:<24}not timed", flush=True)
                continue
            median = statistics.median(samples)
            rows.append({"case": case, "variant": name, "ms": samples, "over_base": median / base})
            print(f"{case:<14}{name:<24}{median * 1e3:9.1f} us  {median / base:.3f} of base  " +
                  " ".join(f"{ms * 1e3:.1f}" for ms in samples), flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder")
    parser.add_argument("--flashlab", default="build/flashlab")
    parser.add_argument("--check", default="sm90", help="implementation; empty: no check")
    parser.add_argument("--only", default="", help="variants, separated by commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=500)
    parser.add_argument("--json", default="", help="the record's file")
    parser.add_argument("--dry-run", action="store_true", help="only apply the patches")
    asked = parser.parse_args()
    asked.flashlab = os.path.abspath(asked.flashlab)
    end = time.monotonic() + asked.seconds
    with open(os.path.join(asked.folder, "cases.json"), encoding="utf-8") as stream:
        cases = json.load(stream)
    wrong = 0
    with tempfile.TemporaryDirectory() as scratch:
        folders = {}
        known = variants(asked.folder, cases)
        for name, files in known.items():
            if asked.only and name != BASE and name not in asked.only.split(","):
                continue
            folder = os.path.join(scratch, name)
            said = copy_with(files, folder)
            if said:
                wrong += 1
                print(f"{name}: does not apply: {said}", flush=True)
            else:
                folders[name] = folder
        asked_for = {name for what in cases.values() for name in what["variants"]}
        for name in sorted(asked_for - set(known)):
            wrong += 1
            print(f"cases.json: no variant {name}", flush=True)
        if asked.dry_run:
            print(f"{len(folders)} of {len(folders) + wrong} variants, {len(cases)} cases")
            return 1 if wrong else 0
        names = checked(asked, folders)
        rows = measure(asked, folders, cases, names, end)
    if asked.json:
        os.makedirs(os.path.dirname(asked.json) or ".", exist_ok=True)
        with open(asked.json, "w", encoding="utf-8") as stream:
            json.dump({"schema": "flashlab.variants/1",
                       "command": " ".join(["bench/kernel_variants.py", *sys.argv[1:]]),
                       "date_utc": datetime.datetime.now(datetime.timezone.utc)
                                   .strftime("%Y-%m-%dT%H:%MZ"),
                       "cases": cases, "results": rows}, stream, indent=1)
            stream.write("\n")
    return 1 if wrong or len(names) < len(folders) or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
