"""Llama, Mistral, Qwen 2 and 3 and Gemma 2 as a plain text of PyTorch: one function of the weights.

Every tensor has the name that `flashlab train` and Hugging Face's files give it. Nothing is fused
and nothing is cached, so that each line can be compared with the description of its family.
"""

import math

import torch

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma2")


def key_heads(m):
    return m.get("key_heads") or m["heads"]


def head_size(m):
    return m.get("head_size") or m["width"] // m["heads"]


def shapes(m):
    """Name and shape of every learned tensor."""
    q, kv, width = m["heads"] * head_size(m), key_heads(m) * head_size(m), m["width"]
    gemma2 = m["family"] == "gemma2"
    out = {"model.embed_tokens.weight": (m["vocabulary"], width), "model.norm.weight": (width,)}
    if not m.get("tied"):
        out["lm_head.weight"] = (m["vocabulary"], width)
    for layer in range(m["layers"]):
        at = f"model.layers.{layer}."
        rows = {"q_proj": (q, width), "k_proj": (kv, width), "v_proj": (kv, width)}
        for name, shape in rows.items():
            out[f"{at}self_attn.{name}.weight"] = shape
            if m["family"] == "qwen2":
                out[f"{at}self_attn.{name}.bias"] = shape[:1]
        out[f"{at}self_attn.o_proj.weight"] = (width, q)
        if m["family"] == "qwen3":
            for name in ("q_norm", "k_norm"):
                out[f"{at}self_attn.{name}.weight"] = (head_size(m),)
        for name in ("gate_proj", "up_proj"):
            out[f"{at}mlp.{name}.weight"] = (m["hidden"], width)
        out[f"{at}mlp.down_proj.weight"] = (width, m["hidden"])
        norms = ["input_layernorm", "post_attention_layernorm"]
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"] if gemma2 else []
        for name in norms:
            out[f"{at}{name}.weight"] = (width,)
    return out


def frequencies(m):
    size = head_size(m)
    f = m["rope_theta"] ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    scaling = m.get("rope_scaling")
    if not scaling:
        return f
    waves = scaling["original"] * f / (2 * math.pi)
    kept = ((waves - scaling["low"]) / (scaling["high"] - scaling["low"])).clamp(0, 1)
    return (1 - kept) * f / scaling["factor"] + kept * f


class Model(torch.nn.Module):
    """logits = model(tokens); `changed` takes one rule away or swaps it, so that a test sees it."""

    def __init__(self, m, changed=""):
        super().__init__()
        self.m, self.changed = m, changed
        # A module's parameters have no dots in their names.
        self.weights = torch.nn.ParameterDict(
            {name.replace(".", "/"): torch.zeros(shape) for name, shape in shapes(m).items()})

    def named(self):
        return [(name.removeprefix("weights.").replace("/", "."), p)
                for name, p in self.named_parameters()]

    def __getitem__(self, name):
        return self.weights[name.replace(".", "/")]

    def rms(self, x, weight):
        one = 1 if self.m["family"] == "gemma2" and self.changed != "one" else 0
        r = torch.rsqrt(x.square().mean(-1, keepdim=True) + self.m["norm_epsilon"])
        return x * r * (one + weight)

    def turned(self, x):  # [batch, heads, tokens, size]
        angles = torch.arange(x.shape[2], dtype=torch.float64)[:, None] * frequencies(self.m)
        c, s = (f(angles).to(x) for f in (torch.cos, torch.sin))
        if self.changed == "pairs":
            a, b = x[..., 0::2], x[..., 1::2]
            return torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2)
        a, b = x.chunk(2, -1)
        return torch.cat((a * c - b * s, a * s + b * c), -1)

    def attention(self, x, at, layer):
        m, size = self.m, head_size(self.m)
        batch, tokens, _ = x.shape

        def heads(name):
            y = x @ self[f"{at}{name}.weight"].T
            if m["family"] == "qwen2" and self.changed != "bias":
                y = y + self[f"{at}{name}.bias"]
            return y.view(batch, tokens, -1, size).transpose(1, 2)

        q, k, v = heads("q_proj"), heads("k_proj"), heads("v_proj")
        if m["family"] == "qwen3" and self.changed != "qk_norm":
            q, k = self.rms(q, self[at + "q_norm.weight"]), self.rms(k, self[at + "k_norm.weight"])
        q, k = self.turned(q), self.turned(k)
        each = m["heads"] // key_heads(m)
        if self.changed == "heads":
            k, v = k.repeat(1, each, 1, 1), v.repeat(1, each, 1, 1)
        else:
            k, v = k.repeat_interleave(each, 1), v.repeat_interleave(each, 1)
        scores = q @ k.transpose(-1, -2)
        if self.changed != "scale":
            scores = scores / math.sqrt(m.get("score_size") or size)
        cap = m.get("attention_softcap")
        if cap and self.changed != "attention_softcap":
            scores = cap * torch.tanh(scores / cap)
        i, j = torch.arange(tokens)[:, None], torch.arange(tokens)
        seen = j <= i
        window = m.get("window") if layer % m.get("window_every", 1) == 0 else 0
        if window:
            seen &= i - j < window + (self.changed == "window")
        p = torch.softmax(scores.masked_fill(~seen.to(x.device), -math.inf), -1)
        return (p @ v).transpose(1, 2).flatten(2) @ self[at + "o_proj.weight"].T

    def mlp(self, x, at):
        gate, up = x @ self[at + "gate_proj.weight"].T, x @ self[at + "up_proj.weight"].T
        if self.m["family"] == "gemma2" and self.changed != "gelu":
            gate = torch.nn.functional.gelu(gate, approximate="tanh")
        else:
            gate = torch.nn.functional.silu(gate)
        return (gate * up) @ self[at + "down_proj.weight"].T

    def forward(self, tokens):
        m, after = self.m, self.m["family"] == "gemma2" and self.changed != "after"
        x = self["model.embed_tokens.weight"][tokens]
        if m["family"] == "gemma2" and self.changed != "embedding":
            x = x * math.sqrt(m["width"])
        for layer in range(m["layers"]):
            at = f"model.layers.{layer}."
            y = self.attention(self.rms(x, self[at + "input_layernorm.weight"]), at + "self_attn.",
                               layer)
            before = "post_attention_layernorm.weight"
            if m["family"] == "gemma2":
                y = self.rms(y, self[at + before]) if after else y
                before = "pre_feedforward_layernorm.weight"
            x = x + y
            y = self.mlp(self.rms(x, self[at + before]), at + "mlp.")
            x = x + (self.rms(y, self[at + "post_feedforward_layernorm.weight"]) if after else y)
        x = self.rms(x, self["model.norm.weight"])
        logits = x @ self["model.embed_tokens.weight" if m.get("tied") else "lm_head.weight"].T
        cap = m.get("logits_softcap")
        if cap and self.changed != "logits_softcap":
            logits = cap * torch.tanh(logits / cap)
        return logits


def loss_of(model, tokens, targets):
    return torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


# What each family has more than the sizes of the command line, so small that every rule shows.
SMALL = {
    "llama": {"key_heads": 1, "head_size": 8,
              "rope_scaling": {"factor": 8.0, "low": 1.0, "high": 4.0, "original": 128}},
    "mistral": {"key_heads": 2, "head_size": 4, "window": 3},
    "qwen2": {"key_heads": 2, "head_size": 4, "tied": True},
    "qwen3": {"key_heads": 2, "head_size": 6, "tied": True},
    "gemma2": {"key_heads": 2, "head_size": 6, "tied": True, "window": 3, "window_every": 2,
               "score_size": 9.0, "attention_softcap": 2.0, "logits_softcap": 3.0}}
