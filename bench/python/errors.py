#!/usr/bin/env python3
"""Errors of the attention output beside PyTorch's backends, on the same inputs, against fp64.

  bench/python/errors.py --json bench/results/python/h200-errors.json
  bench/python/errors.py --device cpu --dtype fp32 --head-dim 64 --seqlen 128   # anywhere

Relative L2, ||o - o64|| / ||o64||, where o64 is softmax(q k^T / sqrt(d)) v in fp64 of the same
rounded inputs. Fills: normal numbers; large-scores, where q and k are ten times that and scores
have a standard deviation of 100; mixed-scales, where each row of q and k is scaled by a power of
two between 1e-6 and 1e3. Needs PyTorch and flashlab; exit code 1 if a peer that ran has a smaller
error than ours by more than --tolerance.
"""

import argparse
import datetime
import json
import os
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import flashlab
import flashlab.torch

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
BACKENDS = {"torch.cudnn": SDPBackend.CUDNN_ATTENTION, "torch.flash": SDPBackend.FLASH_ATTENTION}
FILLS = ("normal", "large-scores", "mixed-scales")


def draw(asked, fill, dim, generator):
    """q, k, v [batch, seqlen, heads, dim] in the asked type."""
    shape = (asked.batch, asked.seqlen, asked.heads, dim)
    normal = [torch.randn(shape, generator=generator, device=asked.device) for _ in range(3)]
    for tensor in normal[:2]:
        if fill == "large-scores":
            tensor *= 10
        elif fill == "mixed-scales":
            # fp16 ends at 65504.
            low, high = (-4, 2) if asked.dtype == "fp16" else (-6, 3)
            power = torch.rand(shape[:3], generator=generator, device=asked.device)
            exponent = torch.floor((low + (high - low) * power) * 3.3219280948873626)
            tensor *= torch.exp2(exponent)[..., None]
    return [tensor.to(DTYPES[asked.dtype]) for tensor in normal]


def truth(q, k, v, causal):
    """In fp64, a head at a time."""
    o = torch.empty(*q.shape[:3], v.shape[3], dtype=torch.float64, device=q.device)
    later = torch.ones(q.shape[1], k.shape[1], device=q.device, dtype=torch.bool).triu(1)
    for batch in range(q.shape[0]):
        for head in range(q.shape[2]):
            each = [tensor[batch, :, head].double() for tensor in (q, k, v)]
            scores = each[0] @ each[1].T / q.shape[3] ** 0.5
            if causal:
                scores.masked_fill_(later, float("-inf"))
            o[batch, :, head] = torch.softmax(scores, -1) @ each[2]
    return o


def outputs(q, k, v, causal):
    """(name, call) of every side."""
    yield "flashlab", lambda: flashlab.torch.attention(q, k, v, causal=causal)
    for name, backend in BACKENDS.items() if q.is_cuda else ():
        def attend(backend=backend):
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(
                    *(tensor.transpose(1, 2) for tensor in (q, k, v)),
                    is_causal=causal).transpose(1, 2)
        yield name, attend


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu",
                        choices=("cpu", "cuda"))
    parser.add_argument("--dtype", default="bf16", choices=sorted(DTYPES))
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--seqlen", type=int, default=2048)
    parser.add_argument("--head-dim", default="64,128,256")
    parser.add_argument("--tolerance", type=float, default=1.0, help="ours / the best peer's")
    parser.add_argument("--json", default="", help="the record's file")
    asked = parser.parse_args()
    generator = torch.Generator(asked.device).manual_seed(1)
    rows, worse = [], 0
    for dim in map(int, asked.head_dim.split(",")):
        for fill in FILLS:
            for causal in (False, True):
                q, k, v = draw(asked, fill, dim, generator)
                exact = truth(q, k, v, causal)
                errors = {}
                for name, call in outputs(q, k, v, causal):
                    try:
                        error = (call().double() - exact).norm() / exact.norm()
                    except RuntimeError as refusal:
                        print(f"{name}: {str(refusal).splitlines()[0][:120]}", file=sys.stderr)
                        continue
                    errors[name] = error.item()
                peers = [value for name, value in errors.items() if name != "flashlab"]
                worse += bool(peers) and errors["flashlab"] > asked.tolerance * min(peers)
                rows.append({"head_dim": dim, "fill": fill, "causal": causal,
                             "relative_l2": errors})
                print(f"d {dim:<4}{fill:<13}{'causal' if causal else 'full':<7}" +
                      "  ".join(f"{name} {value:.3e}" for name, value in errors.items()),
                      flush=True)
    if asked.json:
        os.makedirs(os.path.dirname(asked.json) or ".", exist_ok=True)
        command = " ".join(["bench/python/errors.py", *sys.argv[1:]])
        with open(asked.json, "w", encoding="utf-8") as stream:
            json.dump({"schema": "flashlab.errors/1", "command": command,
                       "date_utc": datetime.datetime.now(datetime.timezone.utc)
                                   .strftime("%Y-%m-%dT%H:%MZ"),
                       "torch": torch.__version__,
                       "environment": flashlab.info()["environment"] | {"command": command},
                       "asked": vars(asked), "results": rows}, stream, indent=1)
            stream.write("\n")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
