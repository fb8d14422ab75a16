#!/usr/bin/env python3
"""Caches on NumPy arrays, contiguous and paged, against the formula in NumPy; and appending."""

import unittest

import numpy as np

import flashlab

BATCH, CAPACITY, HEADS, HEADS_K, DIM = 4, 40, 6, 2, 16
LENGTHS = np.array([40, 0, 17, 5], np.int32)


def arrays(seed, queries=3, dtype="float32"):
    """q, k and v of a contiguous cache."""
    rng = np.random.default_rng(seed)
    shapes = ((BATCH, queries, HEADS, DIM), (BATCH, CAPACITY, HEADS_K, DIM),
              (BATCH, CAPACITY, HEADS_K, DIM))
    return tuple(rng.standard_normal(shape).astype(dtype) for shape in shapes)


def in_pages(cache, size, seed=0):
    """The same rows in pages, in an order of chance, and the table; pages of nobody are NaN."""
    per_sequence = -(-CAPACITY // size)
    table = np.random.default_rng(seed).permutation(BATCH * per_sequence + 2)
    table = table[:BATCH * per_sequence].reshape(BATCH, per_sequence).astype(np.int32)
    pages = np.full((BATCH * per_sequence + 2, size, HEADS_K, DIM), np.nan, cache.dtype)
    for b in range(BATCH):
        for row in range(CAPACITY):
            pages[table[b, row // size], row % size] = cache[b, row]
    return pages, table


def attend(q, k, v, causal=False):
    """o and lse of one sequence, [Sq, H, D]."""
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x, group, 1).astype(np.float64) for x in (k, v))
    scores = np.einsum("ihd,jhd->hij", q.astype(np.float64), k) / np.sqrt(q.shape[2])
    if causal:
        i, j = np.ogrid[:q.shape[0], :k.shape[0]]
        scores = np.where(j <= i + k.shape[0] - q.shape[0], scores, -np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        top = np.max(scores, axis=-1, keepdims=True, initial=-1e30)
        p = np.exp(scores - top)
        total = p.sum(-1, keepdims=True)
        lse = (np.log(total) + top)[..., 0]
        o = np.einsum("hij,jhd->ihd", np.where(total > 0, p / total, 0), v)
    return o, np.where(total[..., 0] > 0, lse, -np.inf)


class Caches(unittest.TestCase):
    def check(self, q, k, v, got, lengths=LENGTHS, padding=None, entries=None, causal=False):
        o, lse = got
        for b in range(BATCH):
            e = b if entries is None else entries[b]
            rows = slice(0 if padding is None else padding[b], lengths[b])
            want = attend(q[b], k[e, rows], v[e, rows], causal)
            np.testing.assert_allclose(o[b], want[0], rtol=2e-5, atol=2e-5)
            np.testing.assert_allclose(lse[b], want[1], rtol=2e-5, atol=2e-5)

    def test_contiguous(self):
        q, k, v = arrays(1)
        entries, padding = np.array([2, 2, 0, 3]), np.array([7, 0, 17, 1], np.int64)
        attention = flashlab.attention_with_cache
        self.check(q, k, v, attention(q, k, v, cache_seqlens=LENGTHS, return_lse=True))
        self.check(q, k, v, attention(q, k, v, return_lse=True), [CAPACITY] * BATCH)
        self.check(q, k, v, attention(q, k, v, cache_seqlens=LENGTHS, cache_leftpad=padding,
                                      causal="bottom-right", return_lse=True),
                   padding=padding, causal=True)
        self.check(q, k, v, attention(q, k, v, cache_seqlens=LENGTHS, cache_batch_idx=entries,
                                      return_lse=True), entries=entries)

    def test_pages_of_any_size_and_order(self):
        q, k, v = arrays(2)
        padding = np.array([7, 0, 17, 1], np.int32)
        for size in (1, 3, 16, 64):
            (k_pages, table), (v_pages, _) = in_pages(k, size), in_pages(v, size)
            for extra in ({}, {"cache_leftpad": padding}):
                got = flashlab.attention_with_cache(
                    q, k_pages, v_pages, cache_seqlens=LENGTHS, block_table=table,
                    causal="bottom-right", return_lse=True, **extra)
                self.check(q, k, v, got, padding=extra.get("cache_leftpad"), causal=True)

    def test_ragged_queries_and_an_output(self):
        q, k, v = arrays(3, queries=5)
        (k_pages, table), (v_pages, _) = in_pages(k, 16), in_pages(v, 16)
        counts = [5, 1, 0, 3]
        rows = np.concatenate([q[b, :n] for b, n in enumerate(counts)])
        cu = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        out = np.full_like(rows, -7)
        got = flashlab.attention_with_cache(rows, k_pages, v_pages, cache_seqlens=LENGTHS,
                                            block_table=table, cu_seqlens_q=cu, out=out)
        self.assertIs(got, out)
        for b, n in enumerate(counts):
            want, _ = attend(q[b, :n], k[b, :LENGTHS[b]], v[b, :LENGTHS[b]])
            np.testing.assert_allclose(got[cu[b]:cu[b + 1]], want, rtol=2e-5, atol=2e-5)

    def test_errors_name_the_argument(self):
        q, k, v = arrays(4)
        (k_pages, table), (v_pages, _) = in_pages(k, 16), in_pages(v, 16)
        attention = flashlab.attention_with_cache
        with self.assertRaisesRegex(ValueError, "^seqused_k: got nothing"):
            attention(q, k_pages, v_pages, block_table=table)
        with self.assertRaisesRegex(ValueError, r"^seqused_k\[0\]: got 41"):
            attention(q, k, v, cache_seqlens=LENGTHS + 1)
        with self.assertRaisesRegex(ValueError, r"^block_table\[2, 1\]: got 99"):
            table[2, 1] = 99
            attention(q, k_pages, v_pages, block_table=table, cache_seqlens=LENGTHS)
        with self.assertRaisesRegex(ValueError, "^causal: "):
            attention(q, k, v, cache_seqlens=LENGTHS, causal=True)
        table[2, 1] = 0
        with self.assertRaisesRegex(ValueError, "^cache_batch_idx: got given beside block_table"):
            attention(q, k_pages, v_pages, block_table=table, cache_seqlens=LENGTHS,
                      cache_batch_idx=np.arange(len(LENGTHS), dtype=np.int32))
        with self.assertRaisesRegex(ValueError, r"^k.shape\[2\]: got \d key heads, expected a div"):
            attention(q[:, :, :1], k_pages, v_pages, block_table=table, cache_seqlens=LENGTHS)
        with self.assertRaisesRegex(TypeError, "^block_table"):
            attention(q, k_pages, v_pages, block_table=table.astype(np.int64),
                      cache_seqlens=LENGTHS)


class Append(unittest.TestCase):
    def setUp(self):
        rng = np.random.default_rng(5)
        self.new = [rng.standard_normal((BATCH, 3, HEADS_K, DIM)).astype(np.float32)
                    for _ in range(2)]
        self.lengths = np.array([37, 0, 17, 5], np.int64)

    def turned(self, x, positions, cos, sin, interleaved):
        """x [n, H, D] by its rows' positions."""
        width = 2 * cos.shape[1]
        c, s = cos[positions][:, None], sin[positions][:, None]
        first, second = ((x[..., 0:width:2], x[..., 1:width:2]) if interleaved
                         else (x[..., :width // 2], x[..., width // 2:width]))
        out = x.copy()
        a, b = first * c - second * s, first * s + second * c
        if interleaved:
            out[..., 0:width:2], out[..., 1:width:2] = a, b
        else:
            out[..., :width // 2], out[..., width // 2:width] = a, b
        return out

    def test_rows_go_behind_the_lengths(self):
        angles = np.arange(CAPACITY + 15)[:, None] / np.array([3.0, 7.0, 11.0])
        cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        for size in (0, 3, 16):
            for interleaved in (False, True):
                q, k, v = arrays(6)
                want_k, want_v, want_q = k.copy(), v.copy(), q.copy()
                for b, at in enumerate(self.lengths):
                    at_rows = np.arange(at, at + 3)
                    want_k[b, at_rows] = self.turned(self.new[0][b], at_rows, cos, sin, interleaved)
                    want_v[b, at_rows] = self.new[1][b]
                    want_q[b] = self.turned(q[b], at_rows, cos, sin, interleaved)
                table = None
                if size:
                    (k, table), (v, _) = in_pages(k, size), in_pages(v, size)
                    want_k, want_v = in_pages(want_k, size)[0], in_pages(want_v, size)[0]
                got = flashlab.append_to_cache(
                    k, v, *self.new, self.lengths, block_table=table, rotary_cos=cos,
                    rotary_sin=sin, rotary_interleaved=interleaved, q=q)
                for a, b in zip((k, v, got), (want_k, want_v, want_q)):
                    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)

    def test_errors(self):
        _, k, v = arrays(7)
        with self.assertRaisesRegex(ValueError, r"^cache_seqlens\[0\]: got 38"):
            flashlab.append_to_cache(k, v, *self.new, self.lengths + 1)
        short = np.zeros((CAPACITY - 1, 4), np.float32)
        with self.assertRaisesRegex(ValueError, r"^rotary_cos.shape\[0\]: got \d+, expected at l"):
            flashlab.append_to_cache(k, v, *self.new, self.lengths, rotary_cos=short,
                                     rotary_sin=short)
        k.setflags(write=False)
        with self.assertRaisesRegex(ValueError, "^k_cache: got a read-only array"):
            flashlab.append_to_cache(k, v, *self.new, self.lengths)
        with self.assertRaisesRegex(ValueError, "^q_positions: got 'last'"):
            flashlab.append_to_cache(k, v, *self.new, self.lengths, q_positions="last")


if __name__ == "__main__":
    unittest.main()
