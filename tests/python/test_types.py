"""What a type checker sees of the package: attention's result, by return_lse."""

import os
import subprocess
import sys
import tempfile
import unittest

PACKAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python")

PROGRAM = """
import numpy as np
import numpy.typing as npt
import flashlab

a: npt.NDArray[np.float32] = np.zeros((1, 2, 1, 4), np.float32)
print(flashlab.attention(a, a, a).shape)
o, lse = flashlab.attention(a, a, a, return_lse=True, mask=np.ones((2, 2), np.bool_))
print(o.shape, lse.shape, flashlab.merge([(o, lse)]).shape)
print(flashlab.attention(a, a, a, window=(1, 0), softcap=2.0, alibi_slopes=a, dropout_p=0.5,
                         dropout_seed=(1, 2)).shape)
reveal_type(flashlab.attention(a, a, a, return_lse=True))
"""

TORCH_PROGRAM = """
import torch
import flashlab.torch as flash

t = torch.zeros(1, 2, 1, 4)
print(flash.attention(t, t, t).shape)
o, lse = flash.attention(t, t, t, return_lse=True, window=(1, 0, "top-left"), softcap=2.0,
                         alibi_slopes=t, dropout_p=0.5, dropout_seed=(1, 2))
print(o.shape, lse.shape)
"""


class Types(unittest.TestCase):

    def strict(self, program, needs):
        for module in ("mypy", needs):
            if subprocess.run([sys.executable, "-c", f"import {module}"], stderr=subprocess.DEVNULL,
                              check=False).returncode != 0:
                self.skipTest(f"skipped: no {module}")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "program.py")
            with open(path, "w", encoding="utf-8") as stream:
                stream.write(program)
            # The package's own files are not what a user checks.
            checked = subprocess.run(
                [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent",
                 "--cache-dir", folder, path], capture_output=True, text=True, check=False,
                env={**os.environ, "MYPYPATH": PACKAGE})
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)
        return checked.stdout

    def test_arrays(self):
        shown = self.strict(PROGRAM, "numpy")
        self.assertIn("tuple[numpy.ndarray", shown.lower())

    def test_tensors(self):
        self.strict(TORCH_PROGRAM, "torch")


if __name__ == "__main__":
    unittest.main()
