#!/usr/bin/env python3
"""PyTorch's GPU attention beside ours: the same shapes in turns, in one run.

  bench/peers/torch_gpu.py --flashlab build/flashlab --grid papers --json bench/results/gpu/NAME

Needs PyTorch with CUDA in the Python that runs it. Writes NAME-GRID-PEER.json for each peer:
torch.flash (FlashAttention-2), torch.cudnn, torch.efficient (memory-efficient), torch.math.

Per shape and pass, rounds alternate between `flashlab bench` (its own process) and each backend of
torch.nn.functional.scaled_dot_product_attention here. CUDA events around each call, the L2 flushed
between samples, median of many; the ratio reported is the median over rounds of (the peer's time /
ours). Backward is the gradient of q, k and v through autograd, forward not included. Tensors are
[batch, seqlen, heads, head_dim] in memory for both sides, random normal.
"""

import argparse
import datetime
import json
import math
import os
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16,
          "fp16": torch.float16}
BACKENDS = {"torch.flash": SDPBackend.FLASH_ATTENTION, "torch.cudnn": SDPBackend.CUDNN_ATTENTION,
            "torch.efficient": SDPBackend.EFFICIENT_ATTENTION, "torch.math": SDPBackend.MATH}
FLUSH_BYTES = 256 << 20
REST_S = 0.3  # before a measurement, as in `flashlab bench`: the clock recovers from the one before


def papers():
    """The FlashAttention papers' grid: 16k tokens, hidden size 2048."""
    for dim in (64, 128, 256):
        for causal in (False, True):
            for seqlen in (512, 1024, 2048, 4096, 8192, 16384):
                yield (16384 // seqlen, 2048 // dim, seqlen, dim, causal)


def presets():
    """The shapes of `--preset`, one after the other."""
    return [(8, 12, 1024, 64, True), (2, 96, 2048, 128, True), (16, 12, 512, 64, False),
            (8, 16, 512, 64, False), (1, 8, 8192, 64, False), (1, 8, 16384, 64, False),
            (32, 8, 512, 64, False)]


def head_dims():
    """Head dims beside powers of two, of q and k, and of v where it differs; 16k tokens."""
    for dims in ((32,), (96,), (192,), (192, 128)):
        for causal in (False, True):
            for seqlen in (1024, 4096, 16384):
                yield (16384 // seqlen, 2048 // dims[0], seqlen, dims[0], causal, *dims[1:])


def one_head(batch, lengths):
    for dim in (16, 32, 64, 128):
        for seqlen in lengths:
            yield (batch, 1, seqlen, dim, True)


# name: (shapes, dtype, peers)
GRIDS = {
    "papers": (list(papers()), "bf16", ["torch.flash", "torch.cudnn"]),
    "fp32": (list(one_head(8, (1024, 2048, 4096, 8192, 16384))), "fp32",
             ["torch.efficient", "torch.math"]),
    "tf32": (list(one_head(8, (1024, 4096, 16384))), "tf32", ["torch.efficient", "torch.math"]),
    "one-head": ([*one_head(1, (256, 1024, 4096, 16384, 65536)), (1, 16, 16384, 64, True)], "bf16",
                 ["torch.flash", "torch.cudnn"]),
    "presets": (presets(), "bf16", ["torch.flash", "torch.cudnn"]),
    "head-dims": (list(head_dims()), "bf16", ["torch.flash", "torch.cudnn"]),
}


def dim_of_v(shape):
    """A shape names it where it is not that of q and k."""
    return shape[5] if shape[5:] else shape[3]


class Clock:
    """Median time of calls on the GPU, the L2 flushed before each, behind a rest as ours has."""

    def __init__(self, budget_ms):
        self.budget_ms = budget_ms
        self.flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")

    def median_ms(self, call):
        time.sleep(REST_S)
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        once = max((time.perf_counter() - start) * 1e3, 1e-3)
        events = []
        for _ in range(max(5, min(40, int(self.budget_ms / once)))):
            self.flush.zero_()
            pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            pair[0].record()
            call()
            pair[1].record()
            events.append(pair)
        torch.cuda.synchronize()
        return statistics.median(before.elapsed_time(after) for before, after in events)


class Torch:
    """One shape in PyTorch."""

    def __init__(self, shape, dtype):
        batch, heads, seqlen, dim, self.causal = shape[:5]
        torch.manual_seed(1)
        self.q, self.k, self.v = (
            torch.randn(batch, seqlen, heads, each, device="cuda", dtype=DTYPES[dtype])
            .transpose(1, 2).requires_grad_() for each in (dim, dim, dim_of_v(shape)))

    def attend(self):
        return F.scaled_dot_product_attention(self.q, self.k, self.v, is_causal=self.causal)

    def time(self, clock, which, backward):
        with sdpa_kernel(BACKENDS[which]):
            with torch.no_grad():
                forward = clock.median_ms(self.attend)
            if not backward:
                return {"forward": forward}
            o = self.attend()
            d_o = torch.randn_like(o)
            backward = clock.median_ms(lambda: torch.autograd.grad(
                o, (self.q, self.k, self.v), d_o, retain_graph=True))
        return {"forward": forward, "backward": backward}


def run_flashlab(arguments, shape, dtype):
    """({pass: ms}, environment) of one `flashlab bench`."""
    batch, heads, seqlen, dim, causal = shape[:5]
    command = [arguments.flashlab, "bench", "--device", "cuda", "--batch", str(batch), "--heads",
               str(heads), "--seqlen", str(seqlen), "--head-dim", str(dim), "--dtype", dtype,
               "--pass", arguments.which, "--json", "-"]
    command += ["--head-dim-v", str(dim_of_v(shape))]
    if arguments.implementation:
        command += ["--implementation", arguments.implementation]
    command += ["--causal=top-left"] if causal else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    document = json.loads(done.stdout) if done.stdout else {"results": [], "environment": None}
    return ({row["pass"]: row["median_ms"] for row in document["results"]
             if row["status"] == "ok"}, document["environment"])


def measure(arguments, clock, shape, dtype, peers):
    """{peer: [row]} of one shape, and the environment that ours saw."""
    rounds, environment, refused = {}, None, {}
    for _ in range(arguments.rounds):
        ours, environment = run_flashlab(arguments, shape, dtype)
        theirs = Torch(shape, dtype)
        for peer in peers:
            if peer in refused:
                continue
            try:
                times = theirs.time(clock, peer, arguments.which == "both")
            except RuntimeError as error:  # out of memory, or a shape that this backend refuses
                refused[peer] = str(error).split("\n", 1)[0][:160]
                torch.cuda.empty_cache()
                continue
            for which, ms in times.items():
                if ours.get(which):
                    rounds.setdefault((peer, which), []).append((ours[which], ms))
        del theirs
        torch.cuda.empty_cache()
    rows = {peer: [] for peer in peers}
    for (peer, which), samples in rounds.items():
        rows[peer].append({
            "pass": which, "dtype": dtype, "batch": shape[0], "heads_q": shape[1],
            "seqlen_q": shape[2], "head_dim": shape[3],
            "head_dim_v": dim_of_v(shape),
            "mask": "causal-top-left" if shape[4] else "none",
            "flashlab_ms": statistics.median(s[0] for s in samples),
            "torch_ms": statistics.median(s[1] for s in samples),
            "torch_over_flashlab": statistics.median(s[1] / s[0] for s in samples),
        })
    for peer, reason in refused.items():
        print(f"{peer} d{shape[3]} S{shape[2]}: {reason}", flush=True)
    return rows, environment


def geometric_mean(ratios):
    return math.exp(statistics.fmean(map(math.log, ratios))) if ratios else None


def summary(peer, rows):
    for which in ("forward", "backward"):
        mean = geometric_mean([r["torch_over_flashlab"] for r in rows if r["pass"] == which])
        if mean:
            print(f"{peer} over ours, {which}, geometric mean: {mean:.3f}x")


def write(arguments, environment, results):
    """A file per peer, with what there is so far: a run that is stopped keeps it."""
    os.makedirs(os.path.dirname(arguments.json) or ".", exist_ok=True)
    for peer, rows in results.items():
        document = {
            "schema": "flashlab.peers/1",
            "peer": f"PyTorch {torch.__version__} {peer}, {torch.cuda.get_device_name()}",
            "command": " ".join(sys.argv),
            "date_utc": datetime.datetime.now(datetime.timezone.utc)
                        .strftime("%Y-%m-%dT%H:%M:%SZ"),
            "rounds": arguments.rounds,
            "environment": environment,
            "results": rows,
        }
        path = f"{arguments.json}-{arguments.grid}-{peer}.json"
        with open(path, "w", encoding="utf-8") as stream:
            json.dump(document, stream, indent=1)
            stream.write("\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--flashlab", default="build/flashlab")
    parser.add_argument("--implementation", default="", help="default: the production one")
    parser.add_argument("--grid", choices=sorted(GRIDS), default="papers")
    parser.add_argument("--peers", default="", help="default: those of the grid")
    parser.add_argument("--pass", dest="which", choices=("both", "forward"), default="both")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--budget-ms", type=float, default=60, help="per measurement")
    parser.add_argument("--json", required=True, help="start of the files' names")
    parser.add_argument("--share", default="0/1", metavar="I/N",
                        help="every N-th shape from the I-th: for one of N GPUs")
    arguments = parser.parse_args()
    shapes, dtype, peers = GRIDS[arguments.grid]
    first, step = map(int, arguments.share.split("/"))
    shapes = shapes[first::step]
    peers = arguments.peers.split(",") if arguments.peers else peers
    # What a user of fp32 gets unless they ask: matrix products round to tf32 only if allowed.
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    clock = Clock(arguments.budget_ms)
    results, environment = {peer: [] for peer in peers}, None
    for shape in shapes:
        rows, environment = measure(arguments, clock, shape, dtype, peers)
        for peer in peers:
            results[peer] += rows[peer]
            for row in rows[peer]:
                print(f"{peer:<16}{row['dtype']} {row['pass']:<8} d{row['head_dim']:<4}"
                      f"S{row['seqlen_q']:<6}{row['mask']:<16}ours {row['flashlab_ms']:9.3f} ms  "
                      f"theirs {row['torch_ms']:9.3f} ms  {row['torch_over_flashlab']:.2f}x",
                      flush=True)
        write(arguments, environment, results)
    for peer in peers:
        summary(peer, results[peer])


if __name__ == "__main__":
    main()
