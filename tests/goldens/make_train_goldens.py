#!/usr/bin/env python3
"""Makes tests/goldens/train_*.safetensors:  tests/goldens/make_train_goldens.py FOLDER

A second implementation of both families' forward pass, in NumPy and fp64, after the definitions
that other programs use: Stanford CS336's reference model (RoPE reads neighbouring elements and
writes halves) and Hugging Face's GPT-2 (Conv1D weights, gelu_new). It shares nothing with
src/train. The test reads the weights under their checkpoint names and compares the loss of every
token. Needs NumPy only; the files are small and stay in the tree.
"""

import json
import struct
import sys

import numpy as np

VOCABULARY, CONTEXT, WIDTH, HIDDEN, LAYERS, HEADS, BATCH = 11, 6, 8, 12, 2, 2, 3
EPSILON, THETA = 1e-5, 10000.0


def save(path, tensors):
    header, data = {}, b""
    for name, value in tensors.items():
        raw = np.ascontiguousarray(value, dtype="<f8").tobytes()
        header[name] = {"dtype": "F64", "shape": list(np.shape(value)),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attend(q, k, v):
    """[batch, heads, context, dim] each, causal."""
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    hidden = np.triu(np.ones((CONTEXT, CONTEXT), bool), 1)
    return softmax(np.where(hidden, -np.inf, scores)) @ v


def heads_of(x):
    return x.reshape(BATCH, CONTEXT, HEADS, WIDTH // HEADS).swapaxes(1, 2)


def joined(x):
    return x.swapaxes(1, 2).reshape(BATCH, CONTEXT, WIDTH)


def rope(x):
    dim = x.shape[-1]
    angle = np.arange(CONTEXT)[:, None] * THETA ** (-np.arange(0, dim, 2) / dim)[None]
    even, odd = x[..., 0::2], x[..., 1::2]
    return np.concatenate([np.cos(angle) * even - np.sin(angle) * odd,
                           np.sin(angle) * even + np.cos(angle) * odd], -1)


def course(w, tokens):
    def rms_norm(x, name):
        return w[name] * x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON)

    x = w["token_embeddings.weight"][tokens]
    for i in range(LAYERS):
        at = f"layers.{i}."
        n = rms_norm(x, at + "ln1.weight")
        q, k, v = (heads_of(n @ w[f"{at}attn.{name}_proj.weight"].T) for name in "qkv")
        x = x + joined(attend(rope(q), rope(k), v)) @ w[at + "attn.output_proj.weight"].T
        n = rms_norm(x, at + "ln2.weight")
        gate = n @ w[at + "ffn.w1.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * (n @ w[at + "ffn.w3.weight"].T)) \
            @ w[at + "ffn.w2.weight"].T
    return rms_norm(x, "ln_final.weight") @ w["lm_head.weight"].T


def gpt2(w, tokens):
    def layer_norm(x, name):
        centred = x - x.mean(-1, keepdims=True)
        variance = (centred * centred).mean(-1, keepdims=True)
        return w[name + ".weight"] * centred / np.sqrt(variance + EPSILON) + w[name + ".bias"]

    def conv1d(x, name):
        return x @ w[name + ".weight"] + w[name + ".bias"]

    def gelu_new(x):
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)))

    x = w["wte.weight"][tokens] + w["wpe.weight"]
    for i in range(LAYERS):
        at = f"h.{i}."
        q, k, v = np.split(conv1d(layer_norm(x, at + "ln_1"), at + "attn.c_attn"), 3, -1)
        x = x + conv1d(joined(attend(heads_of(q), heads_of(k), heads_of(v))), at + "attn.c_proj")
        x = x + conv1d(gelu_new(conv1d(layer_norm(x, at + "ln_2"), at + "mlp.c_fc")),
                       at + "mlp.c_proj")
    return layer_norm(x, "ln_f") @ w["wte.weight"].T


def shapes(family):
    out = {}
    if family == "course":
        out["token_embeddings.weight"] = (VOCABULARY, WIDTH)
        for i in range(LAYERS):
            at = f"layers.{i}."
            for name in ("attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.output_proj"):
                out[f"{at}{name}.weight"] = (WIDTH, WIDTH)
            for name in ("ffn.w1", "ffn.w3"):
                out[f"{at}{name}.weight"] = (HIDDEN, WIDTH)
            out[at + "ffn.w2.weight"] = (WIDTH, HIDDEN)
            out[at + "ln1.weight"] = out[at + "ln2.weight"] = (WIDTH,)
        out["ln_final.weight"] = (WIDTH,)
        out["lm_head.weight"] = (VOCABULARY, WIDTH)
        return out
    out["wte.weight"], out["wpe.weight"] = (VOCABULARY, WIDTH), (CONTEXT, WIDTH)
    for i in range(LAYERS):
        at = f"h.{i}."
        for name, extents in (("attn.c_attn", (WIDTH, 3 * WIDTH)), ("attn.c_proj", (WIDTH, WIDTH)),
                              ("mlp.c_fc", (WIDTH, HIDDEN)), ("mlp.c_proj", (HIDDEN, WIDTH))):
            out[f"{at}{name}.weight"], out[f"{at}{name}.bias"] = extents, extents[1:]
        for name in ("ln_1", "ln_2"):
            out[f"{at}{name}.weight"] = out[f"{at}{name}.bias"] = (WIDTH,)
    out["ln_f.weight"] = out["ln_f.bias"] = (WIDTH,)
    return out


def main():
    for family, forward in (("course", course), ("gpt2", gpt2)):
        random = np.random.default_rng(336)
        weights = {name: random.normal(0, 0.7, extents) for name, extents in shapes(family).items()}
        tokens = random.integers(0, VOCABULARY, (BATCH, CONTEXT))
        targets = random.integers(0, VOCABULARY, (BATCH, CONTEXT))
        p = softmax(forward(weights, tokens))
        losses = -np.log(np.take_along_axis(p, targets[..., None], -1)[..., 0])
        save(f"{sys.argv[1]}/train_{family}_weights.safetensors", weights)
        save(f"{sys.argv[1]}/train_{family}_batch.safetensors",
             {"tokens": tokens, "targets": targets, "losses": losses})


if __name__ == "__main__":
    main()
