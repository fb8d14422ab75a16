"""One attention problem, its tensors, and what an implementation may answer instead of figures."""

import dataclasses
import math
from typing import Optional

import torch

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "tf32": torch.float32,
          "fp16": torch.float16, "bf16": torch.bfloat16}


class Unsupported(Exception):
    """An implementation cannot do the problem; the text says why."""


class OutOfMemory(Exception):
    """It does not fit; the text says what there is and what was asked for."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """As in a results file: lengths, heads, `mask` "none", "causal-top-left", ..."""

    dtype: str
    batch: int
    heads_q: int
    heads_k: int
    head_dim: int
    head_dim_v: int
    seqlen_q: int
    seqlen_k: int
    mask: str
    scale: Optional[float] = None
    seed: int = 1

    @classmethod
    def from_request(cls, members):
        problem = cls(**{field.name: members[field.name] for field in dataclasses.fields(cls)})
        if problem.mask not in ("none", "causal-top-left", "causal-bottom-right"):
            raise Unsupported(f"mask {problem.mask}: measured in Python are none, causal-top-left "
                              "and causal-bottom-right")
        return problem

    @property
    def torch_dtype(self):
        return DTYPES[self.dtype]

    @property
    def causal(self):
        """None, "top-left" or "bottom-right"."""
        return None if self.mask == "none" else self.mask[len("causal-"):]

    @property
    def group(self):
        return self.heads_q // self.heads_k

    @property
    def factor(self):
        return 1 / math.sqrt(self.head_dim) if self.scale is None else self.scale

    @property
    def first_diagonal(self):
        """Query i sees keys up to i + this."""
        return self.seqlen_k - self.seqlen_q if self.causal == "bottom-right" else 0

    def visible(self, rows, device):
        """[len(rows), seqlen_k] of bool: which keys the queries `rows` see; None: all."""
        if self.causal is None:
            return None
        keys = torch.arange(self.seqlen_k, device=device)
        return keys[None, :] <= rows[:, None] + self.first_diagonal

    def pairs(self):
        """Visible (query, key) pairs of a head."""
        if self.causal is None:
            return self.seqlen_q * self.seqlen_k
        last = self.first_diagonal + self.seqlen_q  # keys that the last query sees, unclamped
        first = self.first_diagonal + 1
        if first >= 1 and last <= self.seqlen_k:
            return (first + last) * self.seqlen_q // 2
        return sum(min(max(first + i, 0), self.seqlen_k) for i in range(self.seqlen_q))

    def shapes(self):
        """Name -> shape of what both passes read and write, lse as [batch, heads, seqlen]."""
        q = (self.batch, self.seqlen_q, self.heads_q, self.head_dim)
        k = (self.batch, self.seqlen_k, self.heads_k, self.head_dim)
        v = (self.batch, self.seqlen_k, self.heads_k, self.head_dim_v)
        o = (self.batch, self.seqlen_q, self.heads_q, self.head_dim_v)
        return {"q": q, "k": k, "v": v, "o": o, "dO": o, "dq": q, "dk": k, "dv": v}

    def bytes_of(self, *names):
        size = torch.empty((), dtype=self.torch_dtype).element_size()
        return sum(size * math.prod(self.shapes()[name]) for name in names)

    def lse_bytes(self):
        return 4 * self.batch * self.heads_q * self.seqlen_q

    def score_bytes(self):
        """Of one [batch, heads, seqlen_q, seqlen_k] matrix, which a naive formula writes."""
        size = torch.empty((), dtype=self.torch_dtype).element_size()
        return size * self.batch * self.heads_q * self.seqlen_q * self.seqlen_k


def mib(count):
    """1.5 GiB, 20 MiB, 300 B."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= scale:
            return f"{count / scale:.4g} {unit}"
    return f"{count} B"


def accounts(problem, backward):
    """The bytes of every tensor of a pass, in words."""
    names = ("q", "k", "v", "o") + (("dO", "dq", "dk", "dv") if backward else ())
    parts = [f"{name} {mib(problem.bytes_of(name))}" for name in names]
    return ", ".join(parts + [f"lse {mib(problem.lse_bytes())}",
                              f"a matrix of scores would be {mib(problem.score_bytes())}"])


class Tensors:
    """q, k, v and d_o, each [batch, seqlen, heads, head_dim], random normal: the same for all."""

    def __init__(self, problem, device, backward):
        generator = torch.Generator(device=device)
        generator.manual_seed(problem.seed)
        shapes = problem.shapes()

        def normal(name):
            # Drawn in fp32 and rounded, as the command line's own inputs are.
            kind = torch.float64 if problem.dtype == "fp64" else torch.float32
            drawn = torch.randn(shapes[name], generator=generator, device=device, dtype=kind)
            return drawn.to(problem.torch_dtype)

        self.q, self.k, self.v = normal("q"), normal("k"), normal("v")
        self.d_o = normal("dO") if backward else None
