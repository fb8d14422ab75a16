#!/usr/bin/env python3
"""The models of `flashlab train` in PyTorch, and one training step of them under the clock.

`flashlab bench step --peers torch` runs this text in --python, which needs PyTorch and nothing of
FlashLab. Each line of standard input is a request (JSON), each line of standard output an answer:
first {"ready": WORDS}, then for every request {"status", "message", "first_ms", "ms",
"peak_bytes"}. A request {"again": REPEATS} times the step of the one before it once more.
"""

import contextlib
import gc
import json
import os
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn


class RmsNorm(nn.Module):
    def __init__(self, width, epsilon):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x):
        wide = x if x.dtype == torch.float64 else x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.epsilon)
        return (self.weight * wide).to(x.dtype)


def attend(q, k, v, naive):
    """q, k, v [batch, heads, context, head_dim], causal."""
    if not naive:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return torch.softmax(scores.masked_fill(hidden, float("-inf")), -1) @ v


def rotate(x, cosine, sine):
    """RoPE on neighbouring elements, in place of each other.   x [batch, heads, context, dim]"""
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = torch.stack((cosine * even - sine * odd, sine * even + cosine * odd), -1)
    return turned.flatten(-2).to(x.dtype)


def angles(m):
    """Cosine and sine of RoPE in fp64.   [context, head_dim / 2] each"""
    dim = m["width"] // m["heads"]
    frequency = m["theta"] ** -(torch.arange(0, dim, 2).double() / dim)
    angle = torch.outer(torch.arange(m["context"]).double(), frequency)
    return angle.cos(), angle.sin()


class CourseBlock(nn.Module):
    """Pre-norm RMSNorm, RoPE, SwiGLU, no biases. q, k, v are one product, as is usual for speed."""

    def __init__(self, m):
        super().__init__()
        self.heads, self.naive = m["heads"], m["attention"] == "naive"
        width, hidden = m["width"], m["hidden"]
        self.ln1, self.ln2 = RmsNorm(width, m["epsilon"]), RmsNorm(width, m["epsilon"])
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.output_proj = nn.Linear(width, width, bias=False)
        self.w1, self.w3 = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.w2 = nn.Linear(hidden, width, bias=False)

    def forward(self, x, cosine, sine):
        batch, context, width = x.shape
        qkv = self.qkv(self.ln1(x)).view(batch, context, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        o = attend(rotate(q, cosine, sine), rotate(k, cosine, sine), v, self.naive)
        x = x + self.output_proj(o.transpose(1, 2).reshape(batch, context, width))
        y = self.ln2(x)
        return x + self.w2(F.silu(self.w1(y)) * self.w3(y))


class Course(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.token_embeddings = nn.Embedding(m["vocabulary"], m["width"])
        self.layers = nn.ModuleList(CourseBlock(m) for _ in range(m["layers"]))
        self.ln_final = RmsNorm(m["width"], m["epsilon"])
        self.lm_head = nn.Linear(m["width"], m["vocabulary"], bias=False)
        cosine, sine = angles(m)
        self.register_buffer("cosine", cosine.float(), persistent=False)
        self.register_buffer("sine", sine.float(), persistent=False)

    def forward(self, tokens):
        x = self.token_embeddings(tokens)
        for layer in self.layers:
            x = layer(x, self.cosine, self.sine)
        return self.lm_head(self.ln_final(x))


class Gpt2Block(nn.Module):
    """Pre-norm LayerNorm, GELU in its tanh form, biases."""

    def __init__(self, m):
        super().__init__()
        self.heads, self.naive = m["heads"], m["attention"] == "naive"
        width, hidden = m["width"], m["hidden"]
        self.ln_1, self.ln_2 = (nn.LayerNorm(width, m["epsilon"]) for _ in range(2))
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.mlp_proj = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        batch, context, width = x.shape
        qkv = self.c_attn(self.ln_1(x)).view(batch, context, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        o = attend(q, k, v, self.naive)
        x = x + self.c_proj(o.transpose(1, 2).reshape(batch, context, width))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """Learned positions; the head is the embedding's table."""

    def __init__(self, m):
        super().__init__()
        self.wte = nn.Embedding(m["vocabulary"], m["width"])
        self.wpe = nn.Embedding(m["context"], m["width"])
        self.h = nn.ModuleList(Gpt2Block(m) for _ in range(m["layers"]))
        self.ln_f = nn.LayerNorm(m["width"], m["epsilon"])
        nn.init.normal_(self.wte.weight, std=0.02)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe.weight[:tokens.shape[-1]]
        for block in self.h:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight)


def make_model(m):
    if m["family"] not in ("course", "gpt2"):
        raise NotImplementedError(f"PyTorch's text here has no {m['family']}: course or gpt2")
    return (Gpt2 if m["family"] == "gpt2" else Course)(m)


def loss_of(model, tokens, targets):
    logits = model(tokens)
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(wide.flatten(0, 1), targets.flatten())


LOW = {"bf16": torch.bfloat16, "fp16": torch.float16}
WHOLE = {"bf16-pure": torch.bfloat16, "fp64": torch.float64}


class Step:
    """One configuration: model, optimizer, batch."""

    def __init__(self, m):
        self.m, self.device = m, torch.device(m["device"])
        torch.set_float32_matmul_precision("high" if m["precision"] == "tf32" else "highest")
        torch.manual_seed(m["seed"])
        model = make_model(m).to(self.device)
        if m["precision"] in WHOLE:
            model = model.to(WHOLE[m["precision"]])
        self.model = model
        self.forward = torch.compile(loss_of) if m["compile"] else loss_of
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4,
                                           fused=self.device.type == "cuda") \
            if m["mode"] == "step" else None
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=m["precision"] == "fp16")
        shape = (m["accumulate"], m["batch"], m["context"])
        self.tokens, self.targets = (torch.randint(m["vocabulary"], shape, device=self.device)
                                     for _ in range(2))

    def types(self):
        low = LOW.get(self.m["precision"])
        return torch.autocast(self.device.type, low) if low else contextlib.nullcontext()

    def __call__(self):
        learns = self.m["mode"] != "forward"
        with contextlib.nullcontext() if learns else torch.no_grad():
            for tokens, targets in zip(self.tokens, self.targets):
                with self.types():
                    loss = self.forward(self.model, tokens, targets)
                if learns:
                    self.scaler.scale(loss / len(self.tokens)).backward()
        if self.optimizer is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.model.zero_grad(set_to_none=True)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def time_steps(step, count, first=0):
    """The answer with the last `count - first` of `count` steps."""
    gpu, ms = step.device.type == "cuda", []
    if gpu:
        torch.cuda.reset_peak_memory_stats()
    for _ in range(count):
        begin = time.perf_counter()
        step()
        ms.append((time.perf_counter() - begin) * 1e3)
    peak = torch.cuda.max_memory_allocated() if gpu else None
    return {"status": "ok", "message": "", "first_ms": ms[0], "ms": ms[first:],
            "peak_bytes": peak}


def measure(request, kept):
    if "again" in request:
        return time_steps(kept[0], request["again"])
    kept.clear()
    torch.compiler.reset()
    gc.collect()
    if request["device"].startswith("cuda"):
        torch.cuda.empty_cache()
    kept.append(Step(request))
    return time_steps(kept[0], request["warmup"] + request["repeats"], request["warmup"])


def answer(request, kept):
    if request.get("threads", 0) > 0:
        torch.set_num_threads(request["threads"])
    try:
        return measure(request, kept)
    except Exception as error:  # pylint: disable=broad-except
        return {**failure(error), "first_ms": None, "ms": [], "peak_bytes": None}


def failure(error):
    text = " ".join(str(error).split())[:400]
    memory = isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)) or \
        "out of memory" in text.lower() or "can't allocate memory" in text
    return {"status": "oom" if memory else "error", "message": f"{type(error).__name__}: {text}"}


def serve(words, answers):
    """One line of standard output for each of standard input, after a first one with words()."""
    # Libraries that print belong on stderr: stdout carries the answers and nothing else.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(message):
        out.write(json.dumps(message) + "\n")
        out.flush()

    say({"ready": words()})
    for line in sys.stdin:
        say(answers(json.loads(line)))


def main():
    kept = []  # the last request's Step
    serve(lambda: f"Python {sys.version.split()[0]}, torch {torch.__version__}",
          lambda request: answer(request, kept))


if __name__ == "__main__":
    main()
