#!/usr/bin/env python3
"""Ours against the best peer of each shape, from records of torch_gpu.py:

  bench/peers/bars.py bench/results/gpu/h200-papers-torch.cudnn.json \\
      bench/results/gpu/h200-papers-torch.flash.json [--recorded FILE.csv,FILE.csv] [--least 0.93]

Per pass the geometric mean and the least of (best peer's time / ours), and every row below --least.
--recorded adds figures of an earlier day, of peers that this machine does not have: columns peer,
pass, dtype, hdim, causal, batch, seqlen, heads, median_ms. They are scaled by what cuDNN took in
these records over what it took then; rows without both are left out. Exit code 1 if a row is below
--least or a mean below --mean.
"""

import argparse
import csv
import json
import math
import sys

PASSES = {"fwd": "forward", "bwd": "backward"}
TYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
CUDNN, CUDNN_THEN = "torch.cudnn", "cudnn"


def shape_of(row):
    return (row["pass"], row["dtype"], row["batch"], row["heads_q"], row["seqlen_q"],
            row["head_dim"], row.get("head_dim_v", row["head_dim"]), row["mask"] != "none")


def read(paths):
    """({shape: ours in ms}, {shape: {peer: its ms}}); a peer's time is its ratio to ours then."""
    ours, peers = {}, {}
    for path in paths:
        with open(path, encoding="utf-8") as stream:
            document = json.load(stream)
        name = next(word.rstrip(",") for word in document["peer"].split()
                    if word.startswith("torch."))
        for row in document["results"]:
            shape = shape_of(row)
            ours.setdefault(shape, row["flashlab_ms"])
            peers.setdefault(shape, {})[name] = ours[shape] * row["torch_over_flashlab"]
    return ours, peers


def recorded(paths, peers):
    """Adds to `peers` what was recorded before, scaled by cuDNN's own change."""
    then = {}
    for path in paths:
        with open(path, encoding="utf-8", newline="") as stream:
            for row in csv.DictReader(stream):
                if row["pass"] not in PASSES or row["peer"].endswith("_graph"):
                    continue  # another protocol
                dtype = TYPES.get(row["dtype"], row["dtype"])
                shape = (PASSES[row["pass"]], dtype, int(row["batch"]), int(row["heads"]),
                         int(row["seqlen"]), int(row["hdim"]), int(row["hdim"]),
                         row["causal"] == "1")
                # A peer that was recorded twice counts with its better figure.
                known = then.setdefault(shape, {})
                ms = float(row["median_ms"])
                known[row["peer"]] = min(ms, known.get(row["peer"], ms))
    for shape, now in peers.items():
        before = then.get(shape, {})
        if CUDNN not in now or CUDNN_THEN not in before:
            continue
        scale = now[CUDNN] / before[CUDNN_THEN]
        now.update({f"{name} then": ms * scale for name, ms in before.items()
                    if name != CUDNN_THEN})


def words(shape):
    _, dtype, batch, heads, seqlen, dim, dim_v, causal = shape
    dims = f"{dim}" if dim == dim_v else f"{dim},{dim_v}"
    return (f"{dtype} {batch} x {heads} heads, S {seqlen}, d {dims}, "
            f"{'causal' if causal else 'full'}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("records", nargs="+")
    parser.add_argument("--recorded", default="", help="CSV files, separated by commas")
    parser.add_argument("--least", type=float, default=0.95, help="of a row")
    parser.add_argument("--mean", type=float, default=0.0, help="geometric, of a pass")
    asked = parser.parse_args()
    ours, peers = read(asked.records)
    recorded(filter(None, asked.recorded.split(",")), peers)
    failed = False
    for which in PASSES.values():
        ratios = {shape: min((ms, name) for name, ms in peers[shape].items())
                  for shape in ours if shape[0] == which}
        if not ratios:
            continue
        over = {shape: best / ours[shape] for shape, (best, _) in ratios.items()}
        mean = math.exp(math.fsum(map(math.log, over.values())) / len(over))
        least = min(over, key=over.get)
        print(f"{which}: best peer over ours, {len(over)} shapes: geometric mean {mean:.3f}, "
              f"least {over[least]:.3f}")
        failed = failed or mean < asked.mean
        for shape in sorted(over, key=over.get):
            if over[shape] < asked.least:
                failed = True
                best, name = ratios[shape]
                print(f"  {over[shape]:.3f}  {words(shape)}: ours {ours[shape] * 1e3:.1f} us, "
                      f"{name} {best * 1e3:.1f}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
