#!/usr/bin/env python3
"""PyTorch's ways of data parallel training on the models of torch_step.py: DDP, ZeRO-1, FSDP2.

`flashlab launch -n 2 bench parallel --peers torch` runs this text beside every rank in --python,
which needs PyTorch and nothing of FlashLab. Each line of standard input is a request (JSON), each
line of standard output an answer: first {"ready": WORDS}, then for every request {"status",
"message", "step_ms", "gradients_ms", "peak_bytes"}, medians of the slowest rank and the most bytes
that a rank held. Blocks go through torch.compile, the optimizer is the fused AdamW, buckets are
DDP's 25 MB; in bf16 DDP and ZeRO-1 work under autocast, FSDP2 by its policy, which sends bf16.
"""

import contextlib
import gc
import os
import statistics
import sys
import time

# No multicast of NVLink, whoever starts this.
os.environ.update(NCCL_NVLS_ENABLE="0", TORCH_SYMM_MEM_DISABLE_MULTICAST="1",
                  NVSHMEM_DISABLE_NVLS="1")

import torch  # noqa: E402  (after the variables)
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch_step import LOW, failure, make_model, serve  # noqa: E402


class WithLoss(nn.Module):
    """Loss as the module's output: wrappers see one call a step."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens, targets):
        logits = self.model(tokens).float()
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class ParallelStep:
    def __init__(self, m, device):
        low = LOW.get(m["precision"])
        if low is None and m["precision"] not in ("fp32", "tf32"):
            raise ValueError(f"{m['precision']} is not among fp32, tf32, bf16 and fp16")
        torch.set_float32_matmul_precision("highest" if m["precision"] == "fp32" else "high")
        torch.manual_seed(m["seed"])
        with torch.device(device):
            model = make_model({**m, "attention": ""})
        self.device = device
        blocks = model.layers if hasattr(model, "layers") else model.h
        if m["compile"]:
            for block in blocks:
                block.compile(dynamic=False)
        whole = WithLoss(model)
        gpu, self.types = device.type == "cuda", contextlib.nullcontext
        if m["way"] == "fsdp2":
            from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
            policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=low)
            for block in blocks:
                fully_shard(block, mp_policy=policy)
            self.call = fully_shard(whole, mp_policy=policy)
        else:
            if low is not None:
                self.types = lambda: torch.autocast(device.type, low)
            self.call = nn.parallel.DistributedDataParallel(
                whole, device_ids=[device.index] if gpu else None, bucket_cap_mb=25,
                gradient_as_bucket_view=True)
        self.parameters = list(whole.parameters())
        if m["way"] == "zero1":
            from torch.distributed.optim import ZeroRedundancyOptimizer
            self.optimizer = ZeroRedundancyOptimizer(
                self.parameters, optimizer_class=torch.optim.AdamW, lr=1e-4, fused=gpu)
        else:
            self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-4, fused=gpu)
        shape = (m["batch"], m["context"])
        self.tokens, self.targets = (torch.randint(m["vocabulary"], shape, device=device)
                                     for _ in range(2))

    def gradients(self):
        with self.types():
            loss = self.call(self.tokens, self.targets)
        loss.backward()

    def without_optimizer(self):
        self.gradients()
        self.optimizer.zero_grad(set_to_none=True)

    def step(self):
        self.gradients()
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def wait(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def slowest(function, m, device):
    ms = []
    for _ in range(m["warmup"] + m["repeats"]):
        dist.barrier()
        wait(device)
        begin = time.perf_counter()
        function()
        wait(device)
        ms.append((time.perf_counter() - begin) * 1e3)
    each = torch.tensor(ms[m["warmup"]:], dtype=torch.float64, device=device)
    dist.all_reduce(each, op=dist.ReduceOp.MAX)
    return statistics.median(each.tolist())


def measure(m, device):
    torch.compiler.reset()
    gpu = device.type == "cuda"
    if gpu:
        torch.cuda.reset_peak_memory_stats()
    step = ParallelStep(m, device)
    gradients = slowest(step.without_optimizer, m, device)
    whole = slowest(step.step, m, device)
    peak = torch.tensor([torch.cuda.max_memory_allocated() if gpu else 0], device=device)
    dist.all_reduce(peak, op=dist.ReduceOp.MAX)
    return {"status": "ok", "message": "", "step_ms": whole, "gradients_ms": gradients,
            "peak_bytes": peak.item()}


def answer(m, device):
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    try:
        return measure(m, device)
    except Exception as error:  # pylint: disable=broad-except
        return failure(error)


def meet(device):
    """PyTorch's ranks find each other; what they are."""
    words = f"torch {torch.__version__}"
    if device.type == "cuda":
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
        return words + ", NCCL " + ".".join(map(str, torch.cuda.nccl.version()))
    torch.set_num_threads(int(os.environ.get("FLASHLAB_THREADS", "1")))
    dist.init_process_group("gloo")
    return words


def main():
    device = torch.device(sys.argv[1])
    serve(lambda: meet(device), lambda m: answer(m, device))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
