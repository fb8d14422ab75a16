#!/usr/bin/env python3
"""bench step: what is measured, what does not fit, and PyTorch beside it.

A script stands for Python. The last test runs the real PyTorch where it is:
    FLASHLAB_TEST_PYTHON=.venv/bin/python tests/cli_step_test.py build/flashlab .
"""

import json
import os
import stat
import subprocess
import sys
import unittest

import cli_harness
from cli_harness import Folder, run, with_times

TINY = ["bench", "step", "--layers", "1", "--width", "16", "--heads", "2", "--hidden", "24",
        "--vocabulary", "50", "--context", "16", "--batch", "2", "--threads", "2", "--repeats", "3"]
PASSES = ["forward", "forward+backward", "step"]

FAKE = """#!{python}
import json, sys
def say(**line):
    print(json.dumps(line), flush=True)
{text}
"""

ANSWERS = """
say(ready="Python 3.99, torch 9.8")
for line in sys.stdin:
    request = json.loads(line)
    print(line, file=open({log!r}, "a"), end="")
    if request["compile"]:
        say(status="oom", message="CUDA out of memory", first_ms=None, ms=[], peak_bytes=None)
    else:
        say(status="ok", message="", first_ms=9.0, ms=[2.0, 1.0, 3.0], peak_bytes=4096)
"""


class BenchStep(Folder):
    def rows(self, *arguments, code=0):
        done = run(*TINY, *arguments, "--json", "-")
        self.assertEqual(done.returncode, code, done.stderr + done.stdout)
        return json.loads(done.stdout)["results"]

    def fake(self, text):
        path = self.path("fake-python")
        with open(path, "w", encoding="utf-8") as out:
            out.write(FAKE.format(python=sys.executable, text=text))
        os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        return path

    def test_every_mode_and_its_figures(self):
        rows = self.rows("--warmup", "0,2")
        self.assertEqual([row["pass"] for row in rows], 2 * PASSES)
        self.assertEqual([row["warmup"] for row in rows], 3 * [0] + 3 * [2])
        for row in rows:
            self.assertEqual((row["subject"], row["status"], row["implementation"]),
                             ("step", "ok", "flashlab"))
            self.assertEqual(row["samples"], 3)
            self.assertGreater(row["first_ms"], 0)
            self.assertEqual("learning_rate" in row and row["learning_rate"] is not None,
                             row["pass"] == "step")
            self.assertAlmostEqual(row["first_loss"], rows[0]["first_loss"], places=5)
            self.assertAlmostEqual(row["tokens_per_s"], 32 / row["median_ms"] * 1e3, places=3)
            self.assertGreater(row["peak_bytes"], row["predicted_bytes"])
        self.assertEqual([part["name"] for part in rows[5]["parts"]],
                         ["forward", "backward", "optimizer"])
        forward, backward, step = (row["tflops"] * row["median_ms"] for row in rows[:3])
        self.assertLess(2.5 * forward, backward)
        self.assertLess(backward, step)

    def test_ways_of_making_a_step_are_rows(self):
        rows = self.rows("--attention", "production,naive", "--checkpoint", "none,1", "--mode",
                         "full", "--precision", "fp32,bf16")
        self.assertEqual([row["implementation"] for row in rows[:4]],
                         ["flashlab", "flashlab.checkpoint=1", "flashlab.naive",
                          "flashlab.naive.checkpoint=1"])
        self.assertEqual([row["dtype"] for row in rows], 4 * ["fp32"] + 4 * ["bf16"])
        work = {round(row["tflops"] * row["median_ms"], 12) for row in (rows[0], rows[1])}
        self.assertEqual(len(work), 1, "what is made again is no work")

    def test_what_does_not_fit_is_a_result(self):
        rows = self.rows("--memory-limit", "1000", code=1)
        for row in rows:
            self.assertEqual(row["status"], "oom")
            self.assertIsNone(row["median_ms"])
            self.assertEqual(row["peak_bytes"], row["predicted_bytes"])
            for words in ("parameter", "saved activation", "the largest tensor", "at most 1000 B"):
                self.assertIn(words, row["message"])

    def test_the_largest_context(self):
        done = run(*[word if word != "16" or TINY[i - 1] != "--context" else "16,largest"
                     for i, word in enumerate(TINY)], "--memory-limit", "400000", "--mode", "full",
                   "--json", "-")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("the largest context that fits", done.stderr)
        first, largest = json.loads(done.stdout)["results"]
        self.assertGreater(largest["context"], first["context"])
        self.assertLessEqual(largest["predicted_bytes"], 400000)
        twice = run("explain", "step", "--size", "tiny", *TINY[2:10], "--vocabulary", "50",
                    "--batch", "2", "--context", str(2 * largest["context"]), "--json", "-")
        self.assertGreater(json.loads(twice.stdout)["device_bytes"], 400000)

    def test_files_and_a_baseline(self):
        saved, folder = self.path("old.json"), self.path("report")
        done = run(*TINY, "--mode", "forward", "--json", saved, "--output", folder, "--markdown",
                   "-")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("# Training step, measured", done.stdout)
        self.assertTrue(os.path.exists(os.path.join(folder, "report.html")))
        with open(saved, encoding="utf-8") as file:
            document = json.load(file)
        with open(saved, "w", encoding="utf-8") as file:
            json.dump(with_times(document, 1e-3), file)
        slower = run(*TINY, "--mode", "forward", "--baseline", saved)
        self.verdict(slower, "slower", 3)

    def test_pytorch_beside_it(self):
        log = self.path("requests")
        python = self.fake(ANSWERS.format(log=log))
        rows = self.rows("--peers", "torch", "--python", python, "--mode", "forward,full")
        self.assertEqual([(row["implementation"], row["pass"], row["status"]) for row in rows[2:]],
                         [("torch.eager", "forward", "ok"), ("torch.eager", "step", "ok"),
                          ("torch.compile", "forward", "oom"), ("torch.compile", "step", "oom")])
        self.assertEqual(rows[2]["median_ms"], 2.0)
        self.assertEqual(rows[2]["tokens_per_s"], 16000)
        self.assertEqual(rows[2]["peak_bytes"], 4096)
        self.assertIsNone(rows[2]["tflops"])
        with open(log, encoding="utf-8") as file:
            request = json.loads(file.readline())
        for name, value in (("width", 16), ("mode", "forward"), ("warmup", 5), ("threads", 2),
                            ("precision", "fp32"), ("family", "course"), ("batch", 2)):
            self.assertEqual(request[name], value, name)

    def test_what_goes_wrong_in_python_is_said(self):
        for text, words in (("sys.exit('No module named torch')", "No module named torch"),
                            ("say(hello=1)", "a Python with PyTorch")):
            self.refused([*TINY, "--peers", "torch", "--python", self.fake(text)], words)
        self.refused([*TINY, "--peers", "torch", "--python", "/no/such/python"],
                     "cannot be started")
        self.refused([*TINY, "--python", "python3"], "--peers torch")
        dies = self.fake("say(ready='x')\nsys.stdin.readline()\nsys.exit(7)")
        rows = self.rows("--peers", "torch", "--python", dies, "--mode", "forward")
        self.assertEqual(rows[0]["status"], "ok")
        self.assertIn("exit code 7", rows[1]["message"])
        self.assertIn("Python has ended", rows[2]["message"])

    def test_bad_flags(self):
        self.refused(["bench", "step", "--size", "xl"], "xl-2025")
        self.refused([*TINY, "--checkpoint", "1+1"], "the model has 1 layers")
        self.refused([*TINY, "--mode", "sideways"], "forward, backward or full")

    def test_the_real_pytorch(self):
        python = os.environ.get("FLASHLAB_TEST_PYTHON", sys.executable)
        there = subprocess.run([python, "-c", "import torch"], capture_output=True, check=False)
        if there.returncode != 0:
            raise unittest.SkipTest("no PyTorch")
        for precision in ("fp32", "bf16"):
            rows = self.rows("--peers", "torch", "--python", python, "--precision", precision)
            for row in rows:
                if row["implementation"] == "torch.compile" and row["status"] != "ok":
                    continue  # its compiler wants a C++ compiler and Python's headers
                self.assertEqual(row["status"], "ok", row["message"])


if __name__ == "__main__":
    cli_harness.main()
