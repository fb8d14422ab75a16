#!/usr/bin/env python3
"""What Python adds to a call on a GPU: host time per call, and a whole forward and backward.

  bench/python/overhead.py --flashlab build/flashlab --gpu-costs build/gpu_costs --json FILE

Needs PyTorch with CUDA, flashlab, and for the C++ figures the two programs (gpu_costs:
`cmake --build build --target gpu_costs`). In one run, in turns:

  call       host microseconds of flashlab.attention on GPU tensors, outputs allocated, beside the
             one-call C++ API on the same problems (`gpu_costs call`). Bar: 6 us more
  operator   host microseconds of flashlab.torch's autograd operator beside torch's
             scaled_dot_product_attention, on a problem so small that the GPU is never waited for
  training   forward + backward through autograd, head dim 128, S 4096, causal, bf16, batch 4,
             16 heads, beside `flashlab bench`: CUDA events, the L2 flushed. Bar: 1.03x
"""

import argparse
import datetime
import gc
import json
import os
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import flashlab
import flashlab.torch

ROUNDS, BURST = 31, 100  # as in gpu_costs
FLUSH_BYTES = 256 << 20
BAR_CALL_US, BAR_TRAINING = 6.0, 1.03
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def draw(shape, dtype=torch.bfloat16, grad=False):
    return [torch.randn(shape, device="cuda", dtype=dtype, requires_grad=grad) for _ in range(3)]


def host_us(call, burst=BURST, rounds=ROUNDS):
    """Median over rounds of the host time per call of a burst that the launch queue holds."""
    for _ in range(2 * burst):
        call()
    samples = []
    gc.collect()
    gc.disable()
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(burst):
            call()
        samples.append((time.perf_counter() - start) * 1e6 / burst)
    gc.enable()
    torch.cuda.synchronize()
    return statistics.median(samples)


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1) or not done.stdout:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout


# ---------------------------------------------------------------------------------------------
# flashlab.attention beside the C++ API
# ---------------------------------------------------------------------------------------------

def cpp_host_us(program):
    """{call: {planned_us, one_call_us, ...}} of gpu_costs."""
    lines = [json.loads(line) for line in run([program, "call"]).splitlines()]
    return {line["call"]: line for line in lines if line["measure"] == "host"}


# The forward calls of gpu_costs: one batch, eight heads, S 1024, causal, LSE wanted.
CALLS = {"forward bf16 d128": ("bf16", 128), "forward fp16 d64": ("fp16", 64),
         "forward fp32 ieee d128": ("fp32", 128)}


def measure_calls(program, rounds):
    """Rows of added microseconds; C++ and Python in turns."""
    samples = {}
    for _ in range(rounds):
        theirs = cpp_host_us(program) if program else {}
        for name, (dtype, dim) in CALLS.items():
            q, k, v = draw((1, 1024, 8, dim), DTYPES[dtype])
            python = host_us(lambda: flashlab.attention(q, k, v, causal=True, return_lse=True))
            core = host_us(lambda: flashlab._core.forward(q, k, v, causal="top-left"))
            samples.setdefault(name, []).append(
                (python, theirs.get(name, {}).get("one_call_us"), core))
    rows = []
    for name, pairs in samples.items():
        python, core = (statistics.median(p[i] for p in pairs) for i in (0, 2))
        cpp = statistics.median(c for _, c, _ in pairs) if program else None
        added = statistics.median(p - c for p, c, _ in pairs) if program else None
        rows.append({"call": name, "python_us": python, "extension_us": core, "cpp_us": cpp,
                     "added_us": added,
                     "within_bar": None if added is None else added < BAR_CALL_US})
        print(f"call      {name:<24} flashlab.attention {python:6.2f} us (extension {core:.2f})"
              + ("" if added is None else f"  C++ {cpp:6.2f} us  added {added:5.2f} us "
                 f"(bar {BAR_CALL_US:g})"), flush=True)
    return rows


# ---------------------------------------------------------------------------------------------
# The autograd operator beside SDPA
# ---------------------------------------------------------------------------------------------

def operators():
    """name -> function of q, k, v [batch, seqlen, heads, head_dim]"""
    def torchs(backend):
        def call(q, k, v):
            return F.scaled_dot_product_attention(
                q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        call.backend = backend
        return call

    def dropin(q, k, v):
        return flashlab.torch.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)

    return {
        "flashlab.torch.attention": lambda q, k, v: flashlab.torch.attention(q, k, v, causal=True),
        "flashlab.torch.flash_attn_func":
            lambda q, k, v: flashlab.torch.flash_attn_func(q, k, v, causal=True),
        "flashlab.torch.scaled_dot_product_attention": dropin,
        "torch SDPA, flash": torchs(SDPBackend.FLASH_ATTENTION),
        "torch SDPA, cudnn": torchs(SDPBackend.CUDNN_ATTENTION),
        "torch SDPA, efficient": torchs(SDPBackend.EFFICIENT_ATTENTION),
    }


def measure_operator(name, attend):
    plain, leaves = draw((1, 64, 2, 64)), draw((1, 64, 2, 64), grad=True)
    g = torch.randn_like(attend(*leaves))

    def without_gradients():
        with torch.no_grad():
            attend(*plain)

    def both():
        torch.autograd.grad(attend(*leaves), leaves, g)

    row = {"operator": name, "no_grad_us": host_us(without_gradients),
           "forward_us": host_us(lambda: attend(*leaves)),
           "forward_backward_us": host_us(both, burst=40)}
    print(f"operator  {name:<45} no_grad {row['no_grad_us']:6.1f} us  forward "
          f"{row['forward_us']:6.1f} us  forward + backward {row['forward_backward_us']:6.1f} us",
          flush=True)
    return row


def measure_operators():
    rows = []
    for name, attend in operators().items():
        backend = getattr(attend, "backend", None)
        if backend is None:
            rows.append(measure_operator(name, attend))
            continue
        try:
            with sdpa_kernel(backend):
                rows.append(measure_operator(name, attend))
        except RuntimeError as error:
            print(f"operator  {name}: {str(error).splitlines()[0]}")
    return rows


# ---------------------------------------------------------------------------------------------
# Forward + backward through autograd beside the C++ figures
# ---------------------------------------------------------------------------------------------

class Clock:
    """Median time of calls on the GPU, the L2 flushed before each."""

    def __init__(self):
        self.flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")

    def median_ms(self, call, repeats=30):
        for _ in range(3):
            call()
        pairs = []
        for _ in range(repeats):
            self.flush.zero_()
            pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            pair[0].record()
            call()
            pair[1].record()
            pairs.append(pair)
        torch.cuda.synchronize()
        return statistics.median(a.elapsed_time(b) for a, b in pairs)


def cpp_training(program):
    """({pass: ms}, environment)"""
    document = json.loads(run([
        program, "bench", "--device", "cuda", "--batch", "4", "--heads", "16", "--head-dim", "128",
        "--seqlen", "4k", "--causal=top-left", "--dtype", "bf16", "--pass", "both", "--json", "-"]))
    return ({row["pass"]: row["median_ms"] for row in document["results"]
             if row["status"] == "ok"}, document["environment"])


def python_training(clock):
    q, k, v = draw((4, 4096, 16, 128), grad=True)
    g = torch.randn_like(q)

    def forward():
        return flashlab.torch.attention(q, k, v, causal=True)

    o = forward()
    return {
        "forward": clock.median_ms(forward),
        "backward": clock.median_ms(
            lambda: torch.autograd.grad(o, (q, k, v), g, retain_graph=True)),
        "both": clock.median_ms(lambda: torch.autograd.grad(forward(), (q, k, v), g)),
    }


def measure_training(program, rounds):
    clock, samples, environment = Clock(), [], None
    for _ in range(rounds):
        ours = python_training(clock)
        theirs = {}
        if program:
            theirs, environment = cpp_training(program)
        samples.append((ours, theirs))
    row = {"shape": "batch 4, 16 heads, S 4096, head_dim 128, causal, bf16", "rounds": rounds,
           "python_ms": {name: statistics.median(p[name] for p, _ in samples)
                         for name in ("forward", "backward", "both")},
           "cpp_ms": None, "ratio": None, "within_bar": None}
    line = " ".join(f"{name} {ms:.3f}" for name, ms in row["python_ms"].items())
    print(f"training  through autograd: {line} ms", flush=True)
    if program:
        row["cpp_ms"] = {name: statistics.median(c[name] for _, c in samples)
                         for name in ("forward", "backward")}
        row["ratio"] = statistics.median(p["both"] / (c["forward"] + c["backward"])
                                         for p, c in samples)
        row["within_bar"] = row["ratio"] <= BAR_TRAINING
        print(f"training  C++: forward {row['cpp_ms']['forward']:.3f} backward "
              f"{row['cpp_ms']['backward']:.3f} ms; ratio {row['ratio']:.4f} "
              f"(bar {BAR_TRAINING:g})", flush=True)
    return row, environment


def query_gpu():
    fields = "name,driver_version,clocks.sm,clocks.mem,power.draw"
    done = subprocess.run(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"],
                          capture_output=True, text=True, check=False)
    values = [value.strip() for value in done.stdout.split("\n", 1)[0].split(",")]
    return dict(zip(fields.split(","), values))


def write(path, document):
    if path:
        with open(path, "w", encoding="utf-8") as stream:
            json.dump(document, stream, indent=1)
            stream.write("\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--flashlab", default="build/flashlab", help="'' leaves its figures out")
    parser.add_argument("--gpu-costs", default="build/gpu_costs", help="'' leaves them out")
    parser.add_argument("--rounds", type=int, default=3, help="turns of C++ and Python")
    parser.add_argument("--part", default="call,operator,training")
    parser.add_argument("--json", default="", help="write the result there")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("overhead.py measures a GPU, and PyTorch sees none here")
    for name in (arguments.flashlab, arguments.gpu_costs):
        if name and not os.access(name, os.X_OK):
            raise SystemExit(f"overhead.py: there is no program {name}; build it, or pass ''")
    document = {
        "schema": "flashlab.python_overhead/1", "command":
            f"bench/python/overhead.py --part {arguments.part} --rounds {arguments.rounds}",
        "date_utc": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "gpu": query_gpu(), "torch": torch.__version__, "python": sys.version.split()[0],
        "flashlab": flashlab.__version__, "commit": flashlab.info()["environment"]["commit"]}
    for part in arguments.part.split(","):
        if part == "call":
            document["call"] = measure_calls(arguments.gpu_costs, arguments.rounds)
        elif part == "operator":
            document["operator"] = measure_operators()
        elif part == "training":
            document["training"], document["environment"] = measure_training(
                arguments.flashlab, arguments.rounds)
        else:
            raise SystemExit(f"overhead.py: --part {part}: some of call,operator,training")
        document["gpu_after"] = query_gpu()
        write(arguments.json, document)  # what is measured is kept, whatever comes after it
    checked = [row["within_bar"] for row in document.get("call", [])]
    checked.append(document.get("training", {}).get("within_bar"))
    return 1 if False in checked else 0


if __name__ == "__main__":
    sys.exit(main())
