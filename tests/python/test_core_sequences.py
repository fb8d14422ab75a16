#!/usr/bin/env python3
"""Ragged batches and sinks on NumPy arrays, against a loop of dense calls."""

import unittest

import numpy as np

import flashlab

LENGTHS = ((7, 9), (0, 3), (1, 40), (33, 33), (5, 0), (64, 17))


def rows(seed, lengths=LENGTHS, heads=4, heads_k=2, dim=16, dtype="float32"):
    """q, k, v, d_o of all sequences, and where each begins."""
    rng = np.random.default_rng(seed)
    cu_q, cu_k = (np.concatenate([[0], np.cumsum([pair[n] for pair in lengths])]) for n in (0, 1))
    shapes = ((cu_q[-1], heads, dim), (cu_k[-1], heads_k, dim), (cu_k[-1], heads_k, dim),
              (cu_q[-1], heads, dim))
    return (*(rng.standard_normal(shape).astype(dtype) for shape in shapes), cu_q, cu_k)


def both(q, k, v, d_o, **options):
    """o, lse and the gradients."""
    o, lse = flashlab.attention(q, k, v, return_lse=True, **options)
    return (o, lse, *flashlab.attention_backward(d_o, q, k, v, o, lse, **options))


class Sequences(unittest.TestCase):
    def check(self, arrays, used_q=None, used_k=None, mask=None, alibi_slopes=None, **options):
        q, k, v, d_o, cu_q, cu_k = arrays
        ragged = dict(cu_seqlens_q=cu_q.astype(np.int32), cu_seqlens_k=cu_k, seqused_q=used_q,
                      seqused_k=used_k, mask=mask, alibi_slopes=alibi_slopes, **options)
        o, lse, dq, dk, dv, *_ = both(q, k, v, d_o, **ragged)
        self.assertEqual(lse.shape, (q.shape[1], q.shape[0]))
        expected = [np.zeros_like(x) for x in (o, lse, dq, dk, dv)]
        expected[1][:] = -np.inf
        for b, (begin_q, begin_k) in enumerate(zip(cu_q[:-1], cu_k[:-1])):
            end_q = cu_q[b + 1] if used_q is None else begin_q + used_q[b]
            end_k = cu_k[b + 1] if used_k is None else begin_k + used_k[b]
            at_q, at_k = slice(begin_q, end_q), slice(begin_k, end_k)
            more = {}
            if mask is not None:
                more["mask"] = mask[b % mask.shape[0], :, :end_q - begin_q, :end_k - begin_k]
            if alibi_slopes is not None:
                more["alibi_slopes"] = alibi_slopes[b]
            part = both(q[None, at_q], k[None, at_k], v[None, at_k], d_o[None, at_q],
                        **more, **options)
            expected[0][at_q], expected[1][:, at_q], expected[2][at_q] = \
                part[0][0], part[1][0], part[2][0]
            expected[3][at_k], expected[4][at_k] = part[3][0], part[4][0]
        for what, got, want in zip(("o", "lse", "dq", "dk", "dv"), (o, lse, dq, dk, dv), expected):
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5, err_msg=what)

    def test_against_a_loop_of_dense_calls(self):
        rng = np.random.default_rng(1)
        sinks = rng.standard_normal(4).astype(np.float32)
        self.check(rows(1))
        self.check(rows(2), causal="bottom-right", softcap=9.0)
        self.check(rows(3), causal="top-left", deterministic=True)
        self.check(rows(4), window=(12, 3, "bottom-right"), scale=0.2)
        self.check(rows(5), alibi_slopes=rng.random((len(LENGTHS), 4)).astype(np.float32))
        self.check(rows(6), mask=rng.random((len(LENGTHS), 4, 64, 40)) < 0.7)
        self.check(rows(7), mask=rng.standard_normal((1, 1, 64, 40)).astype(np.float32))
        self.check(rows(8), sinks=sinks, causal="bottom-right")
        self.check(rows(9), used_q=np.array([3, 0, 1, 30, 0, 64]),
                   used_k=np.array([9, 2, 7, 0, 0, 17], np.int32))

    def test_dropout_has_the_pattern_of_a_batch(self):
        q, k, v, d_o, cu, _ = rows(10, ((24, 24),) * 3, heads_k=4)
        options = {"dropout_p": 0.3, "dropout_seed": (5, 7)}
        ragged = both(q, k, v, d_o, cu_seqlens_q=cu, cu_seqlens_k=cu, **options)
        dense = both(*(x.reshape(3, 24, 4, 16) for x in (q, k, v, d_o)), **options)
        for n in (0, 2, 3, 4):
            np.testing.assert_allclose(ragged[n], dense[n].reshape(72, 4, 16), rtol=2e-5,
                                       atol=2e-5)
        state = np.array([5, 7], np.int64)
        again = flashlab.attention(q, k, v, cu_seqlens_q=cu, cu_seqlens_k=cu, dropout_p=0.3,
                                   dropout_seed=state)
        np.testing.assert_array_equal(again, ragged[0])

    def test_lengths_of_padded_arrays(self):
        rng = np.random.default_rng(11)
        q, k, v = (rng.standard_normal((3, 20, 2, 8)).astype(np.float32) for _ in "qkv")
        used = np.array([20, 0, 6])
        o = flashlab.attention(q, k, v, seqused_q=used, seqused_k=used, causal="bottom-right")
        one = flashlab.attention(q[2:, :6], k[2:, :6], v[2:, :6], causal=True)
        np.testing.assert_allclose(o[2, :6], one[0], rtol=1e-5, atol=1e-5)
        self.assertFalse(o[1].any() or o[2, 6:].any())

    def test_hints_change_nothing(self):
        q, k, v, _, cu_q, cu_k = rows(12)
        cut = {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k}
        np.testing.assert_array_equal(
            flashlab.attention(q, k, v, **cut),
            flashlab.attention(q, k, v, max_seqlen_q=1, max_seqlen_k=10**9, **cut))

    def test_errors(self):
        q, k, v, _, cu_q, cu_k = rows(13)
        cut = {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k}
        wrong = cu_q.copy()
        wrong[2] = 0
        for error, pattern, options in (
                (ValueError, r"^cu_seqlens_q\[2\]: got 0", cut | {"cu_seqlens_q": wrong}),
                (TypeError, r"^cu_seqlens_k\.dtype", cut | {"cu_seqlens_k": cu_k * 1.0}),
                (ValueError, r"^cu_seqlens_k\.shape\[0\]", cut | {"cu_seqlens_k": cu_k[1:]}),
                (ValueError, r"^causal: .*any lengths.*bottom-right", cut | {"causal": True}),
                (ValueError, r"^window: .*any lengths.*bottom-right", cut | {"window": (1, 1)}),
                (ValueError, r"^max_seqlen_q: got -1", cut | {"max_seqlen_q": -1}),
                (ValueError, r"^seqused_k\[0\]: got 99",
                 cut | {"seqused_k": np.full(len(LENGTHS), 99)}),
                (ValueError, r"^q\.rank: got 4", {"cu_seqlens_q": cu_q, "q": q[None]})):
            with self.subTest(pattern), self.assertRaisesRegex(error, pattern):
                flashlab.attention(options.pop("q", q), k, v, **options)
        with self.assertRaisesRegex(ValueError, "^max_seqlen_k: .*without cu_seqlens"):
            flashlab.attention(q[None], k[None, :, :], v[None], max_seqlen_k=3)


class Sinks(unittest.TestCase):
    def test_gradient(self):
        rng = np.random.default_rng(14)
        q, k, v, d_o = (rng.standard_normal((2, 9, 3, 8)) for _ in "qkvd")
        sinks = rng.standard_normal(3).astype(np.float32)
        o, lse = flashlab.attention(q, k, v, return_lse=True, sinks=sinks)
        *_, d_sinks = flashlab.attention_backward(d_o, q, k, v, o, lse, sinks=sinks)
        for h in range(3):
            step = np.zeros(3, np.float32)
            step[h] = 2.0 ** -10
            up, down = (flashlab.attention(q, k, v, sinks=sinks + s) for s in (step, -step))
            slope = ((up - down) * d_o).sum() / (2 * 2.0 ** -10)
            self.assertAlmostEqual(d_sinks[h], slope, places=4)

    def test_without_sinks_there_are_three_gradients(self):
        q = np.ones((1, 2, 1, 4), np.float32)
        o, lse = flashlab.attention(q, q, q, return_lse=True)
        self.assertEqual(len(flashlab.attention_backward(q, q, q, q, o, lse)), 3)


if __name__ == "__main__":
    unittest.main()
