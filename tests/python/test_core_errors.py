#!/usr/bin/env python3
"""What flashlab refuses: the exception's type, the argument's name, and a process that goes on."""

import unittest

import core_oracle as oracle
import numpy as np

import flashlab
from flashlab import _core


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

    def test_outputs(self):
        fixed = np.empty_like(self.q)
        fixed.flags.writeable = False
        self.refused(ValueError, ["out", "read-only"], out=fixed)
        self.refused(ValueError, ["out", "overlaps"], out=self.q)
        self.refused(ValueError, ["out.shape[1]", "8"], out=np.empty((2, 9, 4, 16), "f4"))
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
