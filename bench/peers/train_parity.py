#!/usr/bin/env python3
"""The models of `flashlab train` in PyTorch, as a record that `flashlab check step` compares with.

  bench/peers/train_parity.py FOLDER [--family course,gpt2,llama,...] [--size W,H,L,N] [--bf16]

Writes FOLDER/<family>.json and .safetensors: weights under their checkpoint names, tokens and
targets of every step, losses, the gradients of the first step and the weights after the last. All
of it in fp64: rounded to fp32 it serves fp32 too. With --bf16 also the gradients of PyTorch's own
autocast in bf16, whose error is the yardstick of ours. Needs PyTorch and NumPy.
"""

import argparse
import json
import os
import struct
import sys

import numpy as np
import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import torch_step  # noqa: E402  pylint: disable=wrong-import-position
import train_families  # noqa: E402  pylint: disable=wrong-import-position

OPTIMIZER = {"learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8,
             "weight_decay": 0.1, "max_norm": 1.0}
# max |ours - theirs| / max |theirs| of a tensor. Weights in fp32: AdamW divides by the root of a
# second moment, so that a gradient that is nothing but rounding moves a weight as any other does.
TOLERANCE = {"fp64": {"loss": 1e-12, "gradients": 1e-11, "weights": 1e-9},
             "fp32": {"loss": 1e-5, "gradients": 1e-5, "weights": 1e-3}}


def save(path, tensors):
    header, data = {}, b""
    for name, value in sorted(tensors.items()):
        raw = np.ascontiguousarray(value, dtype="<f8").tobytes()
        header[name] = {"dtype": "F64", "shape": list(np.shape(value)),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def checkpoint_names(family, name, value):
    """(name in files, value there) of a parameter of torch_step's models."""
    if family in train_families.FAMILIES:
        return [(name.removeprefix("weights.").replace("/", "."), value)]
    if family == "gpt2":
        for ours, theirs in ((".c_attn", ".attn.c_attn"), (".c_proj", ".attn.c_proj"),
                             (".c_fc", ".mlp.c_fc"), (".mlp_proj", ".mlp.c_proj")):
            if ours + "." in name:
                name = name.replace(ours, theirs)
                value = value.T if name.endswith("weight") else value
                break
        return [(name, value)]
    if ".qkv." in name:
        return [(name.replace("qkv", f"attn.{which}_proj"), part)
                for which, part in zip("qkv", np.split(value, 3))]
    name = name.replace(".output_proj", ".attn.output_proj")
    for which in ("w1", "w2", "w3"):
        name = name.replace(f".{which}.", f".ffn.{which}.")
    return [(name, value)]


def collect(tensors, prefix, family, named):
    for name, value in named:
        # A copy: the optimizer changes the parameters in place.
        array = value.detach().double().cpu().numpy().copy()
        for theirs, part in checkpoint_names(family, name, array):
            tensors[prefix + theirs] = part


def gradients(model, tokens, targets, low=None):
    model.zero_grad(set_to_none=True)
    with torch.autocast(tokens.device.type, low, enabled=low is not None):
        ours = isinstance(model, train_families.Model)
        loss = (train_families if ours else torch_step).loss_of(model, tokens, targets)
    loss.backward()
    return loss.item(), [(name, p.grad.clone()) for name, p in model.named_parameters()]


def record(folder, m, arguments):
    torch.manual_seed(336)
    device = torch.device(arguments.device)
    plain = m["family"] in train_families.FAMILIES
    make = train_families.Model if plain else torch_step.make_model
    model = make(m)
    near_zero = m["family"] == "gemma2"  # it adds the 1 itself
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() > 1:
                p.normal_(0, 0.3 * (12 / m["width"]) ** 0.5 if plain else 0.05)
            else:  # norms near 1, biases near 0, none of them trivial
                zero = near_zero or name.endswith("bias")
                p.copy_((0.0 if zero else 1.0) + 0.1 * torch.randn_like(p))
            p.copy_(p.bfloat16().float())  # exact in every type
    model = model.double().to(device)
    if m["family"] == "course":  # the angles in fp64 too, as ours are
        again = torch_step.angles(m)
        model.cosine, model.sine = (x.to(device) for x in again)
    shape = (arguments.steps, arguments.batch, m["context"])
    tokens, targets = (torch.randint(m["vocabulary"], shape, device=device) for _ in range(2))
    tensors = {"tokens": tokens.double().cpu().numpy(), "targets": targets.double().cpu().numpy()}
    collect(tensors, "weights.", m["family"], model.named_parameters())
    if arguments.bf16:
        single = make(m).to(device)
        single.load_state_dict({k: v.float() for k, v in model.state_dict().items()})
        _, mixed = gradients(single, tokens[0], targets[0], torch.bfloat16)
        collect(tensors, "gradients_bf16.", m["family"], mixed)
    decay = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    o = OPTIMIZER
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": o["weight_decay"]},
                                   {"params": others, "weight_decay": 0.0}], lr=o["learning_rate"],
                                  betas=(o["beta1"], o["beta2"]), eps=o["epsilon"])
    losses = []
    for step in range(arguments.steps):
        loss, now = gradients(model, tokens[step], targets[step])
        losses.append(loss)
        if step == 0:
            collect(tensors, "gradients.", m["family"], now)
        torch.nn.utils.clip_grad_norm_(model.parameters(), o["max_norm"])
        optimizer.step()
    collect(tensors, "after.", m["family"], model.named_parameters())
    keys = ("family", "vocabulary", "context", "width", "hidden", "layers", "heads")
    more = train_families.SMALL.get(m["family"], {})
    head = {"made_by": f"torch {torch.__version__}",
            "model": {key: m[key] for key in (*keys, *more)},
            "batch": arguments.batch, "optimizer": OPTIMIZER, "tolerance": TOLERANCE,
            "losses": losses}
    with open(f"{folder}/{m['family']}.json", "w", encoding="utf-8") as file:
        json.dump(head, file, indent=1)
        file.write("\n")
    save(f"{folder}/{m['family']}.safetensors", tensors)
    print(f"{folder}/{m['family']}.json: losses {losses[0]:.6f} to {losses[-1]:.6f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder")
    parser.add_argument("--family", default="course,gpt2")
    parser.add_argument("--size", default="16,24,2,2", help="width, hidden, layers, heads")
    parser.add_argument("--vocabulary", type=int, default=19)
    parser.add_argument("--context", type=int, default=8)
    parser.add_argument("--batch", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--bf16", action="store_true", help="PyTorch's own bf16 gradients, too")
    arguments = parser.parse_args()
    width, hidden, layers, heads = map(int, arguments.size.split(","))
    os.makedirs(arguments.folder, exist_ok=True)
    for family in arguments.family.split(","):
        more = train_families.SMALL.get(family, {})
        record(arguments.folder, {
            **more, "rope_theta": 10000.0, "norm_epsilon": 1e-5,
            "family": family, "vocabulary": arguments.vocabulary, "context": arguments.context,
            "width": width, "hidden": hidden, "layers": layers, "heads": heads,
            "theta": 10000.0, "epsilon": 1e-5, "attention": ""}, arguments)


if __name__ == "__main__":
    main()
