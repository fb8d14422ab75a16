#!/usr/bin/env python3
"""Two programs on the same problems, in turns:

  bench/turns.py OLD NEW --series papers,heads,features,step --rounds 3 --json turns.json
  bench/turns.py OLD NEW --series papers --dry-run

OLD and NEW are builds of flashlab. A series is a list of `flashlab bench` commands, each short
enough that the two programs see the same clocks; every round runs a command with both, in the
other order than the round before. A cell (one problem and pass) gets the median over rounds of
NEW's time over OLD's; a series gets the geometric mean and the extremes. --within 0.01 lists the
cells that differ by more and gives exit code 3; a series without a cell gives 1. --seconds ends
the run early, with what there is; --implementation names another than the production kernels.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile

from processes import Deadline, run, stop_with_this_script

ATTENTION = ["bench", "--device", "cuda", "--dtype", "bf16", "--pass", "both", "--repeats", "20"]
# 16k tokens and a hidden size of 2048, as in the papers.
PAPERS = [(dim, length) for dim in (64, 128, 256) for length in (512, 2048, 8192)]
FEATURES = {"window": ["--causal", "--window", "1024,0"],
            "softcap": ["--causal", "--softcap", "30"],
            "alibi": ["--causal", "--alibi"], "dropout": ["--causal", "--dropout", "0.1"]}
STEPS = [("small", "4", "512"), ("medium", "4", "512"), ("large", "4", "512"),
         ("gpt2", "16", "1024"), ("gpt2", "64", "1024")]
LABELS = ("implementation", "pass", "dtype", "batch", "heads_q", "heads_k", "seqlen_q", "head_dim",
          "mask", "window", "softcap", "alibi", "dropout", "model", "mode", "context", "precision")


def shape(batch, heads, length, dim, *more):
    return [*ATTENTION, "--batch", str(batch), "--heads", str(heads), "--seqlen", str(length),
            "--head-dim", str(dim), *more]


def series():
    """{name: commands}"""
    return {
        "papers": [shape(16384 // length, 2048 // dim, length, dim, *causal)
                   for dim, length in PAPERS for causal in ([], ["--causal"])],
        "heads": [shape(1, 1, "1k,4k,16k", dim, "--causal") for dim in (32, 64, 128)]
                 + [shape(2, 32, "8k", 128, "--kv-heads", "4", "--causal")],
        "features": [shape(4, 2048 // dim, 4096, dim, *flags)
                     for dim in (64, 128) for flags in FEATURES.values()],
        "step": [["bench", "step", "--device", "cuda", "--size", size, "--batch", batch,
                  "--context", context, "--precision", "bf16", "--mode", "full"]
                 for size, batch, context in STEPS],
    }


def times_of(program, command, seconds):
    """({cell: median ms}, environment) of one run, or the reason why there is none."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.json")
        code, text, _ = run([program, *command, "--json", path], limit=seconds)
        try:
            with open(path, encoding="utf-8") as stream:
                result = json.load(stream)
        except (OSError, ValueError):
            return None, f"exit code {code}: {text.strip()[-300:]}"
    cells = {" ".join(f"{label}={row[label]}" for label in LABELS if row.get(label)):
             row["median_ms"] for row in result["results"] if row.get("median_ms")}
    return (cells, result["environment"]) if cells else (None, f"exit code {code}, no row was ok")


def measure(programs, command, rounds, deadline):
    """({cell: [NEW over OLD, a round each]}, {program: environment})"""
    ratios, environments = {}, {}
    for number in range(rounds):
        found = {}
        for program in programs if number % 2 == 0 else reversed(programs):
            if deadline.left() <= 0:
                return ratios, environments
            cells, told = times_of(program, command, deadline.left())
            if cells is None:
                deadline.say(f"{program}: {told}")
                return ratios, environments
            found[program], environments[program] = cells, told
        old, new = (found[program] for program in programs)
        for cell in old.keys() & new.keys():
            ratios.setdefault(cell, []).append(new[cell] / old[cell])
    return ratios, environments


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--series", default=",".join(series()))
    parser.add_argument("--implementation")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--within", type=float, default=0.01)
    parser.add_argument("--json")
    parser.add_argument("--dry-run", action="store_true")
    arguments = parser.parse_args()
    wanted = arguments.series.split(",")
    if unknown := set(wanted) - series().keys():
        parser.error(f"--series {sorted(unknown)[0]}: expected {', '.join(series())}")
    stop_with_this_script()
    deadline, record, beyond = Deadline(arguments.seconds), {"series": {}}, 0
    missing = False
    for name in wanted:
        cells = {}
        for command in series()[name]:
            if arguments.implementation and command[1] != "step":
                command = [*command, "--implementation", arguments.implementation]
            if arguments.dry_run:
                print(" ".join(command))
                continue
            ratios, environments = measure([arguments.old, arguments.new], command,
                                           arguments.rounds, deadline)
            for label, program in (("old", arguments.old), ("new", arguments.new)):
                if program in environments:
                    record[label] = environments[program]
            cells |= {cell: statistics.median(found) for cell, found in ratios.items()}
        missing |= not cells and not arguments.dry_run
        if not cells:
            continue
        mean = math.exp(statistics.fmean(map(math.log, cells.values())))
        record["series"][name] = {"geometric_mean": mean, "new_over_old": cells}
        deadline.say(f"{name}: {len(cells)} cells, new over old {mean:.4f}, least "
                     f"{min(cells.values()):.4f}, most {max(cells.values()):.4f}")
        for cell, ratio in sorted(cells.items(), key=lambda item: item[1]):
            if abs(ratio - 1) > arguments.within:
                beyond += 1
                print(f"  {ratio:.4f}  {cell}", flush=True)
    if arguments.json:
        record["command"] = subprocess.list2cmdline(["bench/turns.py", *sys.argv[1:]])
        with open(arguments.json, "w", encoding="utf-8") as stream:
            json.dump(record, stream, indent=1)
    return 1 if missing else 3 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())
