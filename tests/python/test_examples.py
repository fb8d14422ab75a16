#!/usr/bin/env python3
"""The Python code in the documents runs, and so does the example that swaps attention."""

import contextlib
import importlib.util
import io
import os
import re
import sys
import unittest
from unittest import mock

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
BLOCK = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
HAS_TORCH = importlib.util.find_spec("torch") is not None


def blocks(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as stream:
        return BLOCK.findall(stream.read())


class Documents(unittest.TestCase):
    def run_blocks(self, path, least=3):
        found = blocks(path)
        self.assertGreaterEqual(len(found), least, path)
        for block in found:
            if "torch" in block.replace("PyTorch", "") and not HAS_TORCH:
                continue
            with self.subTest(block.split("\n", 1)[0]):
                exec(compile(block, path, "exec"), {})  # what a reader would paste

    def test_readme(self):
        self.run_blocks("README.md")

    def test_python_page(self):
        self.run_blocks("docs/python.md")

    def test_the_first_rung(self):
        # Its last lines hold tiles and gradients to the definition.
        self.run_blocks("docs/learn/numpy.md", 1)
        self.run_blocks("docs/learn/numpy.zh-CN.md", 1)


@unittest.skipUnless(HAS_TORCH, "skipped: no PyTorch")
class SwapAttention(unittest.TestCase):
    SMALL = ["--device", "cpu", "--dtype", "fp32", "--steps", "12", "--seqlen", "32", "--width",
             "16", "--heads", "4", "--layers", "1", "--batch", "2", "--learning-rate", "0.01"]

    @classmethod
    def setUpClass(cls):
        path = os.path.join(ROOT, "examples", "python", "swap_attention.py")
        spec = importlib.util.spec_from_file_location("swap_attention", path)
        cls.example = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(cls.example)

    def run_example(self, *more):
        output = io.StringIO()
        argv = ["swap_attention.py", *self.SMALL, *more]
        with mock.patch.object(sys, "argv", argv), contextlib.redirect_stdout(output):
            code = self.example.main()
        return code, output.getvalue()

    def test_the_curves_agree(self):
        code, output = self.run_example()
        self.assertEqual(code, 0, output)
        self.assertIn("the curves agree", output)

    def test_a_wrong_attention_is_seen(self):
        right = self.example.flashlab.torch.flash_attn_func
        wrong = {**self.example.ATTENTIONS, "flashlab": lambda q, k, v: right(q, k, v)}
        with mock.patch.object(self.example, "ATTENTIONS", wrong):  # sees the keys to come
            code, output = self.run_example()
        self.assertEqual(code, 1, output)
        self.assertIn("PART", output)

    @unittest.skipUnless(importlib.util.find_spec("transformers"), "skipped: no transformers")
    def test_models_of_hugging_face(self):
        code, output = self.run_example("--model", "gpt2,llama")
        self.assertEqual(code, 0, output)


if __name__ == "__main__":
    unittest.main()
