#!/usr/bin/env python3
"""Attention with mask tensors beside PyTorch's, in turns: milliseconds of a call from Python.

  bench/python/masks.py --json bench/results/python/h200-masks.json
  bench/python/masks.py --device cpu --dtype fp32 --head-dim 64 --seqlen 256   # anywhere

Shapes: batch, heads and seqlen x seqlen as asked, one mask [1, 1, S, S] for all: boolean (one key
in ten hidden), or additive in the tensors' type. Each with and without `causal`, forward and, with
--backward, the gradient of q, k and v. PyTorch's scaled_dot_product_attention gets the causal part
within its mask, which is how it takes both. The protocol is that of docs/measuring.md
(flashlab.peers.clock). Needs PyTorch and flashlab; exit code 1 if a call failed.
"""

import argparse
import contextlib
import datetime
import json
import os
import statistics
import sys

import torch
import torch.nn.functional as F

import flashlab
import flashlab.torch
from flashlab.peers import clock

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


class Contestant:
    """One side; the clock asks for what must be set while it runs, which is nothing here."""

    def __init__(self, name):
        self.name = name

    @staticmethod
    def setting():
        return contextlib.nullcontext()


def masks(kind, causal, seqlen, dtype, device):
    """(ours, PyTorch's) of one problem; PyTorch's holds the causal part too."""
    drawn = torch.rand(1, 1, seqlen, seqlen, device=device)
    lower = torch.ones(seqlen, seqlen, device=device, dtype=torch.bool).tril()
    if kind == "bool":
        ours = drawn > 0.1
        return ours, ours & lower if causal else ours
    ours = drawn.to(dtype)
    return ours, ours.masked_fill(~lower, float("-inf")) if causal else ours


def calls(asked, kind, causal, dim):
    """{Contestant: call} of one problem."""
    dtype, device = DTYPES[asked.dtype], asked.device
    q, k, v = (torch.randn(asked.batch, asked.seqlen, asked.heads, dim, device=device, dtype=dtype,
                           requires_grad=asked.backward) for _ in range(3))
    mask, whole = masks(kind, causal, asked.seqlen, dtype, device)
    forwards = {
        Contestant("flashlab"): lambda: flashlab.torch.attention(q, k, v, causal=causal, mask=mask),
        Contestant("torch"): lambda: F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=whole)}
    if not asked.backward:
        return forwards

    def gradient(forward):
        o = forward()
        d_o = torch.randn_like(o)
        return lambda: torch.autograd.grad(o, (q, k, v), d_o, retain_graph=True)
    return {contestant: gradient(forward) for contestant, forward in forwards.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    gpu = torch.cuda.is_available()
    parser.add_argument("--device", default="cuda" if gpu else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtype", default="bf16", choices=sorted(DTYPES))
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--seqlen", type=int, default=2048)
    parser.add_argument("--head-dim", default="64,128,192,256")
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", default="", help="the record's file")
    asked = parser.parse_args()
    timer = (clock.GpuClock if asked.device == "cuda" else clock.WallClock)(asked.device)
    settings = {"repeats": asked.repeats, "warmup": 3, "max_total_ms": 2000}
    rows, failures = [], []
    for dim in map(int, asked.head_dim.split(",")):
        for kind in ("bool", "additive"):
            for causal in (False, True):
                samples = clock.interleave(
                    timer, calls(asked, kind, causal, dim), settings, stop=lambda: False,
                    progress=lambda *_: None,
                    failed=lambda contestant, error: failures.append(f"{contestant.name}: {error}"))
                ms = {each.name: statistics.median(taken) for each, taken in samples.items()}
                rows.append({"head_dim": dim, "mask": kind, "causal": causal, "ms": ms})
                print(f"d {dim:<4}{kind:<9}{'causal' if causal else 'full':<7}" +
                      "  ".join(f"{name} {value:.4f} ms" for name, value in ms.items()), flush=True)
    for failure in failures:
        print(failure, file=sys.stderr)
    command = " ".join(["bench/python/masks.py", *sys.argv[1:]])
    if asked.json:
        os.makedirs(os.path.dirname(asked.json) or ".", exist_ok=True)
        with open(asked.json, "w", encoding="utf-8") as stream:
            json.dump({"schema": "flashlab.masks/1",
                       "command": command,
                       "date_utc": datetime.datetime.now(datetime.timezone.utc)
                                   .strftime("%Y-%m-%dT%H:%MZ"),
                       "torch": torch.__version__, "protocol": timer.words,
                       "environment": flashlab.info()["environment"] | {"command": command},
                       "asked": vars(asked), "results": rows, "failures": failures}, stream,
                      indent=1)
            stream.write("\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
