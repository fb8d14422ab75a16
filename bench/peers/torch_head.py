#!/usr/bin/env python3
"""The language model's head with its loss in PyTorch, compiled, forward and backward:

  bench/peers/torch_head.py ROWS WIDTH VOCABULARY

cross_entropy(x w^T, targets) with the gradients of x [rows, width] and w [vocabulary, width], bf16,
the logits whole. Prints JSON: {"ms", the median of seven runs between events after four; "tflops",
of the three products; "extra_bytes", held at most beyond x and w, their gradients included}.
Needs PyTorch with CUDA and nothing of FlashLab.
"""

import json
import statistics
import sys

import torch
import torch.nn.functional as F

WARMUP, RUNS = 4, 7


def main():
    rows, width, vocabulary = map(int, sys.argv[1:])
    bf16 = {"device": "cuda", "dtype": torch.bfloat16}
    x = torch.randn(rows, width, **bf16).requires_grad_()
    w = (torch.randn(vocabulary, width, **bf16) * width ** -0.5).requires_grad_()
    targets = torch.randint(vocabulary, (rows,), device="cuda")
    loss = torch.compile(lambda x, w: F.cross_entropy((x @ w.T).float(), targets))

    def run():
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        torch.autograd.grad(loss(x, w), (x, w))
        end.record()
        return begin, end

    for _ in range(WARMUP):
        run()
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    events = [run() for _ in range(RUNS)]
    torch.cuda.synchronize()
    ms = statistics.median(begin.elapsed_time(end) for begin, end in events)
    print(json.dumps({"ms": ms, "tflops": 3 * 2 * rows * width * vocabulary / ms / 1e9,
                      "extra_bytes": torch.cuda.max_memory_allocated() - held}))


if __name__ == "__main__":
    main()
