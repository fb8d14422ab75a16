#!/usr/bin/env python3
"""PyTorch's CPU attention beside ours: the same shapes, the same threads, taking turns.

  bench/peers/torch_cpu.py --flashlab build/flashlab --threads 2 --json bench/results/torch_cpu.json

Needs PyTorch in the Python that runs it, e.g. in a throw-away environment:
  python3 -m venv /tmp/peers && /tmp/peers/bin/pip install torch numpy

Per shape and pass, rounds alternate between `flashlab bench` (its own process) and
torch.nn.functional.scaled_dot_product_attention here; each round gives a median, and the ratio
reported is the median over rounds of (PyTorch's time / ours), so that a drifting clock hits both.
Backward is the gradient of q, k and v through autograd, forward not included.
"""

import argparse
import datetime
import json
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def median_ms(call, budget_s):
    """Median time of a call: one warm-up, then samples for the budget, at least three."""
    call()
    samples, start = [], time.perf_counter()
    while time.perf_counter() - start < budget_s or len(samples) < 3:
        before = time.perf_counter()
        call()
        samples.append((time.perf_counter() - before) * 1e3)
    return statistics.median(samples)


def median_or_none(values):
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


class Torch:
    """One shape in PyTorch: layout [batch, heads, seqlen, head_dim], as its users hold it."""

    def __init__(self, shape, dtype, causal):
        batch, heads, seqlen, dim = shape
        torch.manual_seed(1)
        self.q, self.k, self.v = (
            torch.randn(batch, heads, seqlen, dim).to(dtype).requires_grad_() for _ in range(3))
        self.causal = causal
        self.o = self.attend()
        self.d_o = torch.randn_like(self.o)

    def attend(self):
        return F.scaled_dot_product_attention(self.q, self.k, self.v, is_causal=self.causal)

    def forward(self):
        with torch.no_grad():
            self.attend()

    def backward(self):
        torch.autograd.grad(self.o, (self.q, self.k, self.v), self.d_o, retain_graph=True)


def flashlab_command(program, shape, dtype, causal, passes, threads, isa):
    batch, heads, seqlen, dim = shape
    command = [program, "bench", "--device", "cpu", "--batch", str(batch), "--heads", str(heads),
               "--seqlen", str(seqlen), "--head-dim", str(dim), "--dtype", dtype, "--pass", passes,
               "--threads", str(threads), "--warmup", "1", "--repeats", "7", "--json", "-"]
    if isa:
        command += ["--cpu-isa", isa]
    return command + (["--causal=top-left"] if causal else [])


def run_flashlab(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    return json.loads(done.stdout)


def measure(arguments, shape, dtype, causal):
    """Rows of one shape: a dict per pass."""
    peer = Torch(shape, DTYPES[dtype], causal)
    command = flashlab_command(arguments.flashlab, shape, dtype, causal, "both", arguments.threads,
                               arguments.cpu_isa)
    rounds = {"forward": [], "backward": []}
    environment = None
    for _ in range(arguments.rounds):
        ours = run_flashlab(command)
        environment = ours["environment"]
        for row in ours["results"]:
            theirs = median_ms(getattr(peer, row["pass"]), arguments.seconds)
            rounds[row["pass"]].append((row["median_ms"], theirs, row["roof_share"]))
    rows = []
    for name, samples in rounds.items():
        rows.append({
            "pass": name, "dtype": dtype, "batch": shape[0], "heads_q": shape[1],
            "seqlen_q": shape[2], "head_dim": shape[3],
            "mask": "causal-top-left" if causal else "none",
            "flashlab_ms": statistics.median(s[0] for s in samples),
            "torch_ms": statistics.median(s[1] for s in samples),
            "torch_over_flashlab": statistics.median(s[1] / s[0] for s in samples),
            "flashlab_roof_share": median_or_none(s[2] for s in samples),
        })
    return rows, environment


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--flashlab", default="build/flashlab")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--cpu-isa", default="")
    parser.add_argument("--dtype", default="fp32,bf16")
    parser.add_argument("--seqlen", default="1536,4096")
    parser.add_argument("--head-dim", default="64,128")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="per PyTorch measurement")
    parser.add_argument("--json", required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    results, environment = [], None
    for dtype in arguments.dtype.split(","):
        for dim in map(int, arguments.head_dim.split(",")):
            for seqlen in map(int, arguments.seqlen.split(",")):
                for causal in (False, True):
                    shape = (1, arguments.heads, seqlen, dim)
                    rows, environment = measure(arguments, shape, dtype, causal)
                    results += rows
                    for row in rows:
                        print(f"{row['dtype']} {row['pass']:<8} d{dim} S{seqlen} "
                              f"{row['mask']:<15} ours {row['flashlab_ms']:9.3f} ms  "
                              f"torch {row['torch_ms']:9.3f} ms  "
                              f"{row['torch_over_flashlab']:.2f}x", flush=True)
    document = {
        "schema": "flashlab.peers/1",
        "peer": f"PyTorch {torch.__version__} scaled_dot_product_attention, CPU",
        "command": " ".join(sys.argv),
        "date_utc": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "rounds": arguments.rounds,
        "environment": environment,
        "results": results,
    }
    with open(arguments.json, "w", encoding="utf-8") as stream:
        json.dump(document, stream, indent=1)
        stream.write("\n")


if __name__ == "__main__":
    main()
