#!/usr/bin/env python3
"""flashlab on NumPy arrays against float64 formulas: types, shapes, masks, strides, outputs."""

import unittest

import core_oracle as oracle
import numpy as np

import flashlab
from flashlab import _core

DTYPES = ("float16", "float32", "float64")


def both(q, k, v, d_o, options):
    """o and the gradients."""
    o, lse = flashlab.attention(q, k, v, return_lse=True, **options)
    return (o, *flashlab.attention_backward(d_o, q, k, v, o, lse, **options))


class Forward(unittest.TestCase):
    def check(self, q, k, v, dtype, **options):
        o, lse = _core.forward(q, k, v, **options)
        expected_o, expected_lse = oracle.forward(q, k, v, **options)
        self.assertIs(type(o), np.ndarray)
        self.assertEqual(o.dtype, q.dtype)
        self.assertEqual(lse.dtype, np.dtype("float64" if dtype == "float64" else "float32"))
        self.assertTrue(o.flags.c_contiguous and lse.flags.c_contiguous)
        oracle.close(self, o, expected_o, dtype, "o")
        # Half-precision scores are summed in single precision.
        oracle.close(self, lse, expected_lse, "float64" if dtype == "float64" else "float32", "lse")

    def test_a_single_key_has_a_probability_of_one_at_large_scores(self):
        """P = exp(S - LSE) in backward: S as forward made it, and nothing lost but the rounding of
        LSE, half a unit in the last place of 256..512."""
        random = np.random.default_rng(5)
        for dim in (64, 100, 128, 224):
            q, k = (random.standard_normal((400, 1, 1, dim)).astype(np.float32) for _ in "qk")
            scores = (q.astype(np.float64) * k).sum(-1, keepdims=True) / np.sqrt(dim)
            q = (q * (random.uniform(256, 512, scores.shape) / scores)).astype(np.float32)
            v = random.standard_normal((400, 1, 1, 8)).astype(np.float32)
            d_o = np.ones_like(v)
            o, lse = flashlab.attention(q, k, v, return_lse=True)
            d_v = flashlab.attention_backward(d_o, q, k, v, o, lse)[2]  # P, of a single pair
            with self.subTest(dim=dim):
                self.assertLess(abs(d_v - 1).max(), 2.0 ** -16 + 1e-6)

    def test_types(self):
        for dtype in DTYPES:
            q, k, v, _ = oracle.arrays(1, 2, 37, 37, 4, 4, 24, dtype=dtype)
            for causal in (None, "top-left"):
                with self.subTest(dtype=dtype, causal=causal):
                    self.check(q, k, v, dtype, causal=causal)

    def test_grouped_heads_unequal_lengths_and_head_dims(self):
        for dtype in DTYPES:
            q, k, v, _ = oracle.arrays(2, 2, 19, 45, 6, 2, 40, 72, dtype=dtype)
            for causal in (None, "top-left", "bottom-right"):
                with self.subTest(dtype=dtype, causal=causal):
                    self.check(q, k, v, dtype, causal=causal)

    def test_scale(self):
        q, k, v, _ = oracle.arrays(3, 1, 9, 9, 2, 2, 16)
        for scale in (0.25, 0, -1.5, np.float32(2), 1):
            with self.subTest(scale=scale):
                self.check(q, k, v, "float32", scale=scale)

    def test_a_scale_keeps_its_bits_in_float64(self):
        q, k, v, d_o = oracle.arrays(3, 1, 9, 13, 2, 2, 16, dtype="float64")
        self.check(q, k, v, "float64", scale=0.1)
        options = dict(scale=0.1)
        gradients = both(q, k, v, d_o, options)[1:]
        for got, expected in zip(gradients, oracle.backward(d_o, q, k, v, **options)):
            oracle.close(self, got, expected, "float64")

    def test_seed_of_dropout_in_an_array(self):
        q, k, v, d_o = oracle.arrays(3, 1, 9, 9, 2, 2, 16)
        numbers = dict(dropout_p=0.5, dropout_seed=(5, -7))
        stored = dict(dropout_p=0.5, dropout_seed=np.array([5, -7]))
        for one, other in zip(both(q, k, v, d_o, numbers), both(q, k, v, d_o, stored)):
            np.testing.assert_array_equal(one, other)
        for wrong in (np.zeros(2, "float32"), np.zeros(3, "int64")):
            with self.assertRaisesRegex((TypeError, ValueError), "dropout_seed"):
                flashlab.attention(q, k, v, dropout_p=0.5, dropout_seed=wrong)

    def test_masks(self):
        q, k, v, _ = oracle.arrays(4, 2, 13, 21, 4, 2, 16)
        rng = np.random.default_rng(5)
        shapes = [(2, 4, 13, 21), (1, 1, 13, 21), (2, 1, 1, 21), (13, 21), (21,), (13, 1), ()]
        for shape in shapes:
            visible = rng.random(shape) > 0.4
            added = rng.standard_normal(shape).astype("float32")
            for mask in (np.asarray(visible), np.asarray(added)):
                with self.subTest(shape=shape, dtype=mask.dtype):
                    self.check(q, k, v, "float32", mask=mask)
                    self.check(q, k, v, "float32", mask=mask, causal="bottom-right")

    def test_broadcast_masks_are_not_copied_into_matrices(self):
        q, k, v, _ = oracle.arrays(6, 1, 8, 8, 1, 1, 16)
        column = np.broadcast_to(np.arange(8).reshape(1, 1, 8, 1) > 2, (1, 1, 8, 8))
        self.check(q, k, v, "float32", mask=column)
        # 64 GiB as a matrix; as its one row nothing.
        long_q, long_k, long_v, _ = oracle.arrays(7, 1, 4, 2**18, 1, 1, 8)
        row = np.broadcast_to(np.ones((1, 1, 1, 1), bool), (1, 1, 4, 2**18))
        self.check(long_q, long_k, long_v, "float32", mask=row)

    def test_empty_rows(self):
        q, k, v, _ = oracle.arrays(8, 1, 9, 4, 2, 2, 16)
        o, lse = _core.forward(q, k, v, causal="bottom-right")
        self.assertTrue((o[:, :5] == 0).all())
        self.assertTrue(np.isneginf(lse[..., :5]).all())
        self.check(q, k, v, "float32", causal="bottom-right")
        self.check(q, k, v, "float32", mask=np.zeros((9, 4), bool))

    def test_empty_extents(self):
        for batch, seqlen_q, seqlen_k in ((0, 3, 3), (1, 0, 3), (1, 3, 0)):
            with self.subTest(batch=batch, seqlen_q=seqlen_q, seqlen_k=seqlen_k):
                q, k, v, _ = oracle.arrays(9, batch, seqlen_q, seqlen_k, 2, 2, 8)
                self.check(q, k, v, "float32")

    def test_strides(self):
        q, k, v, _ = oracle.arrays(10, 2, 16, 16, 4, 4, 24)
        views = {
            "heads first": [np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2)
                            for x in (q, k, v)],
            "packed": list(np.moveaxis(np.stack([q, k, v], axis=2), 2, 0)),
            "every second row": [np.repeat(x, 2, axis=1)[:, ::2] for x in (q, k, v)],
            "reversed": [x[:, ::-1] for x in (q, k, v)],
            "reversed head dim": [x[..., ::-1] for x in (q, k, v)],
            "every second element": [x[..., ::2] for x in (q, k, v)],
            "Fortran order": [np.asfortranarray(x) for x in (q, k, v)],
            "broadcast": [q, np.broadcast_to(k[:1], k.shape), np.broadcast_to(v[:1], v.shape)],
        }
        for name, (a, b, c) in views.items():
            with self.subTest(name):
                self.check(a, b, c, "float32")

    def test_misaligned(self):
        q, k, v, _ = oracle.arrays(11, 1, 8, 8, 2, 2, 24)

        def shifted(x, by):
            memory = np.zeros(x.nbytes + by, np.uint8)[by:]
            view = memory.view() if by % 4 else memory.view(x.dtype)
            if by % 4:  # not even a multiple of an element
                view = np.frombuffer(memory.data, np.dtype("u1")).view()
                view = np.ndarray(x.shape, x.dtype, memory.data)
            view = view.reshape(x.shape)
            view[...] = x
            return view
        for by in (4, 8, 1):
            with self.subTest(by=by):
                self.check(*(shifted(x, by) for x in (q, k, v)), "float32")

    def test_read_only_inputs(self):
        q, k, v, _ = oracle.arrays(12, 1, 8, 8, 2, 2, 16)
        for array in (q, k, v):
            array.flags.writeable = False
        self.check(q, k, v, "float32")

    def test_inputs_keep_their_values(self):
        inputs = oracle.arrays(13, 1, 8, 8, 2, 2, 16)[:3]
        before = [x.copy() for x in inputs]
        _core.forward(*inputs, causal="top-left")
        for x, y in zip(inputs, before):
            np.testing.assert_array_equal(x, y)

    def test_deterministic_repeats(self):
        q, k, v, _ = oracle.arrays(14, 2, 64, 64, 4, 2, 32)
        first = _core.forward(q, k, v, deterministic=True)
        for _ in range(3):
            again = _core.forward(q, k, v, deterministic=True)
            for a, b in zip(first, again):
                np.testing.assert_array_equal(a, b)


class Output(unittest.TestCase):
    def test_out(self):
        q, k, v, _ = oracle.arrays(20, 1, 8, 8, 2, 2, 16, dtype="float16")
        for dtype in ("float16", "float32"):
            out = np.full(q.shape, np.nan, dtype)
            o = flashlab.attention(q, k, v, out=out)
            self.assertIs(o, out)
            oracle.close(self, out, oracle.forward(q, k, v)[0], "float16")

    def test_out_by_strides(self):
        q, k, v, _ = oracle.arrays(21, 1, 8, 8, 2, 2, 16)
        memory = np.full((1, 2, 8, 20), np.nan, "float32")
        flashlab.attention(q, k, v, out=memory.swapaxes(1, 2)[..., :16])
        oracle.close(self, memory.swapaxes(1, 2)[..., :16], oracle.forward(q, k, v)[0], "float32")
        self.assertTrue(np.isnan(memory[..., 16:]).all())

    def test_return_lse(self):
        q, k, v, _ = oracle.arrays(22, 1, 8, 8, 2, 2, 16)
        self.assertIsInstance(flashlab.attention(q, k, v), np.ndarray)
        o, lse = flashlab.attention(q, k, v, causal=True, return_lse=True)
        expected = oracle.forward(q, k, v, "top-left")
        oracle.close(self, o, expected[0], "float32")
        oracle.close(self, lse, expected[1], "float32")


class Backward(unittest.TestCase):
    def check(self, dtype, shape, **options):
        q, k, v, d_o = oracle.arrays(30, *shape, dtype=dtype)
        with_lse = options.pop("d_lse", False)
        o, lse = _core.forward(q, k, v, **options)
        d_lse = np.random.default_rng(31).standard_normal(lse.shape).astype(lse.dtype) \
            if with_lse else None
        got = _core.backward(d_o, q, k, v, o, lse, d_lse=d_lse, **options)
        expected = oracle.backward(d_o, q, k, v, d_lse=d_lse, **options)
        for name, a, b, like in zip(("dq", "dk", "dv"), got, expected, (q, k, v)):
            self.assertEqual(a.dtype, like.dtype)
            oracle.close(self, a, b, dtype, name)

    def test_types(self):
        for dtype in DTYPES:
            for options in ({}, {"causal": "top-left"}, {"d_lse": True},
                            {"causal": "bottom-right", "deterministic": False}):
                with self.subTest(dtype=dtype, **options):
                    options.pop("deterministic", None)
                    self.check(dtype, (2, 23, 31, 4, 2, 24, 40), **options)

    def test_masks(self):
        rng = np.random.default_rng(32)
        for mask in (rng.random((2, 1, 9, 12)) > 0.3, rng.standard_normal((9, 12)).astype("f4")):
            self.check("float32", (2, 9, 12, 4, 4, 16), mask=mask)

    def test_empty_rows_and_extents(self):
        self.check("float32", (1, 9, 4, 2, 2, 16), causal="bottom-right")
        self.check("float32", (1, 0, 4, 2, 2, 16))
        self.check("float32", (1, 4, 0, 2, 2, 16))

    def test_an_expanded_gradient_is_copied(self):
        q, k, v, _ = oracle.arrays(33, 1, 8, 8, 2, 2, 16)
        o, lse = _core.forward(q, k, v)
        expanded = np.broadcast_to(np.float32(2), o.shape)
        got = _core.backward(expanded, q, k, v, o, lse)
        for a, b in zip(got, oracle.backward(expanded, q, k, v)):
            oracle.close(self, a, b, "float32")

    def test_public_name(self):
        q, k, v, d_o = oracle.arrays(34, 1, 8, 8, 2, 2, 16)
        o, lse = flashlab.attention(q, k, v, causal=True, return_lse=True)
        got = flashlab.attention_backward(d_o, q, k, v, o, lse, causal=True)
        for a, b in zip(got, oracle.backward(d_o, q, k, v, causal="top-left")):
            oracle.close(self, a, b, "float32")


class Merge(unittest.TestCase):
    def test_union_of_keys(self):
        q, k, v, _ = oracle.arrays(40, 2, 9, 30, 4, 2, 16)
        parts = [flashlab.attention(q, k[:, a:b], v[:, a:b], return_lse=True)
                 for a, b in ((0, 7), (7, 8), (8, 30))]
        o, lse = flashlab.merge(parts, return_lse=True)
        expected = oracle.forward(q, k, v)
        oracle.close(self, o, expected[0], "float32")
        oracle.close(self, lse, expected[1], "float32")
        half = flashlab.merge(iter(parts), dtype="fp16")
        self.assertEqual(half.dtype, np.float16)
        oracle.close(self, half, expected[0], "float16")

    def test_empty_parts(self):
        o = np.ones((1, 2, 1, 4), "float32")
        lse = np.full((1, 1, 2), -np.inf, "float32")
        merged, merged_lse = flashlab.merge([(o, lse), (o, lse)], return_lse=True)
        self.assertTrue((merged == 0).all() and np.isneginf(merged_lse).all())


if __name__ == "__main__":
    unittest.main()
