#!/usr/bin/env python3
"""PyTorch's collectives: gloo on processors, NCCL on GPUs.

    build/flashlab launch -n 2 bench collective --peers torch   # starts it beside every rank
    build/flashlab launch -n 2 -- python3 bench/peers/torch_collectives.py --bytes 1048576,67108864

The protocol of `flashlab bench collective`: all ranks enter a sample together, its time is the
slowest rank's, sizes are those of the whole operation on one rank, calls on a GPU are replayed from
a graph. With --requests, problems come as lines of JSON and a line of times answers each.
"""

import argparse
import json
import os
import statistics
import sys
import time

# No multicast of NVLink, whoever starts this.
os.environ.update(NCCL_NVLS_ENABLE="0", TORCH_SYMM_MEM_DISABLE_MULTICAST="1",
                  NVSHMEM_DISABLE_NVLS="1")

import torch  # noqa: E402  (after the variables)
import torch.distributed as dist  # noqa: E402

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16,
          "bf16": torch.bfloat16}
MOST_CALLS = 20  # of a sample on a GPU: as many as a graph holds


def call_of(operation, size, dtype, device):
    """A function that runs it once, and one that says whether the result is right."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    part = size // dtype.itemsize // ranks
    whole = torch.full((size // dtype.itemsize,), float(rank + 1), dtype=dtype, device=device)
    everybody = ranks * (ranks + 1) / 2
    if operation == "all-reduce":
        # In place: values that stay finite, because zeros stay zeros.
        whole.zero_()
        return lambda: dist.all_reduce(whole), lambda: bool((whole == 0).all())
    if operation == "all-gather":
        out = torch.zeros(part * ranks, dtype=dtype, device=device)
        own = out[part * rank:part * (rank + 1)]
        own.fill_(rank + 1)
        def gathered():
            return all(bool((out[part * r:part * (r + 1)] == r + 1).all()) for r in range(ranks))
        if device.type == "cuda":
            return lambda: dist.all_gather_into_tensor(out, own), gathered
        parts, own = list(out.chunk(ranks)), own.clone()
        return lambda: dist.all_gather(parts, own), gathered
    if operation == "broadcast":
        return lambda: dist.broadcast(whole, 0), lambda: bool((whole == 1).all())
    whole = whole[:part * ranks]
    if operation == "reduce-scatter":
        out = torch.zeros(part, dtype=dtype, device=device)
        return (lambda: dist.reduce_scatter_tensor(out, whole),
                lambda: bool((out == everybody).all()))
    if operation == "all-to-all":
        out = torch.zeros_like(whole)
        return (lambda: dist.all_to_all_single(out, whole),
                lambda: all(bool((out[part * r:part * (r + 1)] == r + 1).all())
                            for r in range(ranks)))
    raise ValueError(f"{operation} is unknown")


class Clock:
    """Milliseconds of calls: of the processor, or by events around a replayed graph."""

    def __init__(self, call, device, graph):
        self.call, self.device, self.graph = call, device, graph
        self.warm, self.captured, self.calls = False, None, 0
        self.gpu = device.type == "cuda"

    def capture(self, calls):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.call()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        time.sleep(0.15)  # its watchdog asks for events meanwhile, which a capture forbids
        self.captured, self.calls = torch.cuda.CUDAGraph(), calls
        with torch.cuda.graph(self.captured, capture_error_mode="thread_local"):
            for _ in range(calls):
                self.call()
        self.captured.replay()
        torch.cuda.synchronize()

    def __call__(self, calls):
        if not self.gpu:
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(calls):
                self.call()
            return (time.perf_counter() - begin) * 1e3 / calls
        if self.graph and self.warm and self.calls != calls:
            self.capture(calls)
        dist.barrier()
        torch.cuda.synchronize()
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        if self.graph and self.warm:
            self.captured.replay()
        else:
            for _ in range(calls):
                self.call()
        last.record()
        torch.cuda.synchronize()
        self.warm = True
        return first.elapsed_time(last) / calls


def measure(call, device, graph, warmup, repeats, seconds, sample_ms=1.0):
    """The slowest rank's time of every sample."""
    clock = Clock(call, device, graph)
    for _ in range(max(2, warmup)):
        took = clock(1)
    # Rank 0 decides for all.
    most = MOST_CALLS if device.type == "cuda" else 100000
    calls = min(most, max(1, int(sample_ms / max(took, 1e-6))))
    plan = torch.tensor([calls, max(3, min(repeats, int(seconds * 1e3 / (took * calls))))],
                        device=device)
    dist.broadcast(plan, 0)
    calls, samples = plan.tolist()
    times = torch.tensor([clock(calls) for _ in range(samples)], dtype=torch.float64,
                         device=device)
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    return times.tolist()


def answer(request, device):
    call, right = call_of(request["operation"], request["bytes"], DTYPES[request["dtype"]], device)
    ms = measure(call, device, request["graph"], request["warmup"], request["repeats"],
                 request["seconds"], request["sample_ms"])
    good = torch.tensor([int(right())], device=device)
    dist.all_reduce(good, op=dist.ReduceOp.MIN)
    return {"ms": ms, "right": bool(good.item())}


def serve(device):
    backend = dist.get_backend()
    said = f"torch {torch.__version__}"
    if backend == "nccl":
        said += ", NCCL " + ".".join(map(str, torch.cuda.nccl.version()))
    print(json.dumps({"ready": said, "backend": backend}), flush=True)
    for line in sys.stdin:
        try:
            result = answer(json.loads(line), device)
        except (RuntimeError, ValueError, NotImplementedError) as error:
            # All ranks of a group meet the same limit; what else went wrong ends the run.
            result = {"error": str(error).split("\n", 1)[0][:200]}
        print(json.dumps(result), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--operation", default="all-reduce,all-gather,broadcast")
    parser.add_argument("--bytes", default="4096,65536,1048576,16777216,67108864")
    parser.add_argument("--dtype", default="fp32", choices=sorted(DTYPES))
    parser.add_argument("--device", default="cpu", help="cpu, or cuda:N of this rank")
    parser.add_argument("--eager", action="store_true", help="no graph on a GPU")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=5, help="a row ends after this long")
    parser.add_argument("--requests", action="store_true", help="problems come by standard input")
    arguments = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("FLASHLAB_THREADS", "1")))
    device = torch.device(arguments.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        dist.init_process_group("gloo")
    if arguments.requests:
        serve(device)
    else:
        for operation in arguments.operation.split(","):
            for size in map(int, arguments.bytes.split(",")):
                request = {"operation": operation, "bytes": size, "dtype": arguments.dtype,
                           "graph": not arguments.eager, "warmup": arguments.warmup,
                           "repeats": arguments.repeats, "seconds": arguments.seconds,
                           "sample_ms": 1.0}
                result = answer(request, device)
                if dist.get_rank() == 0:
                    median = statistics.median(result["ms"])
                    print(json.dumps({"implementation": "torch." + dist.get_backend(),
                                      "torch": torch.__version__, "operation": operation,
                                      "dtype": arguments.dtype, "ranks": dist.get_world_size(),
                                      "bytes": size, "median_ms": median,
                                      "min_ms": min(result["ms"]), "right": result["right"],
                                      "algorithm_gb_per_s": size / median * 1e-6}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
