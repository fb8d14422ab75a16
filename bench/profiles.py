#!/usr/bin/env python3
"""Where a GPU's time goes, as a record:  bench/profiles.py PROGRAM FOLDER NAME
     [--cases CASE,...] [--steps N] [--seconds N]

Runs `profile step` and `profile attention` on the CASES, then `monitor`, the first step's longest
kernels and its phases (by their NVTX ranges) under ncu, and the first call of attention once more
with `--ncu`; the large cases come last. Prints what is asked of them:

  explained  kernels and gaps by CUPTI's clock over the step's time between events: within 2%
  recording  what recording adds to the GPU's time of a step launched behind another: below 5%
  ncu        CUPTI's time of the five longest kernels over ncu's, weighted by their calls in a
             step: within 5%; of each of them, too. ncu's time of a kernel has the same share of its
             launch in it whatever the kernel does ("Nsight Compute measures do contain some of the
             launch overhead", NVIDIA's forum, topic 250619; the difference was 0.8 to 1.6 us for
             kernels from 12 to 953 us, H200, 2026-11-23): what it is on the shortest kernels of the
             same run is taken off
  memory     what the run held over what was planned: within 3%

What no longer fits into --seconds is left out and said. Writes FOLDER/NAME-profile.json: ledgers by
class, phase and kernel. The exit code is not 0 when a run has failed; a figure that misses its
limit is marked, not a failure.
"""

import argparse
import csv
import json
import os
import shutil
import statistics
import sys
import tempfile

import processes

COURSE = ["--precision", "bf16", "--context", "512", "--batch", "4"]
CASES = {
    "small": ["step", "--size", "small", *COURSE],
    "attention": ["attention", "--dtype", "bf16", "--batch", "4", "--heads", "16",
                  "--head-dim", "128", "--seqlen", "4096", "--causal", "--quick"],
    "tiny-attention": ["attention", "--dtype", "bf16", "--head-dim", "64", "--seqlen", "128",
                       "--pass", "forward", "--quick"],
    "tiny": ["step", "--layers", "1", "--width", "64", "--heads", "1", "--hidden", "64",
             "--batch", "1", "--vocabulary", "64", "--context", "64"],
    "large": ["step", "--size", "large", *COURSE],
    "2.7B": ["step", "--size", "2.7B", *COURSE, "--checkpoint", "4"]}
TOP = 5  # kernels whose times are held against ncu's
SHORTEST = 5  # kernels that show what ncu adds to each
TIME = "gpu__time_duration.sum"
LEAST_SECONDS = 5  # nothing is begun with less
LARGE = {"large": 25, "2.7B": 70}  # begun after everything else, and with no fewer seconds
KEPT = ("class", "phase", "kernel")  # of a ledger; operations and layers are too many for a record


class Run(processes.Deadline):
    """The command's arguments, the time that is left, and what was found."""

    def __init__(self, arguments, scratch):
        super().__init__(arguments.seconds)
        self.arguments = arguments
        self.scratch = scratch
        self.failed = False

    def start(self, name, command, limit=None):
        """The output of a command, or None."""
        if self.left() < LARGE.get(name, LEAST_SECONDS):
            self.say(f"{name}: no time left")
            return None
        code, text, _ = processes.run(command, min(self.left(), limit or self.left()))
        if code == 0:
            return text
        self.failed = True
        self.say(f"{name}: ended with {code}: {text.strip()[-300:]}")
        return None

    def profile(self, name, *more, limit=None):
        """The ledger of a case, or None."""
        folder = os.path.join(self.scratch, name)
        words = [self.arguments.program, "profile", *CASES[name], "--device", "cuda", *more]
        if CASES[name][0] == "step":
            words += ["--steps", str(self.arguments.steps)]
        if self.start(name, [*words, "--output", folder], limit) is None:
            return None
        with open(os.path.join(folder, "ledger.json"), encoding="utf-8") as file:
            ledger = json.load(file)
        ledger["by"] = {key: ledger["by"][key] for key in KEPT if key in ledger["by"]}
        return ledger


def judged(figures, name, value, least, most):
    """A figure with its limits, printed and kept."""
    if value is None:
        return f"{name} -"
    figures[name] = {"value": value, "least": least, "most": most,
                     "holds": least <= value <= most}
    return f"{name} {value:.4f}" + ("" if least <= value <= most else " (missed)")


def figures_of(run, name, ledger):
    figures = {}
    account = ledger.get("account") or {}
    planned, measured = ledger.get("planned_bytes"), ledger.get("measured_bytes")
    words = [judged(figures, "explained", account.get("explained"), 0.98, 1.02),
             judged(figures, "recording", ledger.get("overhead"), -1, 0.05),
             judged(figures, "memory", measured / planned if measured and planned else None,
                    0.97, 1.03)]
    gaps = f"{account['gaps_ms']:.4g} ms in {account['gaps']:g} gaps" if account else ""
    run.say(f"{name}: {ledger['step_ms']:.4g} ms, {gaps}, " + ", ".join(words))
    return figures


def ncu_of(run):
    ncu = os.environ.get("FLASHLAB_NCU") or shutil.which("ncu")
    if ncu is None:
        run.say("ncu is not installed")
    return ncu


def under_ncu(run, ncu, name, flags, limit):
    """Kernel and time in us of each launch of a short run of a case that ncu counts, or None."""
    log = os.path.join(run.scratch, "ncu.csv")
    short = ["--steps", "1", "--warmup", "1"] if CASES[name][0] == "step" else ["--repeats", "2"]
    quick = [] if "--quick" in CASES[name] else ["--quick"]
    command = [ncu, *flags, "--csv", "--log-file", log, "--metrics", TIME, "--clock-control",
               "none", "--cache-control", "none", run.arguments.program, "profile", *CASES[name],
               "--device", "cuda", *quick, *short, "--output", os.path.join(run.scratch, "ncu")]
    if run.start(f"ncu {name}", command, limit) is None:
        return None
    with open(log, encoding="utf-8", errors="replace") as file:
        lines = file.read().splitlines()
    rows = list(csv.DictReader(line for line in lines if line.startswith('"')))
    if not rows:
        run.say(f"ncu {name}: no launch; " + "; ".join(lines[-3:]))
    scale = {"ns": 1e-3, "nsecond": 1e-3, "ms": 1e3, "msecond": 1e3}
    return [(row["Kernel Name"].split("(")[0],
             float(row["Metric Value"].replace(",", "")) * scale.get(row["Metric Unit"], 1))
            for row in rows if row["Metric Name"] == TIME]


def counted_times(run, name, ledger):
    """CUPTI's mean times over ncu's, of the kernels with the most time."""
    ncu = ncu_of(run)
    kernels = {row["key"]: row for row in ledger["by"]["kernel"] if row["key"].isidentifier()}
    longest = sorted(kernels.values(), key=lambda row: -row["total_ms"])[:TOP]
    if ncu is None or not longest:
        return None
    others = [row for row in kernels.values() if row not in longest]
    shortest = sorted(others, key=lambda row: row["mean_ms"])[:SHORTEST]
    names = "|".join(row["key"] for row in longest + shortest)
    # Of a step: those of the warm-up are left out.
    calls = str(max(1, round(sum(row["calls"] for row in longest + shortest))))
    launches = under_ncu(run, ncu, name, ["--kernel-name-base", "function", "--kernel-name",
                                          f"regex:^({names})$", "--launch-skip", calls,
                                          "--launch-count", calls], run.left() / 2)
    figures, times, cupti_us, ncu_us = {}, {}, 0, 0
    for kernel, time_us in launches or []:
        if kernel in kernels:
            times.setdefault(kernel, []).append(time_us)
    means = {kernel: sum(each) / len(each) for kernel, each in times.items()}
    added = [means[row["key"]] - row["mean_ms"] * 1e3 for row in shortest if row["key"] in means]
    launch_us = statistics.median(added) if added else 0.0
    run.say(f"ncu: {launch_us:.2f} us of each launch, by " + ", ".join(
        f"{row['key']} {row['mean_ms'] * 1e3:.2f} us and {means[row['key']]:.2f}"
        for row in shortest if row["key"] in means))
    for row in longest:
        if (kernel := row["key"]) not in means:
            continue
        of_cupti, of_ncu = row["mean_ms"] * 1e3, means[kernel] - launch_us
        cupti_us += of_cupti * row["calls"]
        ncu_us += of_ncu * row["calls"]
        run.say("ncu: " + judged(figures, kernel, of_cupti / of_ncu, 0.95, 1.05)
                + f", {of_cupti / means[kernel]:.4f} with the launch, {of_cupti:.2f} us, "
                + f"{len(times[kernel])} launches")
    if ncu_us:
        run.say("ncu: " + judged(figures, "together", cupti_us / ncu_us, 0.95, 1.05))
    return {"ncu_us": means, "launch_us": launch_us, "cupti_over_ncu": figures}


def counters(run, name):
    """What `--ncu` finds of a case: ncu runs a kernel once for every few counters."""
    ledger = run.profile(name, "--ncu", limit=run.left() / 2)
    if ledger is None:
        return None
    found = ledger.get("counters", [])
    run.say(f"{name} --ncu: " + (", ".join(row["kernel"] for row in found) or "; ".join(
        m["reason"] for m in ledger.get("missing", []) if "ncu" in m["what"])))
    return found


def ranges(run, name, expressions):
    """Kernels that ncu sees inside of NVTX ranges."""
    ncu, found = ncu_of(run), {}
    for expression in expressions if ncu else ():
        launches = under_ncu(run, ncu, name, ["--nvtx", "--nvtx-include", expression,
                                              "--launch-count", "8"], run.left() / 2)
        if launches is not None:
            found[expression] = sorted({kernel for kernel, _ in launches})
            run.say(f"{name} inside of {expression}: " + (", ".join(found[expression]) or "none"))
    return found


def monitored(run):
    """Two seconds of `monitor`, or None."""
    path = os.path.join(run.scratch, "monitor.json")
    if run.start("monitor", [run.arguments.program, "monitor", "--device", "cuda", "--interval",
                             "0.2", "--duration", "2", "--json", path]) is None:
        return None
    with open(path, encoding="utf-8") as file:
        samples = json.load(file)
    run.say(f"monitor: {len(samples['samples'])} samples")
    return samples


def add_profile(run, out, name):
    """A case's ledger and figures into the record."""
    ledger = run.profile(name)
    if ledger is None:
        return
    environment = ledger.pop("environment", None)
    out["environment"] = out["environment"] or environment
    out["profiles"][name] = ledger
    out["figures"][name] = figures_of(run, name, ledger)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("folder")
    parser.add_argument("name")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=600)
    arguments = parser.parse_args()
    cases = arguments.cases.split(",")
    if unknown := set(cases) - set(CASES):
        parser.error(f"--cases has {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    os.makedirs(arguments.folder, exist_ok=True)
    processes.stop_with_this_script()
    with tempfile.TemporaryDirectory() as scratch:
        run = Run(arguments, scratch)
        out = {"schema": "flashlab.profile_record/1", "environment": None, "profiles": {},
               "figures": {}}
        for name in cases:
            if name not in LARGE:
                add_profile(run, out, name)
        out["monitor"] = monitored(run)
        steps = [name for name in out["profiles"] if CASES[name][0] == "step"]
        calls = [name for name in out["profiles"] if CASES[name][0] == "attention"]
        if steps:
            out["ncu"] = counted_times(run, steps[0], out["profiles"][steps[0]])
            out["phases"] = ranges(run, steps[0], ("optimizer/", "backward/"))
        if calls:
            out["samples"] = ranges(run, calls[0], ("sample/",))
            out["counters"] = counters(run, calls[0])
        for name in cases:
            if name in LARGE:
                add_profile(run, out, name)
        # A record names no place of the machine that made it.
        text = json.dumps(out, indent=1, ensure_ascii=False).replace(scratch + os.sep, "")
    path = os.path.join(arguments.folder, arguments.name + "-profile.json")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text + "\n")
    return 1 if run.failed else 0


if __name__ == "__main__":
    sys.exit(main())
