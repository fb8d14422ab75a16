#!/usr/bin/env python3
"""PyTorch's collectives beside ours: all-reduce, all-gather and broadcast by gloo.

    build/flashlab launch -n 2 -- python3 bench/peers/torch_collectives.py --bytes 1048576,67108864

The protocol of `flashlab bench collective`: all ranks enter a sample together, its time is the
slowest rank's, sizes are those of the whole operation on one rank. One line of JSON a row.
"""

import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed as dist

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16,
          "bf16": torch.bfloat16}


def call_of(operation, size, dtype, rank, ranks):
    """A function that runs it once."""
    elements = size // torch.empty(0, dtype=dtype).element_size()
    whole = torch.full((elements,), float(rank + 1), dtype=dtype)
    parts = list(torch.empty(elements // ranks * ranks, dtype=dtype).chunk(ranks))
    if operation == "all-reduce":
        # In place: values that stay finite, because zeros stay zeros.
        whole.zero_()
        return lambda: dist.all_reduce(whole)
    if operation == "all-gather":
        own = whole[:elements // ranks].clone()
        return lambda: dist.all_gather(parts, own)
    if operation == "broadcast":
        return lambda: dist.broadcast(whole, 0)
    raise ValueError(f"{operation} is not one of all-reduce, all-gather, broadcast")


def measure(call, warmup, repeats, seconds):
    for _ in range(max(1, warmup)):
        dist.barrier()
        begin = time.perf_counter()
        call()
        took = time.perf_counter() - begin
    # Rank 0 decides for all.
    plan = torch.tensor([max(1, int(1e-3 / took)), 0])
    plan[1] = max(3, min(repeats, int(seconds / (took * int(plan[0])))))
    dist.broadcast(plan, 0)
    calls, samples = int(plan[0]), int(plan[1])
    times = []
    for _ in range(samples):
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - begin) * 1e3 / calls)
    slowest = torch.tensor(times, dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.tolist()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--operation", default="all-reduce,all-gather,broadcast")
    parser.add_argument("--bytes", default="4096,65536,1048576,16777216,67108864")
    parser.add_argument("--dtype", default="fp32", choices=sorted(DTYPES))
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=5, help="a row ends after this long")
    arguments = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("FLASHLAB_THREADS", "1")))
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for operation in arguments.operation.split(","):
        for size in map(int, arguments.bytes.split(",")):
            call = call_of(operation, size, DTYPES[arguments.dtype], rank, ranks)
            ms = measure(call, arguments.warmup, arguments.repeats, arguments.seconds)
            if rank == 0:
                median = statistics.median(ms)
                print(json.dumps({"implementation": "torch.gloo", "torch": torch.__version__,
                                  "operation": operation, "dtype": arguments.dtype,
                                  "ranks": ranks, "bytes": size, "median_ms": median,
                                  "min_ms": min(ms),
                                  "algorithm_gb_per_s": size / median * 1e-6}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
