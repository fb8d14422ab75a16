"""FlashAttention's tests of caches: what a case draws, and its results.

A case's cache lies in entries or in pages of an order of chance; `ref` and `pt` are the formula on
each sequence's own keys, with new keys in their places and turned by torch operations.
"""

import torch

import flash_attention_features as features_of_tests
import flash_attention_math as maths
import flashlab.torch as lib
from flashlab.torch import cute
from flashlab.torch import flash_attn_interface as fa3


def turned(x, first, cos, sin, interleaved, each=True):
    """x [n, heads, dim] by the positions first, first + 1, ... or by `first` alone."""
    if cos is None:
        return x
    at = first + (torch.arange(x.shape[0], device=x.device) if each else 0)
    c, s = (t[at].float().reshape(-1, 1, t.shape[1]) for t in (cos, sin))
    width = 2 * cos.shape[1]
    one = slice(0, width, 2) if interleaved else slice(0, width // 2)
    two = slice(1, width, 2) if interleaved else slice(width // 2, width)
    y, out = x.float(), x.float().clone()
    out[..., one] = y[..., one] * c - y[..., two] * s
    out[..., two] = y[..., one] * s + y[..., two] * c
    return out.to(x.dtype)


class Cache:
    """k and v of every entry, [entries, capacity, heads, dim], and how a call sees them."""

    def __init__(self, k, v, page, device):
        self.k, self.v, self.page, self.table = k, v, page, None
        self.call = [k.clone(), v.clone()]
        if not page:
            return
        entries, capacity = k.shape[:2]
        each = -(-capacity // page)
        table = torch.randperm(3 * entries * each, device=device)[:entries * each]
        self.table = table.reshape(entries, each).int()
        for at, x in enumerate((k, v)):
            pages = torch.zeros(3 * entries * each, page, *x.shape[2:], dtype=x.dtype,
                                device=device)
            padded = torch.nn.functional.pad(x, (0, 0, 0, 0, 0, each * page - capacity))
            pages[table] = padded.reshape(entries * each, page, *x.shape[2:])
            self.call[at] = pages


class KvCase:
    """What a case draws, in the original's ranges."""

    def __init__(self, sweep, case, device, dtype):
        torch.random.manual_seed(0)
        self.case, self.device = case, device
        self.batch, self.seqlen_q, self.capacity, heads, kv_heads, dim, _ = sweep.shape(case)
        by_index = bool(case.get("batch_idx"))
        entries = 2 * self.batch if by_index else self.batch

        def draw(*shape):
            return torch.randn(*shape, device=device, dtype=dtype)

        def integers(low, high, count=self.batch):
            return torch.randint(low, max(high, low + 1), (count,), device=device,
                                 dtype=torch.int32)

        self.counts = (integers(1, self.seqlen_q + 1).tolist() if case.get("varlen_q")
                       else [self.seqlen_q] * self.batch)
        self.q = [draw(n, heads, dim) for n in self.counts]
        new = self.seqlen_q if case.get("new_is_q", 1) else int(integers(1, self.seqlen_q + 1, 1))
        self.new = min(new, self.capacity) if case.get("new_kv") else 0
        self.k, self.v = draw(self.batch, self.new, kv_heads, dim), draw(self.batch, self.new,
                                                                         kv_heads, dim)
        self.cache = Cache(draw(entries, self.capacity, kv_heads, dim),
                           draw(entries, self.capacity, kv_heads, dim), case["page"], device)
        self.causal = bool(case.get("causal", case.get("mask") == "causal"))
        # Queries turn by positions of their own, which the tables must have.
        each = self.causal or case.get("local") or case.get("mask") == "local"
        room = max(self.new, self.seqlen_q if each and case.get("rotary") else 0)
        self.lengths = integers(0 if self.new else 1, self.capacity - room + 1)
        self.padding = (torch.stack([integers(0, int(n) + 1, 1)[0] for n in self.lengths])
                        if case.get("leftpad") else None)
        self.entries = (torch.randperm(entries, device=device)[:self.batch].int() if by_index
                        else None)
        width = int(case.get("rotary", 0) * dim) // 16 * 16 if self.new else 0
        angles = torch.rand(self.capacity + case["page"], width // 2, device=device) * 6.28
        self.cos, self.sin = ((angles.cos().to(dtype), angles.sin().to(dtype)) if width
                              else (None, None))
        self.features = features_of_tests.draw(sweep, case, device)
        if self.features.sinks is not None:
            self.features = self.features._replace(sinks=self.features.sinks.detach())
        if case.get("mask") == "local":
            window = tuple(torch.randint(0, self.capacity, (2,)).tolist())
            self.features = self.features._replace(window=window)
        self.interleaved = bool(case.get("interleaved", 1))

    def entry(self, b):
        return b if self.entries is None else int(self.entries[b])

    def named(self):
        """Arguments by the names that both versions have."""
        window = tuple(-1 if side is None else side for side in self.features.window)
        more = {"causal": self.causal, "window_size": window,
                "cache_seqlens": self.lengths, "cache_batch_idx": self.entries,
                "cache_leftpad": self.padding, "rotary_interleaved": self.interleaved}
        if self.new:
            more.update(k=self.k, v=self.v, rotary_cos=self.cos, rotary_sin=self.sin)
        return more

    def call(self, file):
        """The library's results, one of each sequence."""
        k_cache, v_cache = self.cache.call
        if file == "fa2":
            out = lib.flash_attn_with_kvcache(
                torch.stack(self.q), k_cache, v_cache, block_table=self.cache.table,
                alibi_slopes=self.features.slopes, num_splits=self.case["splits"], **self.named())
            return list(out)
        ragged = bool(self.case.get("varlen_q"))
        ends = torch.tensor([0, *self.counts]).cumsum(0).to(self.device, torch.int32)
        q = torch.cat(self.q) if ragged else torch.stack(self.q)
        if file == "fa3":
            out = fa3.flash_attn_with_kvcache(
                q, k_cache, v_cache, page_table=self.cache.table,
                cu_seqlens_q=ends if ragged else None, **self.named())
        else:
            out, _ = cute.flash_attn_varlen_func(
                q, k_cache, v_cache, cu_seqlens_q=ends if ragged else None,
                seqused_k=self.lengths, page_table=self.cache.table, causal=self.causal,
                window_size=self.features.window, learnable_sink=self.features.sinks)
        return list(out.split(self.counts)) if ragged else list(out)

    def keys(self, b):
        """k and v of a sequence, new ones in their places."""
        entry, length = self.entry(b), int(self.lengths[b])
        k, v = self.cache.k[entry].clone(), self.cache.v[entry].clone()
        k[length:length + self.new] = turned(self.k[b], length, self.cos, self.sin,
                                             self.interleaved)
        v[length:length + self.new] = self.v[b]
        first = 0 if self.padding is None else int(self.padding[b])
        return k[first:length + self.new], v[first:length + self.new], k, v

    def query(self, b):
        each = self.causal or self.features.window != (None, None)
        return turned(self.q[b], int(self.lengths[b]), self.cos, self.sin, self.interleaved, each)

    def written(self, b):
        """What the library's cache has of a sequence now: k and v of all rows."""
        if self.cache.table is None:
            return [x[self.entry(b)] for x in self.cache.call]
        pages = self.cache.table[self.entry(b)].long()
        return [x[pages].flatten(0, 1)[:self.capacity] for x in self.cache.call]


def run_kvcache(sweep, case, device, _):
    """Attention over a cache, new keys written into it; then what the cache holds."""
    dtype = maths.DTYPES[case.get("dtype", "fp16")]
    drawn = KvCase(sweep, case, device, dtype)
    got, exact, plain = drawn.call(sweep.file), [], []
    # Turned keys are rounded once: by the order of the operations twice, at most.
    near = {"rtol": 2e-2 if dtype == torch.bfloat16 else 2e-3, "atol": 1e-3}
    for b in range(drawn.batch):
        k, v, *whole = drawn.keys(b)
        features = drawn.features.of_entry(b, drawn.counts[b], k.shape[0])
        for results, upcast in ((exact, True), (plain, False)):
            results.append(maths.formula(drawn.query(b)[None], k[None], v[None], drawn.causal,
                                         upcast, features)[0])
        for name, x, y in zip("kv", drawn.written(b), whole):
            if not torch.allclose(x, y, **near):
                raise maths.Failed(f"the cache of {name} of sequence {b} is not what was appended")
    return maths.judge([("out", *map(torch.cat, (got, plain, exact)))], sweep.rule)


KINDS = {"kvcache": run_kvcache}
