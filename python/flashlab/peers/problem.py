"""One attention problem, its tensors, and what an implementation may answer instead of figures."""

import dataclasses
import itertools
import math
from typing import Optional, Tuple

import torch

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "tf32": torch.float32,
          "fp16": torch.float16, "bf16": torch.bfloat16}


class Unsupported(Exception):
    """An implementation cannot do the problem; the text says why."""


class OutOfMemory(Exception):
    """It does not fit; the text says what there is and what was asked for."""


@dataclasses.dataclass(frozen=True)
class Cache:
    """Where keys and values lie: [batch, capacity, ...], or pages of so many rows; page_size 0: no
    pages. Queries are [batch, seqlen_q, ...], or ragged."""

    capacity: int
    page_size: int
    dense_queries: bool

    @property
    def pages(self):
        """Of a sequence's row of the table."""
        return -(-self.capacity // self.page_size)


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
    lengths: Optional[Tuple[Tuple[int, int], ...]] = None  # (queries, keys) of ragged sequences
    cache: Optional[Cache] = None

    @classmethod
    def from_request(cls, members):
        values = {field.name: members[field.name] for field in dataclasses.fields(cls)}
        if values["cache"] is not None:
            values["cache"] = Cache(**values["cache"])
        if values["lengths"] is not None:
            values["lengths"] = tuple(tuple(pair) for pair in values["lengths"])
        problem = cls(**values)
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
        """Query i sees keys up to i + this; of sequences of one length."""
        return self.diagonal_of(self.seqlen_q, self.seqlen_k)

    def diagonal_of(self, queries, keys):
        """The same of one sequence."""
        return keys - queries if self.causal == "bottom-right" else 0

    def ragged(self, side):
        """Whether the rows of queries (side 0), or of keys (side 1), lie one sequence behind the
        other."""
        dense = self.cache is not None and (side == 1 or self.cache.dense_queries)
        return self.lengths is not None and not dense

    def one_length(self):
        """Whether all sequences have as many queries, and as many keys: those that there is room
        for."""
        keys = self.seqlen_k if self.cache is None else self.cache.capacity
        return all(pair == (self.seqlen_q, keys) for pair in self.sequences())

    def sequences(self):
        """(queries, keys) of each sequence."""
        return self.lengths or ((self.seqlen_q, self.seqlen_k),) * self.batch

    def offsets(self, side, device):
        """[batch + 1] int32: where sequences of a ragged batch begin; side 0 queries, 1 keys."""
        ends = itertools.accumulate((pair[side] for pair in self.lengths), initial=0)
        return torch.tensor(list(ends), dtype=torch.int32, device=device)

    def key_lengths(self, device):
        """[batch] int32."""
        return torch.tensor([keys for _, keys in self.lengths], dtype=torch.int32, device=device)

    def block_table(self, device):
        """[batch, pages] int32: every page once, out of order. Keys are in the first ones."""
        count = self.batch * self.cache.pages
        step = next(n for n in range(count * 5 // 8 + 1, 2 * count + 2) if math.gcd(n, count) == 1)
        order = (torch.arange(count, dtype=torch.int64, device=device) * step + 1) % count
        return order.to(torch.int32).view(self.batch, self.cache.pages)

    def rows_of(self, tensor, sequence, side):
        """[length, heads, dim]: a sequence's rows of q and o (side 0) or of k and v (side 1)."""
        if side == 1 and self.cache is not None:
            keys = self.lengths[sequence][1]
            if self.cache.page_size == 0:
                return tensor[sequence, :keys]
            pages = self.block_table(tensor.device)[sequence].long()
            return tensor[pages[:-(-keys // self.cache.page_size)]].flatten(0, 1)[:keys]
        if not self.ragged(side):
            return tensor[sequence]
        begin = sum(pair[side] for pair in self.lengths[:sequence])
        return tensor[begin:begin + self.lengths[sequence][side]]

    def visible(self, rows, sequence, device):
        """[len(rows), keys] of bool: which keys the queries `rows` of it see; None: all."""
        if self.causal is None:
            return None
        queries, count = self.sequences()[sequence]
        keys = torch.arange(count, device=device)
        return keys[None, :] <= rows[:, None] + self.diagonal_of(queries, count)

    def pairs(self, sequence):
        """Visible (query, key) pairs of a head of a sequence."""
        queries, keys = self.sequences()[sequence]
        if self.causal is None:
            return queries * keys
        first = self.diagonal_of(queries, keys) + 1
        last = first - 1 + queries  # keys that the last query sees, unclamped
        if first >= 1 and last <= keys:
            return (first + last) * queries // 2
        return sum(min(max(first + i, 0), keys) for i in range(queries))

    def shapes(self):
        """Name -> shape of what both passes read and write."""
        rows_q, rows_k = ((sum(pair[side] for pair in self.lengths),) if self.ragged(side)
                          else (self.batch, (self.seqlen_q, self.seqlen_k)[side])
                          for side in (0, 1))
        if self.cache is not None:
            size = self.cache.page_size
            rows_k = ((self.batch * self.cache.pages, size) if size
                      else (self.batch, self.cache.capacity))
        q = (*rows_q, self.heads_q, self.head_dim)
        k = (*rows_k, self.heads_k, self.head_dim)
        v = (*rows_k, self.heads_k, self.head_dim_v)
        o = (*rows_q, self.heads_q, self.head_dim_v)
        return {"q": q, "k": k, "v": v, "o": o, "dO": o, "dq": q, "dk": k, "dv": v}

    def bytes_of(self, *names):
        size = torch.empty((), dtype=self.torch_dtype).element_size()
        return sum(size * math.prod(self.shapes()[name]) for name in names)

    def lse_bytes(self):
        return 4 * math.prod(self.shapes()["q"][:-1])

    def score_bytes(self):
        """Of the matrices [heads, queries, keys] of all sequences, which a naive formula writes."""
        size = torch.empty((), dtype=self.torch_dtype).element_size()
        return size * self.heads_q * sum(queries * keys for queries, keys in self.sequences())


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
    """q, k, v and d_o, each [batch, seqlen, heads, head_dim] or, of a ragged batch, [rows, heads,
    head_dim], random normal: the same for all."""

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
