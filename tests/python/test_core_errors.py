#!/usr/bin/env python3
"""What flashlab refuses: the exception's type, the argument's name, and a process that goes on."""

import unittest

import core_oracle as oracle
import numpy as np

import flashlab
from flashlab import _core


NAN, INF = float("nan"), float("inf")
WORDS = ("0.1", b"1", [0.1], (1,), 1j, object(), np.ones(2))
# Argument, exception, and what it refuses.
NUMBERS = [
    ("scale", ValueError, (NAN, INF, -INF, 1e300)),
    ("scale", TypeError, WORDS),
    ("softcap", ValueError, (NAN, INF, -INF, -1.0, -1, 0, 0.0, 1e300, 1e-300)),
    ("softcap", TypeError, WORDS),
    ("dropout_p", ValueError, (NAN, INF, -INF, -1.0, -1, 1, 1.0, 1.5, True, 1 - 1e-12)),
    ("dropout_p", TypeError, (None, *WORDS)),
    ("dropout_seed", ValueError, (None, (1,), (1, 2, 3), (1.5, 2), (NAN, 1), ("1", "2"),
                                  np.array([1, 2, 3]))),
    ("dropout_seed", TypeError, (3, "ab", np.array([1, 2], "int32"), np.array([1.0, 2.0]),
                                 np.array([1, 2], "uint64"))),
    ("window", ValueError, (3, "ab", (1,), (1.5, 2), (NAN, 1), (None, 1), ("1", "2"), (-2, 0),
                            (2**70, 0), (1, 2, "top"), (1, 2, None), (1, 2, 3, 4))),
    ("alibi_slopes", TypeError, (1.0, "a", [0.1] * 4, np.ones(4), np.ones(4, "int64"))),
    ("alibi_slopes", ValueError, (np.ones(3, "float32"), np.ones((3, 4), "float32"))),
    ("precision", ValueError, (None, 1, "fp32", b"ieee")),
]


class Errors(unittest.TestCase):
    def setUp(self):
        self.q, self.k, self.v, self.d_o = oracle.arrays(1, 2, 8, 12, 4, 2, 16)

    def tearDown(self):
        oracle.close(self, flashlab.attention(self.q, self.k, self.v),
                     oracle.forward(self.q, self.k, self.v)[0], "float32")

    def refused(self, kind, words, **changes):
        arguments = {"q": self.q, "k": self.k, "v": self.v, **changes}
        q, k, v = (arguments.pop(name) for name in "qkv")
        with self.subTest(words=words), self.assertRaises(kind) as raised:
            flashlab.attention(q, k, v, **arguments)
        text = str(raised.exception)
        for word in words:
            self.assertIn(word, text)

    def test_shapes(self):
        self.refused(ValueError, ["q.rank", "3", "[batch, seqlen_q"], q=self.q[0])
        self.refused(ValueError, ["q.shape", "5 dimensions"], q=self.q[None])
        self.refused(ValueError, ["k.shape[3]", "16"], k=self.k[..., :8])
        self.refused(ValueError, ["k.shape[2]", "divisor"], k=self.k.repeat(3, axis=2)[:, :, :3])
        self.refused(ValueError, ["v.shape[1]", "12"], v=self.v[:, :11])
        self.refused(ValueError, ["k.shape[0]", "2"], k=self.k[:1])
        self.refused(ValueError, ["q.shape[3]", "0"], q=self.q[..., :0])
        self.refused(ValueError, ["mask.shape[3]", "12"], mask=np.ones((8, 11), bool))
        self.refused(ValueError, ["mask.shape", "5 dimensions"], mask=np.ones((1, 1, 1, 8, 12)))

    def test_types(self):
        self.refused(TypeError, ["q.dtype", "int64"], q=self.q.astype("int64"))
        self.refused(TypeError, ["q.dtype", "complex64"], q=self.q.astype("complex64"))
        self.refused(TypeError, ["k.dtype", "fp16"], k=self.k.astype("float16"))
        self.refused(TypeError, ["q.dtype", "byte order"], q=self.q.astype(">f4"))
        self.refused(TypeError, ["mask.dtype"], mask=np.ones((8, 12), "int32"))
        self.refused(TypeError, ["mask.dtype", "fp64"], mask=np.ones((8, 12)))
        self.refused(TypeError, ["q.dtype", "object"], q=self.q.astype(object))

    def test_no_arrays(self):
        for name in ("q", "k", "v", "mask"):
            self.refused(TypeError, [name, "list"], **{name: [[1.0]]})
        self.refused(TypeError, ["q", "MaskedArray"], q=np.ma.masked_array(self.q))
        with self.assertRaises(TypeError):
            flashlab.attention(self.q, self.k, None)
        with self.assertRaises(TypeError):
            flashlab.attention(self.q, self.k)

    def test_options(self):
        self.refused(ValueError, ["causal", "True", "top-left", "bottom-right"], causal=True)
        self.refused(ValueError, ["causal", "'left'"], causal="left")
        self.refused(ValueError, ["causal", "1"], causal=1)
        self.refused(ValueError, ["precision", "'fp8'"], precision="fp8")
        self.refused(ValueError, ["scale", "nan"], scale=float("nan"))
        self.refused(ValueError, ["scale", "1e+300", "fp32"], scale=1e300)
        self.refused(TypeError, ["scale", "'x'"], scale="x")
        self.refused(NotImplementedError, ["tf32", "cpu"], precision="tf32")

    def test_numbers_of_both_passes(self):
        """What is no number, or none to compute with, is refused by name; nothing is ignored."""
        o, lse = flashlab.attention(self.q, self.k, self.v, return_lse=True)
        passes = {
            "forward": lambda **given: flashlab.attention(self.q, self.k, self.v, **given),
            "backward": lambda **given: flashlab.attention_backward(
                self.d_o, self.q, self.k, self.v, o, lse, **given),
        }
        seeded = {"dropout_seed": (1, 2)}
        for which, run in passes.items():
            for name, kind, values in NUMBERS:
                for value in values:
                    given = {name: value, **(seeded if name == "dropout_p" else {})}
                    if name == "dropout_seed":
                        given["dropout_p"] = 0.5
                    with self.subTest(which, **{name: str(value)}), \
                            self.assertRaisesRegex(kind, rf"^{name}(\.\w+)?(\[\d\])?: got "):
                        run(**given)

    def test_a_call_before_hides_no_refusal(self):
        """A plan that is remembered without a softcap or a window does not serve one with it."""
        flashlab.attention(self.q, self.k, self.v)
        for given in ({"softcap": 0.0}, {"softcap": 1e-300}, {"window": (-1, "2")}):
            with self.assertRaises(ValueError):
                flashlab.attention(self.q, self.k, self.v, **given)

    def test_windows_need_an_alignment(self):
        self.refused(ValueError, ["window", "seqlen_q 8", "seqlen_k 12", '"top-left"',
                                  '"bottom-right"'], window=(2, 1))
        self.refused(ValueError, ["window", "causal's alignment"], causal="top-left",
                     window=(2, 0, "bottom-right"))
        for whole in ((None, None), (None, None, "top-left")):
            np.testing.assert_array_equal(
                flashlab.attention(self.q, self.k, self.v, window=whole),
                flashlab.attention(self.q, self.k, self.v))

    def test_seeds_of_dropout(self):
        self.refused(TypeError, ["dropout_seed.dtype", "int32", "int64"], dropout_p=0.5,
                     dropout_seed=np.array([1, 2], "int32"))
        self.refused(ValueError, ["dropout_seed.shape[0]: got 3", "dropout_seed must be [2]"],
                     dropout_p=0.5, dropout_seed=np.array([1, 2, 3]))
        self.refused(ValueError, ["dropout_seed: got None", "(seed, offset)"], dropout_p=0.5)
        numbers = flashlab.attention(self.q, self.k, self.v, dropout_p=0.5, dropout_seed=(1, 2))
        stored = flashlab.attention(self.q, self.k, self.v, dropout_p=0.5,
                                    dropout_seed=np.array([1, 2]))
        np.testing.assert_array_equal(numbers, stored)
        # Without dropout nobody reads it.
        for seed in ((1, 2), np.array([1, 2])):
            np.testing.assert_array_equal(
                flashlab.attention(self.q, self.k, self.v, dropout_seed=seed),
                flashlab.attention(self.q, self.k, self.v))

    def test_outputs(self):
        fixed = np.empty_like(self.q)
        fixed.flags.writeable = False
        self.refused(ValueError, ["out", "read-only"], out=fixed)
        self.refused(ValueError, ["out", "overlaps"], out=self.q)
        self.refused(ValueError, ["out.shape[1]", "8", "out must be"],
                     out=np.empty((2, 9, 4, 16), "f4"))
        self.refused(ValueError, ["out.strides[3]"], out=np.empty((2, 8, 4, 32), "f4")[..., ::2])
        self.refused(ValueError, ["out.strides[1]"], out=np.empty_like(self.q)[:, ::-1])
        self.refused(TypeError, ["out.dtype", "fp64"], out=np.empty(self.q.shape))
        same = np.lib.stride_tricks.as_strided(np.empty(16, "f4"), self.q.shape, (0, 0, 0, 4))
        self.refused(ValueError, ["out"], out=same)

    def test_nothing_is_written_on_error(self):
        out = np.full(self.q.shape, 7, "float32")
        self.refused(ValueError, ["v.shape[1]"], k=self.k[:, :5], out=out)
        self.assertTrue((out == 7).all())

    def test_backward(self):
        o, lse = _core.forward(self.q, self.k, self.v)
        good = {"d_o": self.d_o, "q": self.q, "k": self.k, "v": self.v, "o": o, "lse": lse}
        cases = [
            (ValueError, "d_o.shape[1]", {"d_o": self.d_o[:, :7]}),
            (TypeError, "d_o.dtype", {"d_o": self.d_o.astype("float16")}),
            (ValueError, "o.shape[2]", {"o": o[:, :, :2]}),
            (ValueError, "lse.shape[2]", {"lse": lse[..., :7]}),
            (TypeError, "lse.dtype", {"lse": lse.astype("float16")}),
            (ValueError, "d_lse.shape[1]", {"d_lse": lse[:, :1]}),
            (TypeError, "lse", {"lse": 3}),
        ]
        for kind, word, changes in cases:
            with self.subTest(word), self.assertRaisesRegex(kind, word.replace("[", r"\[")):
                _core.backward(**{**good, **changes})

    def test_merge(self):
        o, lse = flashlab.attention(self.q, self.k, self.v, return_lse=True)
        cases = [
            (ValueError, "parts", []),
            (ValueError, "parts", 3),
            (ValueError, r"parts\[0\]", [(o,)]),
            (TypeError, r"parts\[0\].o", [(None, lse)]),
            (ValueError, r"parts\[1\].o", [(o, lse), (o[:1], lse)]),
            (TypeError, r"parts\[0\].o", [(o.astype("float16"), lse)]),
        ]
        for kind, word, parts in cases:
            with self.subTest(word), self.assertRaisesRegex(kind, word):
                flashlab.merge(parts)
        with self.assertRaisesRegex(ValueError, "dtype"):
            flashlab.merge([(o, lse)], dtype="int8")


class Instruments(unittest.TestCase):
    def test_info(self):
        info = flashlab.info()
        self.assertEqual(info["schema"], "flashlab.info/1")
        self.assertEqual(info["environment"]["flashlab_version"], flashlab.__version__)

    def test_bench(self):
        found = flashlab.bench(seqlen=[32, 64], head_dim=16, heads=2, causal=True, repeats=3,
                               pass_="both", device="cpu")
        self.assertEqual([(r["pass"], r["seqlen_q"]) for r in found["results"]],
                         [("forward", 32), ("backward", 32), ("forward", 64), ("backward", 64)])

    def test_check(self):
        found = flashlab.check(quick=True, implementation="cpu", dtype="fp16", device="cpu")
        self.assertTrue(found["ok"] and found["passed"] > 0 and found["reports"])

    def test_errors(self):
        with self.assertRaisesRegex(ValueError, "--seqlen"):
            flashlab.bench(seqlen="x")
        with self.assertRaisesRegex(ValueError, "--no-such-flag"):
            flashlab.info(no_such_flag=True)


if __name__ == "__main__":
    unittest.main()
