"""flashlab._core: choosing an implementation, and how the CPU is used."""

import subprocess
import sys
import unittest

import numpy as np

from flashlab import _core


class Choice(unittest.TestCase):
    def setUp(self):
        draw = np.random.default_rng(1)
        self.q, self.k, self.v = (draw.standard_normal((2, 24, 3, 16)).astype(np.float32)
                                  for _ in range(3))

    def test_forward_and_backward(self):
        first, lse = _core.forward(self.q, self.k, self.v)
        bits = set()
        for name in ("naive", "cpu", "fa2-plain", "naive", "cpu"):
            o, lse = _core.forward(self.q, self.k, self.v, implementation=name)
            np.testing.assert_allclose(o, first, atol=1e-5)
            bits.add((name, o.tobytes()))
            gradients = _core.backward(self.q, self.q, self.k, self.v, o, lse,
                                       implementation=name)
            self.assertEqual([g.shape for g in gradients], [self.q.shape] * 3)
        # Equal names give equal bits, and another name is another kernel: plans are not mixed up.
        self.assertEqual(len(bits), 3)
        self.assertIn(("cpu", first.tobytes()), bits)

    def test_refused(self):
        for _ in range(2):  # a refusal is not remembered as a plan
            with self.assertRaisesRegex(ValueError, "implementation: got 'sm1'.*naive"):
                _core.forward(self.q, self.k, self.v, implementation="sm1")
        with self.assertRaisesRegex(TypeError, "implementation: got 3"):
            _core.forward(self.q, self.k, self.v, implementation=3)


class Cpu(unittest.TestCase):
    def run_code(self, code):
        """stdout of a fresh process: the CPU is set up once."""
        start = ("import numpy as np\nfrom flashlab import _core\n"
                 "q = np.ones((1, 4, 1, 8), np.float32)\n")
        done = subprocess.run([sys.executable, "-c", start + code], capture_output=True, text=True,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_threads(self):
        count = "print(len(__import__('os').listdir('/proc/self/task')))"
        code = ("_core.configure_cpu(threads={})\nq = np.ones((4, 256, 4, 16), np.float32)\n"
                "_core.forward(q, q, q)\n") + count
        one, three = (int(self.run_code(code.format(n))) for n in (1, 3))
        self.assertEqual(three - one, 2)

    def test_refused(self):
        shown = self.run_code("""
for kind, options in ((ValueError, dict(isa="z80")), (ValueError, dict(threads=-1)),
                      (TypeError, dict(threads="two"))):
    try:
        _core.configure_cpu(**options)
        print("accepted", options)
    except kind as error:
        print("refused", error)
_core.configure_cpu(isa="scalar")
_core.forward(q, q, q)
try:
    _core.configure_cpu(threads=1)
except RuntimeError as error:
    print("late", error)
""")
        self.assertNotIn("accepted", shown)
        for words in ("refused isa: got z80", "refused threads: got -1", "late configure_cpu"):
            self.assertIn(words, shown)


if __name__ == "__main__":
    unittest.main()
