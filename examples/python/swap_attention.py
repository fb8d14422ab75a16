#!/usr/bin/env python3
"""Swaps the attention of a language model, and shows that training does not notice.

  examples/python/swap_attention.py                         a small GPT, 200 steps, CPU or GPU
  examples/python/swap_attention.py --model gpt,gpt2,llama  Hugging Face's models too
  examples/python/swap_attention.py --text book.txt --csv losses.csv

The same model, from the same weights, is trained on the same batches of a text's bytes with three
attentions: `formula` (written down: the whole matrix of scores), `sdpa` (PyTorch's) and `flashlab`.
Their losses are compared at every step, and the time of a step. Exit code 1 if the curves part by
more than --tolerance. Models of Hugging Face need `pip install transformers`; their weights are
random, nothing is downloaded.

The swap is one line in either kind of model: `ATTENTIONS` and `import flashlab.transformers`.
"""

import argparse
import csv
import datetime
import glob
import json
import math
import os
import pathlib
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

import flashlab.torch

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
VOCABULARY = 256  # bytes
WARM_UP = 10      # steps whose time is not counted
LEARNING_RATE_STEPS = 50  # over which the learning rate rises


# ---------------------------------------------------------------------------------------------
# Three attentions for a model of one's own: q, k, v [batch, seqlen, heads, head_dim], causal
# ---------------------------------------------------------------------------------------------

def formula(q, k, v):
    s = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])
    hidden = torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1)
    p = torch.softmax(s.masked_fill(hidden, -math.inf).float(), dim=-1).to(v.dtype)
    return torch.einsum("bhqk,bkhd->bqhd", p, v)


def sdpa(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def flashlab_attention(q, k, v):
    return flashlab.torch.flash_attn_func(q, k, v, causal=True)


ATTENTIONS = {"formula": formula, "sdpa": sdpa, "flashlab": flashlab_attention}


class Block(nn.Module):
    def __init__(self, width, heads, attention):
        super().__init__()
        self.heads, self.attention = heads, attention
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(),
                                 nn.Linear(4 * width, width))

    def forward(self, x):                                  # x [batch, seqlen, width]
        qkv = self.qkv(self.before_attention(x)).unflatten(-1, (3, self.heads, -1))
        o = self.attention(*qkv.unbind(2))                 # o [batch, seqlen, heads, head_dim]
        x = x + self.project(o.flatten(2))
        return x + self.mlp(self.before_mlp(x))


class Gpt(nn.Module):
    """A decoder as in GPT-2: learned positions, layer norm before each part, tied embeddings."""

    def __init__(self, arguments, attention):
        super().__init__()
        width = arguments.width
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(arguments.seqlen, width)
        self.blocks = nn.Sequential(*(Block(width, arguments.heads, attention)
                                      for _ in range(arguments.layers)))
        self.norm = nn.LayerNorm(width)
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions.weight[:tokens.shape[1]]
        return F.linear(self.norm(self.blocks(x)), self.tokens.weight)


# ---------------------------------------------------------------------------------------------
# Hugging Face's models
# ---------------------------------------------------------------------------------------------

class HuggingFace(nn.Module):
    NAMES = {"formula": "eager", "sdpa": "sdpa", "flashlab": "flashlab"}

    def __init__(self, kind, arguments, attention):
        super().__init__()
        from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig
        import flashlab.transformers  # makes attn_implementation="flashlab" work
        a = arguments
        if kind == "gpt2":
            config = GPT2Config(
                vocab_size=VOCABULARY, n_positions=a.seqlen, n_embd=a.width, n_layer=a.layers,
                n_head=a.heads, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0,
                bos_token_id=0, eos_token_id=0)
        else:
            config = LlamaConfig(  # grouped heads
                vocab_size=VOCABULARY, max_position_embeddings=a.seqlen, hidden_size=a.width,
                num_hidden_layers=a.layers, num_attention_heads=a.heads,
                num_key_value_heads=max(1, a.heads // 4), intermediate_size=4 * a.width,
                bos_token_id=0, eos_token_id=0)
        self.model = AutoModelForCausalLM.from_config(
            config, attn_implementation=self.NAMES[attention])

    def forward(self, tokens):
        return self.model(input_ids=tokens, use_cache=False).logits


def make_model(kind, arguments, attention):
    torch.manual_seed(arguments.seed)
    if kind == "gpt":
        return Gpt(arguments, ATTENTIONS[attention]).to(arguments.device)
    return HuggingFace(kind, arguments, attention).to(arguments.device)


# ---------------------------------------------------------------------------------------------
# Training
# ---------------------------------------------------------------------------------------------

def read_text(path):
    """Bytes of the file; without one, of this repository's documents."""
    paths = [path] if path else sorted(
        [os.path.join(ROOT, "README.md"), os.path.join(ROOT, "CONTRIBUTING.md")]
        + glob.glob(os.path.join(ROOT, "docs", "**", "*.md"), recursive=True))
    text = b"".join(pathlib.Path(p).read_bytes() for p in paths)
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def batches(text, arguments):
    """The same for every attention: `steps` x [batch, seqlen + 1] tokens."""
    generator = torch.Generator().manual_seed(arguments.seed)
    last = len(text) - arguments.seqlen - 1
    if last < 1:
        raise SystemExit(f"swap_attention.py: the text has {len(text)} bytes; --seqlen "
                         f"{arguments.seqlen} needs more than {arguments.seqlen + 1}")
    for _ in range(arguments.steps):
        starts = torch.randint(last, (arguments.batch,), generator=generator)
        rows = [text[start:start + arguments.seqlen + 1] for start in starts]
        yield torch.stack(rows).long().to(arguments.device)


def train(kind, attention, text, arguments):
    """(loss of each step, milliseconds of each step)"""
    model = make_model(kind, arguments, attention)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(  # without it, training is chaotic at its start
        optimizer, lambda step: min(1.0, (step + 1) / LEARNING_RATE_STEPS))
    half = arguments.dtype != "fp32"
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(arguments.dtype)
    losses, times = [], []
    for tokens in batches(text, arguments):
        start = time.perf_counter()
        with torch.autocast(arguments.device, dtype=dtype, enabled=half):
            logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())  # waits for the device
        times.append((time.perf_counter() - start) * 1e3)
    return losses, times


def largest_difference(one, other):
    """(difference, step)"""
    return max((abs(a - b) if math.isfinite(a - b) else math.inf, step)
               for step, (a, b) in enumerate(zip(one, other)))


def compare(kind, text, arguments):
    """One row for each attention, and the curves."""
    curves, rows = {}, []
    for attention in ATTENTIONS:
        curves[attention], times = train(kind, attention, text, arguments)
        counted = times[WARM_UP:] or times
        part, step = largest_difference(curves[attention], curves["formula"])
        rows.append({
            "model": kind, "attention": attention, "ms_per_step": statistics.median(counted),
            "first_loss": curves[attention][0],
            "last_loss": statistics.fmean(curves[attention][-10:]),
            "largest_difference": part, "at_step": step})
    return rows, curves


def report(rows, arguments):
    """Prints a model's table; whether its curves agree."""
    slow = {row["attention"]: row["ms_per_step"] for row in rows}
    for row in rows:
        saved = [f"{slow[other] - row['ms_per_step']:+.2f} ms against {other}"
                 for other in ("formula", "sdpa") if other != row["attention"]]
        print(f"{row['model']:<6} {row['attention']:<9} {row['ms_per_step']:9.2f} ms/step   loss "
              f"{row['first_loss']:.4f} -> {row['last_loss']:.4f}   largest difference from "
              f"formula {row['largest_difference']:.1e} (step {row['at_step']})"
              + (f"   saves {', '.join(saved)}" if row["attention"] == "flashlab" else ""))
    ours = next(row for row in rows if row["attention"] == "flashlab")
    agree = ours["largest_difference"] <= arguments.tolerance
    learned = ours["last_loss"] < ours["first_loss"]
    print(f"{ours['model']:<6} the curves {'agree' if agree else 'PART'}: tolerance "
          f"{arguments.tolerance:g} over {arguments.steps} steps"
          + ("" if learned else "; BUT NOTHING WAS LEARNED"), flush=True)
    return agree and learned


def write_results(arguments, rows, curves, good):
    if arguments.csv:
        with open(arguments.csv, "w", encoding="utf-8", newline="") as stream:
            out = csv.writer(stream)
            names = [(kind, attention) for kind in curves for attention in curves[kind]]
            out.writerow(["step", *(f"{kind} {attention}" for kind, attention in names)])
            for step in range(arguments.steps):
                out.writerow([step, *(f"{curves[k][a][step]:.6f}" for k, a in names)])
    if arguments.json:
        gpu = arguments.device == "cuda"
        document = {
            "schema": "flashlab.swap_attention/1",
            "command": f"examples/python/swap_attention.py --model {arguments.model} --steps "
                       f"{arguments.steps} --layers {arguments.layers}",
            "date_utc": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%MZ"),
            "device": torch.cuda.get_device_name() if gpu else "CPU", "torch": torch.__version__,
            "commit": flashlab.info()["environment"]["commit"],
            "options": {name: getattr(arguments, name) for name in
                        ("steps", "batch", "seqlen", "width", "heads", "layers", "dtype",
                         "tolerance", "seed")},
            "agree": good, "results": rows,
            "losses_every_10_steps": {k: {a: [round(x, 5) for x in curve[::10]]
                                          for a, curve in of.items()} for k, of in curves.items()}}
        with open(arguments.json, "w", encoding="utf-8") as stream:
            json.dump(document, stream, indent=1)
            stream.write("\n")


def parse_arguments():
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--model", default="gpt", help="some of gpt,gpt2,llama (default gpt)")
    parser.add_argument("--text", default="", help="a file to learn (default: this repository's "
                        "documents)")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--device", default="cuda" if gpu else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtype", default="bf16" if gpu else "fp32",
                        choices=("fp32", "bf16", "fp16"), help="of the products, by autocast")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seqlen", type=int, default=2048 if gpu else 128)
    parser.add_argument("--width", type=int, default=768 if gpu else 64)
    parser.add_argument("--heads", type=int, default=12 if gpu else 4)
    parser.add_argument("--layers", type=int, default=6 if gpu else 2)
    parser.add_argument("--learning-rate", type=float, default=3e-4 if gpu else 1e-3)
    parser.add_argument("--tolerance", type=float, default=None,
                        help="of a loss, in nats (default: fp32 0.001, half precision 0.05)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--csv", default="", help="write every loss there")
    parser.add_argument("--json", default="", help="write the result there")
    arguments = parser.parse_args()
    if arguments.tolerance is None:
        arguments.tolerance = 0.001 if arguments.dtype == "fp32" else 0.05
    kinds = arguments.model.split(",")
    if not set(kinds) <= {"gpt", "gpt2", "llama"}:
        parser.error(f"--model {arguments.model}: some of gpt, gpt2, llama")
    if arguments.width % arguments.heads or arguments.steps < 1:
        parser.error("--width is a multiple of --heads, and --steps at least 1")
    return arguments, kinds


def main():
    arguments, kinds = parse_arguments()
    text = read_text(arguments.text)
    rows, curves, good = [], {}, True
    for kind in kinds:
        try:
            of_model, curves[kind] = compare(kind, text, arguments)
        except ImportError as error:
            print(f"{kind:<6} left out: {error}; pip install transformers")
            return 2
        rows += of_model
        good = report(of_model, arguments) and good
    write_results(arguments, rows, curves, good)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
