#!/usr/bin/env python3
"""flash-attn's and FlashAttention-3's functions on caches, against plain torch operations."""

import itertools
import unittest

from torch_cases import Judge

import torch

import flashlab.torch as flash
from flashlab.torch import cute
from flashlab.torch import flash_attn_interface as fa3

BATCH, CAPACITY, HEADS, HEADS_K, DIM = 3, 48, 6, 2, 32


def rotated(x, positions, cos, sin, interleaved):
    """x [n, H, D] by its rows' positions."""
    width = 2 * cos.shape[1]
    c, s = cos[positions][:, None].double(), sin[positions][:, None].double()
    y, out = x.double(), x.double().clone()
    first = slice(0, width, 2) if interleaved else slice(0, width // 2)
    second = slice(1, width, 2) if interleaved else slice(width // 2, width)
    out[..., first] = y[..., first] * c - y[..., second] * s
    out[..., second] = y[..., first] * s + y[..., second] * c
    return out.to(x.dtype)


def attend(q, k, v, causal=False, window=(-1, -1), softcap=0.0, slopes=None, sinks=None):
    """out and lse of one sequence, [Sq, H, D]; masks are aligned bottom-right."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
    scores = torch.einsum("ihd,jhd->hij", q.double(), k) / q.shape[2] ** 0.5
    if softcap:
        scores = softcap * (scores / softcap).tanh()
    at = torch.arange(k.shape[0])[None] - torch.arange(q.shape[0])[:, None]
    at = at - (k.shape[0] - q.shape[0])
    if slopes is not None:
        scores = scores - slopes.double()[:, None, None] * at.abs()
    hidden = torch.zeros_like(at, dtype=torch.bool)
    if causal:
        hidden |= at > 0
    if window[0] >= 0:
        hidden |= at < -window[0]
    if window[1] >= 0:
        hidden |= at > window[1]
    scores = scores.masked_fill(hidden, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.double()[:, None, None].expand(-1, q.shape[0], 1)], -1)
    lse = scores.logsumexp(-1)
    p = (scores - lse[..., None]).exp().nan_to_num(0)[..., :k.shape[0]]
    return torch.einsum("hij,jhd->ihd", p, v), lse


class Cache:
    """Keys and values of BATCH sequences: in entries, or in pages of a size."""

    def __init__(self, page=0, entries=BATCH, dtype=torch.float32, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.page = page
        per_sequence = -(-CAPACITY // page) if page else 0
        count = BATCH * per_sequence + 2 if page else entries
        shape = (count, page or CAPACITY, HEADS_K, DIM)
        self.k, self.v = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
        self.table = None
        if page:
            order = torch.randperm(count, generator=generator)[:BATCH * per_sequence]
            self.table = order.reshape(BATCH, per_sequence).int()

    def rows(self, which, b):
        """All rows of a sequence's pages, or of an entry."""
        cache = self.k if which == "k" else self.v
        return cache[self.table[b].long()].flatten(0, 1) if self.page else cache[b]

    def write(self, which, b, row, value):
        cache = self.k if which == "k" else self.v
        if self.page:
            cache[self.table[b, row // self.page].long(), row % self.page] = value
        else:
            cache[b, row] = value


class KvCache(Judge):
    def check(self, function, *, page=0, queries=1, new=0, causal=False, window=(-1, -1),
              softcap=0.0, rotary=0, interleaved=True, leftpad=False, by_index=False,
              alibi=False, dtype=torch.float32, table="block_table"):
        got_cache = Cache(page, entries=5 if by_index else BATCH, dtype=dtype)
        want_cache = Cache(page, entries=5 if by_index else BATCH, dtype=dtype)
        generator = torch.Generator().manual_seed(1)
        q = torch.randn((BATCH, queries, HEADS, DIM), generator=generator).to(dtype)
        k, v = (torch.randn((BATCH, new, HEADS_K, DIM), generator=generator).to(dtype)
                for _ in range(2))
        lengths = torch.tensor([40, 0, 17], dtype=torch.int32)
        entries = torch.tensor([3, 0, 4], dtype=torch.int32) if by_index else None
        padding = torch.tensor([5, 0, 17], dtype=torch.int32) if leftpad else None
        slopes = torch.rand(HEADS, generator=generator) if alibi else None
        angles = torch.arange(CAPACITY + 20)[:, None] / (3.0 + torch.arange(rotary // 2))
        cos, sin = (angles.cos().to(dtype), angles.sin().to(dtype)) if rotary else (None, None)
        named = {table: got_cache.table, "cache_batch_idx": entries, "cache_leftpad": padding,
                 "causal": causal, "window_size": window, "softcap": softcap,
                 "rotary_interleaved": interleaved, "return_softmax_lse": True}
        if alibi:
            named["alibi_slopes"] = slopes
        if new:
            named.update(k=k, v=v, rotary_cos=cos, rotary_sin=sin)
        out, lse = function(q, got_cache.k, got_cache.v, cache_seqlens=lengths, **named)
        self.assertEqual(lengths.tolist(), [40, 0, 17])
        local = causal or window != (-1, -1)
        for b, length in enumerate(lengths.tolist()):
            entry = b if entries is None else int(entries[b])
            at = torch.arange(length, length + new)
            for i in range(new):
                turned = k[b, i] if not rotary else rotated(k[b, i:i + 1], at[i:i + 1], cos, sin,
                                                            interleaved)[0]
                want_cache.write("k", entry, length + i, turned)
                want_cache.write("v", entry, length + i, v[b, i])
            one = q[b]
            if rotary and new:
                positions = torch.full((queries,), length) + (torch.arange(queries) if local else 0)
                one = rotated(one, positions, cos, sin, interleaved)
            rows = slice(0 if padding is None else int(padding[b]), length + new)
            o, statistic = attend(one, want_cache.rows("k", entry)[rows],
                                  want_cache.rows("v", entry)[rows], causal, window, softcap,
                                  slopes)
            near = 1e-4 if dtype == torch.float32 else 2e-2
            self.assert_close(out[b], o.to(dtype), "out", near)
            self.assert_close(lse[b].nan_to_num(neginf=-1e3),
                              statistic.float().nan_to_num(neginf=-1e3), "lse", near)
        for which in ("k", "v"):
            self.assert_close(getattr(got_cache, which), getattr(want_cache, which), which, near)

    def test_flash_attn(self):
        for page, queries, causal in itertools.product((0, 1, 16), (1, 4), (False, True)):
            with self.subTest(page=page, queries=queries, causal=causal):
                function = flash.flash_attn_with_kvcache
                self.check(function, page=page, queries=queries, causal=causal)
                self.check(function, page=page, queries=queries, causal=causal, new=queries,
                           rotary=16)
                self.check(function, page=page, queries=queries, causal=causal, new=3,
                           rotary=DIM, interleaved=False, softcap=15.0)
                self.check(function, page=page, queries=queries, causal=causal, leftpad=True)
                self.check(function, page=page, queries=queries, new=2, window=(9, 3))
                self.check(function, page=page, queries=queries, causal=causal, alibi=True)
        self.check(flash.flash_attn_with_kvcache, by_index=True, new=2, causal=True, rotary=8)
        self.check(flash.flash_attn_with_kvcache, page=16, new=2, causal=True, rotary=8,
                   queries=2, dtype=torch.bfloat16)

    def test_flash_attention_3(self):
        for page in (0, 3, 16):
            self.check(fa3.flash_attn_with_kvcache, page=page, queries=2, new=2, causal=True,
                       rotary=16, table="page_table")
            self.check(fa3.flash_attn_with_kvcache, page=page, queries=3, window=(7, 0),
                       table="page_table")

    def test_flash_attention_3_ragged(self):
        cache, same = Cache(16), Cache(16)
        generator = torch.Generator().manual_seed(2)
        counts, lengths = [4, 1, 2], torch.tensor([11, 40, 3], dtype=torch.int32)
        cu = torch.tensor([0, 4, 5, 7], dtype=torch.int32)
        q = torch.randn((7, HEADS, DIM), generator=generator)
        k, v = (torch.randn((7, HEADS_K, DIM), generator=generator) for _ in range(2))
        angles = torch.arange(80)[:, None] / (3.0 + torch.arange(8))
        cos, sin, positions = angles.cos(), angles.sin(), torch.tensor([20, 0, 7])
        metadata = fa3.get_scheduler_metadata(BATCH, 4, 60, HEADS, HEADS_K, DIM, lengths)
        out, lse = fa3.flash_attn_with_kvcache(
            q, cache.k, cache.v, k, v, rotary_cos=cos, rotary_sin=sin, cache_seqlens=lengths,
            page_table=cache.table, cu_seqlens_q=cu, cu_seqlens_k_new=cu, max_seqlen_q=4,
            rotary_seqlens=positions, causal=True, num_splits=3, pack_gqa=True, sm_margin=2,
            scheduler_metadata=metadata, return_softmax_lse=True)
        self.assertEqual(tuple(lse.shape), (HEADS, 7))
        for b, n in enumerate(counts):
            rows, at = slice(cu[b], cu[b + 1]), positions[b] + torch.arange(n)
            turned = rotated(k[rows], at, cos, sin, True)
            for i in range(n):
                same.write("k", b, int(lengths[b]) + i, turned[i])
                same.write("v", b, int(lengths[b]) + i, v[rows][i])
            end = int(lengths[b]) + n
            o, statistic = attend(rotated(q[rows], at, cos, sin, True), same.rows("k", b)[:end],
                                  same.rows("v", b)[:end], causal=True)
            self.assert_close(out[rows], o.float(), "out")
            self.assert_close(lse[:, rows], statistic.float(), "lse")

    def test_an_integer_of_lengths(self):
        cache = Cache()
        q = torch.randn(BATCH, 1, HEADS, DIM)
        out = flash.flash_attn_with_kvcache(q, cache.k, cache.v, cache_seqlens=9)
        self.assert_close(out[1], attend(q[1], cache.k[1, :9], cache.v[1, :9])[0].float(), "out")
        whole = flash.flash_attn_with_kvcache(q, cache.k, cache.v)
        self.assert_close(whole[2], attend(q[2], cache.k[2], cache.v[2])[0].float(), "whole")

    def test_the_call_of_a_server(self):
        cache = Cache(16)
        lengths = torch.tensor([33, 7, 16], dtype=torch.int32)
        cu = torch.tensor([0, 2, 2, 5], dtype=torch.int32)
        q, sinks = torch.randn(5, HEADS, DIM), torch.randn(HEADS)
        out = torch.full_like(q, -7)
        got = flash.flash_attn_varlen_func(
            q=q, k=cache.k, v=cache.v, out=out, cu_seqlens_q=cu, max_seqlen_q=3,
            seqused_k=lengths, max_seqlen_k=48, softmax_scale=DIM ** -0.5, causal=True,
            window_size=[-1, -1], softcap=0.0, alibi_slopes=None, block_table=cache.table,
            scheduler_metadata=None, q_descale=None, k_descale=None, v_descale=None,
            num_splits=4, s_aux=sinks)
        self.assertIs(got, out)
        by_offsets = flash.flash_attn_varlen_func(
            q, cache.k, cache.v, cu, torch.tensor([0, 33, 40, 56]), 3, 48, causal=True,
            block_table=cache.table)
        by_torch = flash.varlen_attn(q, cache.k, cache.v, cu, None, 3, 48, window_size=(-1, 0),
                                     enable_gqa=True, seqused_k=lengths, block_table=cache.table)
        by_cute, _ = cute.flash_attn_varlen_func(q, cache.k, cache.v, cu_seqlens_q=cu,
                                                 seqused_k=lengths, page_table=cache.table,
                                                 causal=True)
        for b in (0, 2):
            rows, keys = slice(cu[b], cu[b + 1]), slice(0, int(lengths[b]))
            k, v = cache.rows("k", b)[keys], cache.rows("v", b)[keys]
            o, _ = attend(q[rows], k, v, causal=True, sinks=sinks)
            self.assert_close(got[rows], o.float(), "out")
            o, _ = attend(q[rows], k, v, causal=True)
            for other in (by_offsets, by_torch, by_cute):
                self.assert_close(other[rows], o.float(), "another name")

    def test_combine(self):
        cache, q = Cache(), torch.randn(BATCH, 4, HEADS, DIM)
        parts = [flash.attention(q, cache.k[:, rows], cache.v[:, rows], return_lse=True)
                 for rows in (slice(0, 20), slice(20, 48))]
        empty = torch.full_like(parts[0][0], torch.nan), torch.full_like(parts[0][1], -torch.inf)
        outs = torch.stack([o for o, _ in (*parts, empty)])
        statistics = torch.stack([lse.transpose(1, 2) for _, lse in (*parts, empty)])
        want, want_lse = flash.attention(q, cache.k, cache.v, return_lse=True)
        out, lse = flash.flash_attn_combine(outs, statistics)
        self.assert_close(out, want, "out")
        self.assert_close(lse, want_lse.transpose(1, 2), "lse")
        place = torch.empty(BATCH * 4, HEADS, DIM, dtype=torch.bfloat16)
        got, lse = fa3.flash_attn_combine(outs.flatten(1, 2), statistics.flatten(1, 2), out=place)
        self.assertIs(got, place)
        self.assert_close(got, want.flatten(0, 1).bfloat16(), "rows")
        self.assertEqual(tuple(lse.shape), (BATCH * 4, HEADS))

    def test_what_is_refused(self):
        cache, q = Cache(16), torch.randn(BATCH, 1, HEADS, DIM)
        k = torch.randn(BATCH, 1, HEADS_K, DIM)
        call = flash.flash_attn_with_kvcache
        lengths = torch.tensor([40, 48, 3], dtype=torch.int32)
        for words, error, named in (
                ("^v: got None", ValueError, {"k": k}),
                ("^k: got None", ValueError, {"v": k}),
                (r"^rotary_cos.shape\[0\]: got 47, expected at least 48", ValueError,
                 {"k": k, "v": k, "cache_seqlens": lengths, "rotary_cos": torch.zeros(47, 8),
                  "rotary_sin": torch.zeros(47, 8)}),
                ("^cache_seqlens: got None beside k", ValueError, {"k": k, "v": k}),
                (r"^cache_seqlens\[1\]: got 48", ValueError,
                 {"k": k, "v": k, "cache_seqlens": lengths}),
                ("^rotary_cos: got a table without new keys", ValueError,
                 {"rotary_cos": torch.zeros(60, 8)}),
                ("^cache_seqlens: got nothing", ValueError, {}),
                ("^cache_batch_idx: got given beside block_table", ValueError,
                 {"cache_seqlens": lengths, "cache_batch_idx": lengths})):
            with self.subTest(words=words), self.assertRaisesRegex(error, words):
                call(q, cache.k, cache.v, block_table=cache.table, **named)
        with self.assertRaisesRegex(ValueError, "^k_cache.* 2 key heads, expected a divisor"):
            call(q[:, :, :1], cache.k, cache.v, block_table=cache.table, cache_seqlens=lengths)
        other = torch.ones(33, dtype=torch.int32)
        offsets, pages = torch.arange(BATCH + 1, dtype=torch.int32), (cache.k, cache.v)
        for function, arguments in (
                (fa3.flash_attn_with_kvcache, (q, *pages)),
                (flash.flash_attn_varlen_func, (q[:, 0], *pages, offsets)),
                (cute.flash_attn_varlen_func, (q[:, 0], *pages))):
            with self.assertRaisesRegex(ValueError, "^scheduler_metadata: got .* call it"):
                function(*arguments, scheduler_metadata=other)
        for name in ("qv", "k_descale"):
            with self.assertRaisesRegex(NotImplementedError, f"^{name}: "):
                fa3.flash_attn_with_kvcache(q, cache.k, cache.v, **{name: k})


if __name__ == "__main__":
    unittest.main()
