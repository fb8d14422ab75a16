#!/usr/bin/env python3
"""What windows, softcap, ALiBi and dropout cost, ours beside the peers': one run, in turns.

  bench/peers/features_gpu.py --flashlab build/flashlab --json bench/results/gpu/NAME-features.json

Needs PyTorch with CUDA in the Python that runs it. Windows and dropout are compared with
FlashAttention-2 as PyTorch carries it (aten::_flash_attention_forward), softcap and ALiBi with
FlexAttention, compiled. The figure is a slowdown: a call's time with the feature over the time of
the same call without it, for each library against itself, the median over rounds. The window is
compared with full causal attention of the same length. Features of one shape share the calls
without any; rows are printed and written as they come. --warm compiles FlexAttention's kernels
into Inductor's cache, for one feature and head dim, and measures nothing.
"""

import argparse
import datetime
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import time

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from torch_gpu import Clock

CAP, PROBABILITY, WINDOW = 50.0, 0.1, 1024
WIDTH = 2048  # heads times head dim, as on the papers' grid
# feature: (flags of `flashlab bench`, peer, (batch, tokens of a sequence))
FEATURES = {
    "window": (["--window", f"{WINDOW},0"], "flash-attention-2", (1, 16384)),
    "dropout": (["--dropout", str(PROBABILITY)], "flash-attention-2", (2, 4096)),
    "softcap": (["--softcap", str(CAP)], "flex-attention", (2, 4096)),
    "alibi": (["--alibi"], "flex-attention", (2, 4096)),
}
PASSES = ("forward", "backward")


def shape_of(feature, dim):
    """(batch, heads, seqlen, head_dim)"""
    batch, seqlen = FEATURES[feature][2]
    return batch, WIDTH // dim, seqlen, dim


def run_flashlab(program, implementation, shape, flags):
    """({pass: ms}, environment) of one `flashlab bench`."""
    batch, heads, seqlen, dim = shape
    command = [program, "bench", "--device", "cuda", "--batch", str(batch), "--heads", str(heads),
               "--seqlen", str(seqlen), "--head-dim", str(dim), "--dtype", "bf16", "--causal",
               "--pass", "both", "--json", "-", *flags]
    if implementation:
        command += ["--implementation", implementation]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    document = json.loads(done.stdout)
    return ({row["pass"]: row["median_ms"] for row in document["results"]
             if row["status"] == "ok"}, document["environment"])


def slopes_of(heads):
    """ALiBi's, of a power of two of heads."""
    return torch.tensor([2.0 ** (-8.0 * (h + 1) / heads) for h in range(heads)], device="cuda")


class FlashAttention2:
    """[B, S, H, D] through the operator that PyTorch's flash backend calls."""

    def __init__(self, shape, feature):
        batch, heads, self.seqlen, dim = shape
        self.inputs = [torch.randn(batch, self.seqlen, heads, dim, device="cuda",
                                   dtype=torch.bfloat16).requires_grad_() for _ in range(3)]
        self.probability = PROBABILITY if feature == "dropout" else 0.0
        self.window = {"window_size_left": WINDOW, "window_size_right": 0} \
            if feature == "window" else {}

    def attend(self):
        return torch.ops.aten._flash_attention_forward(
            *self.inputs, None, None, self.seqlen, self.seqlen, self.probability, not self.window,
            False, **self.window)[0]


class FlexAttention:
    """[B, H, S, D], compiled; causal by its block mask."""

    def __init__(self, shape, feature):
        batch, heads, seqlen, dim = shape
        self.inputs = [torch.randn(batch, seqlen, heads, dim, device="cuda", dtype=torch.bfloat16)
                       .transpose(1, 2).requires_grad_() for _ in range(3)]
        slopes = slopes_of(heads)

        def causal(b, h, q, k):
            return q >= k

        def softcap(score, b, h, q, k):
            return CAP * torch.tanh(score / CAP)

        def alibi(score, b, h, q, k):
            return score - slopes[h] * (q - k)

        self.mask = create_block_mask(causal, None, None, seqlen, seqlen, device="cuda")
        self.change = {"softcap": softcap, "alibi": alibi}.get(feature)
        self.compiled = torch.compile(flex_attention, dynamic=False)

    def attend(self):
        return self.compiled(*self.inputs, score_mod=self.change, block_mask=self.mask)


PEERS = {"flash-attention-2": FlashAttention2, "flex-attention": FlexAttention}


def time_peer(peer, clock):
    with torch.no_grad():
        forward = clock.median_ms(peer.attend)
    o = peer.attend()
    d_o = torch.randn_like(o)
    backward = clock.median_ms(
        lambda: torch.autograd.grad(o, peer.inputs, d_o, retain_graph=True))
    return {"forward": forward, "backward": backward}


def groups(features):
    """{(batch, tokens): its features}: calls without a feature are shared."""
    out = {}
    for feature in features:
        out.setdefault(FEATURES[feature][2], []).append(feature)
    return out


def rows_of(shape, features, rounds):
    """Medians over the rounds, each {(library, feature or ""): {pass: ms}}."""
    rows = []
    for feature in features:
        peer = FEATURES[feature][1]
        for which in PASSES:
            samples = [[times[library, name][which] for library in ("flashlab", peer)
                        for name in ("", feature)] for times in rounds]
            columns = [statistics.median(column) for column in zip(*samples)]
            rows.append({
                "feature": feature, "pass": which, "dtype": "bf16", "batch": shape[0],
                "heads_q": shape[1], "seqlen_q": shape[2], "head_dim": shape[3], "mask": "causal",
                "flashlab_without_ms": columns[0], "flashlab_ms": columns[1],
                "flashlab_slowdown": statistics.median(s[1] / s[0] for s in samples),
                "peer": peer, "peer_without_ms": columns[2], "peer_ms": columns[3],
                "peer_slowdown": statistics.median(s[3] / s[2] for s in samples),
                "rounds": len(rounds),
            })
    return rows


def measure(arguments, clock, features, dim, end):
    """Rows of the features of one shape and head dim after every round, and our environment."""
    shape = shape_of(features[0], dim)
    torch._dynamo.reset()  # FlexAttention runs unfused where one function was compiled eight times
    peers = {(FEATURES[feature][1], name): PEERS[FEATURES[feature][1]](shape, name)
             for feature in features for name in ("", feature)}
    rounds, slowest = [], 0
    while len(rounds) < arguments.rounds and (not rounds or time.monotonic() + slowest < end):
        start = time.monotonic()
        times = {}
        for name in ("", *features):
            times["flashlab", name], environment = run_flashlab(
                arguments.flashlab, arguments.implementation, shape,
                FEATURES[name][0] if name else [])
        for key, peer in peers.items():
            times[key] = time_peer(peer, clock)
        rounds.append(times)
        slowest = time.monotonic() - start
        yield rows_of(shape, features, rounds), environment
    del peers
    torch.cuda.empty_cache()


def line_of(row):
    verdict = "within" if row["flashlab_slowdown"] <= row["peer_slowdown"] else "MORE"
    return (f"{row['feature']:<8} d{row['head_dim']:<4}{row['pass']:<9}"
            f"ours {row['flashlab_without_ms']:8.3f} -> {row['flashlab_ms']:8.3f} ms "
            f"{row['flashlab_slowdown']:.3f}x   {row['peer']} "
            f"{row['peer_without_ms']:8.3f} -> {row['peer_ms']:8.3f} ms "
            f"{row['peer_slowdown']:.3f}x   {verdict}, {row['rounds']} rounds")


def write(arguments, environment, rows):
    """What there is so far: a run that is stopped keeps it."""
    os.makedirs(os.path.dirname(arguments.json) or ".", exist_ok=True)
    document = {
        "schema": "flashlab.features/1",
        "peer": f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}",
        "command": " ".join(sys.argv), "implementation": arguments.implementation,
        "date_utc": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "window": WINDOW, "softcap": CAP, "dropout": PROBABILITY, "rounds": arguments.rounds,
        "environment": environment, "results": rows,
    }
    with open(arguments.json, "w", encoding="utf-8") as stream:
        json.dump(document, stream, indent=1)
        stream.write("\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--flashlab", default="build/flashlab")
    parser.add_argument("--implementation", default="", help="default: the production one")
    parser.add_argument("--features", default=",".join(FEATURES))
    parser.add_argument("--head-dims", default="64,128")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budget-ms", type=float, default=60, help="per measurement")
    parser.add_argument("--seconds", type=float, default=3600,
                        help="no shape is begun after them, nor a further round of one")
    parser.add_argument("--json", default="features.json")
    parser.add_argument("--warm", action="store_true")
    arguments = parser.parse_args()
    end = time.monotonic() + arguments.seconds
    clock, rows = Clock(1 if arguments.warm else arguments.budget_ms), []
    dims = [int(dim) for dim in arguments.head_dims.split(",")]
    features = arguments.features.split(",")
    if arguments.warm:
        for feature, dim in itertools.product(features, dims):
            for name in ("", feature):
                time_peer(FlexAttention(shape_of(feature, dim), name), clock)
        return
    for dim, group in itertools.product(dims, groups(features).values()):
        if time.monotonic() > end:
            print(f"no time left for {', '.join(group)} with head dim {dim}", flush=True)
            continue
        more = []
        for more, environment in measure(arguments, clock, group, dim, end):
            write(arguments, environment, rows + more)
        rows += more
        for row in more:
            print(line_of(row), flush=True)
    if rows:
        ratios = [row["flashlab_slowdown"] / row["peer_slowdown"] for row in rows]
        print(f"our slowdown over the peer's, geometric mean: "
              f"{math.exp(statistics.fmean(map(math.log, ratios))):.3f}")


if __name__ == "__main__":
    main()
