#!/usr/bin/env python3
"""compare --peers torch: what comes from Python is merged, and whatever goes wrong there is said.

A script stands for Python. It answers by the protocol of python/flashlab/peers, or breaks it. The
last class runs the real one where it is installed:
    FLASHLAB_TEST_PYTHON=.venv/bin/python tests/cli_peers_test.py build/flashlab .
"""

import csv
import json
import os
import signal
import stat
import subprocess
import sys
import time
import unittest

import cli_harness
from cli_harness import Folder, program, run

SHAPE = ["--batch", "1", "--heads", "2", "--head-dim", "16", "--seqlen", "64", "--dtype", "fp32",
         "--device", "cpu"]
QUICK = ["--repeats", "3"]

READY = {"event": "ready", "protocol": 1, "python": "3.99.1", "executable": "/fake", "torch": "9.8",
         "flashlab": "0.1.0", "device": "cpu", "clock": "warm caches", "threads": 2,
         "installed": {"flash-attn": None, "xformers": "0.5"}}

# What the fake does is the text between; `answer` gets a request.
FAKE = """#!{python}
import json, os, signal, sys, time
READY = json.loads({ready!r})
def say(**line):
    print(json.dumps(line), flush=True)
def row(name, which, ms=1.0, **more):
    say(**{{**dict(event="result", implementation=name, status="ok", message="",
                  samples_ms=[ms * 3, ms, ms * 2], error_vs_fp64=1e-7, naive_error_vs_fp64=2e-7,
                  error_sample="all", plan="fake", peak_bytes=1000), "pass": which, **more}})
def rows(request, times={{}}, but=()):
    for which in request["passes"]:
        for name in request["implementations"]:
            if name not in but:
                row(name, which, times.get(name, 1.0))
{text}
"""

ANSWERS = """
say(**READY)
for line in sys.stdin:
    answer(json.loads(line))
"""


class Peers(Folder):
    def fake(self, text, ready=None):
        path = self.path("fake-python")
        with open(path, "w", encoding="utf-8") as out:
            out.write(FAKE.format(python=sys.executable, ready=json.dumps(ready or READY),
                                  text=text))
        os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        return path

    def compare(self, text, *more, ready=None, peers="torch"):
        """(process, rows) of a comparison whose Python is `text`."""
        self.folder_out = self.path("report")
        quick = [] if "--repeats" in more else QUICK
        done = run("compare", *SHAPE, *quick, "--peers", peers, "--python", self.fake(text, ready),
                   "--output", self.folder_out, *more)
        with open(os.path.join(self.folder_out, "results.json"), encoding="utf-8") as file:
            self.document = json.load(file)
        return done, self.document["results"]

    def row(self, rows, name, which="forward"):
        found = [r for r in rows if (r["implementation"], r["pass"]) == (name, which)]
        self.assertEqual(len(found), 1, f"{name} {which}: {found}")
        return found[0]


class Merging(Peers):
    def test_rows_become_results(self):
        done, rows = self.compare("""
def answer(request):
    rows(request, {"torch.flash": 0.5, "cpu": 0.25})
    say(event="end", cancelled=False, lost=False)
""" + ANSWERS)
        self.assertEqual(done.returncode, 0, done.stderr)
        # Ours come from Python too, and so do the packages that it has; not those that it lacks.
        names = {r["implementation"] for r in rows}
        self.assertLessEqual({"cpu", "naive", "torch.cudnn", "torch.flash", "torch.efficient",
                              "torch.math", "torch.flex", "xformers"}, names)
        self.assertNotIn("flash-attn", names)
        flash = self.row(rows, "torch.flash", "backward")
        self.assertEqual((flash["median_ms"], flash["min_ms"], flash["max_ms"], flash["samples"]),
                         (1.0, 0.5, 1.5, 3))
        # 2 B H pairs (3 D + 2 Dv) over the median.
        self.assertAlmostEqual(flash["tflops"], 2 * 2 * 64 * 64 * 80 / 1.0 * 1e-9)
        self.assertEqual((flash["peak_bytes"], flash["error_vs_fp64"], flash["plan"],
                          flash["device"], flash["seqlen_q"]), (1000, 1e-7, "fake", "cpu", 64))
        self.assertIn("fastest        forward cpu (0.5000 ms)", done.stdout)
        self.assertIn("torch 9.8", done.stdout)
        self.assertIn("torch 9.8", self.document["environment"]["protocol"])
        with open(os.path.join(self.folder_out, "report.html"), encoding="utf-8") as page:
            self.assertIn("torch.flash", page.read())

    def test_names(self):
        text = """
def answer(request):
    sys.stderr.write("asked for " + ",".join(request["implementations"]) + "\\n")
    rows(request)
    say(event="end", cancelled=False, lost=False)
    if request["implementations"] != EXPECTED:
        sys.exit(7)
""" + ANSWERS
        done, rows = self.compare(text.replace("EXPECTED", repr(["cpu", "torch.math",
                                                                 "torch.flash", "flash-attn"])),
                                  "--implementation", "cpu,torch.math", "--relative-to",
                                  "torch.math", peers="torch.flash,flash-attn")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("compared with torch.math", done.stdout)
        self.assertEqual(len(rows), 8)
        done, rows = self.compare(text.replace("EXPECTED", repr(["torch.flex"])),
                                  "--implementation", "torch.flex", peers="cublas")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.row(rows, "cublas")["status"], "unsupported")

    def test_ragged_batches_travel(self):
        text = """
def answer(request):
    lengths = request["problem"]["lengths"]
    if request["implementations"] != ["cpu", "torch.varlen", "torch.flex"]:
        sys.exit(7)
    if sum(q for q, k in lengths) != 1024 or any(q != k for q, k in lengths):
        sys.exit(8)
    rows(request)
    say(event="end", cancelled=False, lost=False)
""" + ANSWERS
        path = self.path("r.json")
        done = run("compare", "--lengths", "chat:1k", "--heads", "2", "--head-dim", "16",
                   "--device", "cpu", "--dtype", "fp32", *QUICK, "--implementation", "cpu",
                   "--peers", "torch", "--python", self.fake(text, {**READY, "installed": {}}),
                   "--output", self.path("report"), "--json", path)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(path, encoding="utf-8") as file:
            labels = {r["lengths"] for r in json.load(file)["results"]}
        self.assertEqual(labels, {"chat:1024"})
        done = run("compare", "--sweep", "ragged", "--seqlen", "512", "--device", "cpu")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--seqlen contradicts the lengths of --sweep ragged", done.stderr)

    def test_caches_travel(self):
        text = """
def answer(request):
    p = request["problem"]
    if request["implementations"] != ["cpu", "torch.cudnn", "torch.flash", "flashinfer"]:
        sys.exit(7)
    if p["cache"] != {"capacity": 96, "page_size": 16, "dense_queries": True}:
        sys.exit(8)
    if p["lengths"] != [[2, 9], [2, 96]] or request["passes"] != ["forward"]:
        sys.exit(9)
    rows(request)
    say(event="end", cancelled=False, lost=False)
""" + ANSWERS
        ready = {**READY, "installed": {"flash-attn-3": None, "flashinfer": "1"}}
        path = self.path("r.json")
        done = run("compare", "--batch", "2", "--queries", "2", "--lengths-k", "9+96",
                   "--cache-length", "96", "--page-size", "16", "--heads", "2", "--head-dim", "16",
                   "--device", "cpu", "--dtype", "fp32", *QUICK, "--implementation", "cpu",
                   "--peers", "torch", "--python", self.fake(text, ready),
                   "--output", self.path("report"), "--json", path)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(path, encoding="utf-8") as file:
            labels = {(r["lengths_k"], r["page_size"]) for r in json.load(file)["results"]}
        self.assertEqual(labels, {("9+96", 16)})

    def test_settings_travel(self):
        done, _ = self.compare("""
def answer(request):
    p = request["problem"]
    fine = (request["warmup"], request["repeats"], request["max_total_ms"]) == (2, 7, 0)
    fine = fine and p == {"batch": 1, "dtype": "fp32", "head_dim": 16, "head_dim_v": 16,
                          "heads_k": 1, "heads_q": 2, "mask": "causal-bottom-right", "scale": 0.5,
                          "seed": 3, "seqlen_k": 96, "seqlen_q": 64, "lengths": None,
                          "cache": None}
    fine = fine and sys.argv[1] == "-c" and sys.argv[3:5] == ["cpu", "1"]
    sys.stderr.write(repr((request, sys.argv[3:])))
    if not fine:
        sys.exit(9)
    rows(request)
    say(event="end", cancelled=False, lost=False)
""" + ANSWERS, "--warmup", "2", "--repeats", "7", "--seqlen-k", "96", "--causal=bottom-right",
                               "--kv-heads", "1", "--scale", "0.5", "--seed", "3", "--threads", "1")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_refusals_and_memory(self):
        done, rows = self.compare("""
def answer(request):
    for which in request["passes"]:
        row("cpu", which)
        row("torch.flash", which, status="unsupported", message="not this mask", samples_ms=None)
        row("torch.math", which, status="oom", message="9 GiB; q 1 MiB", samples_ms=None)
    say(event="end", cancelled=False, lost=False)
""" + ANSWERS, peers="torch.flash,torch.math")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.row(rows, "torch.flash")["message"], "not this mask")
        self.assertEqual(self.row(rows, "torch.math")["status"], "oom")
        self.assertIsNone(self.row(rows, "torch.math")["median_ms"])
        self.assertIn("not this mask", done.stdout)
        self.assertIn("9 GiB; q 1 MiB", done.stdout)
        with open(os.path.join(self.folder_out, "results.csv"), encoding="utf-8") as file:
            self.assertIn("oom", {line["status"] for line in csv.DictReader(file)})


class Found(Peers):
    """Nobody asked for PyTorch: a Python that has it is used, one that has not is no error."""

    ROWS = """
def answer(request):
    rows(request, {"torch.flash": 0.5, "torch.math": 4.0})
    say(event="end", cancelled=False, lost=False)
""" + ANSWERS

    def compare(self, text, *more):
        """The comparison where python3 is `text`."""
        self.folder_out = self.path("report")
        os.rename(self.fake(text), self.path("python3"))
        env = {**os.environ, "PATH": self.folder + os.pathsep + os.environ["PATH"]}
        done = run("compare", *SHAPE, *QUICK, "--pass", "forward", "--output",
                   self.folder_out, *more, env=env)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(os.path.join(self.folder_out, "results.json"), encoding="utf-8") as file:
            return done, json.load(file)["results"]

    def test_its_backends_are_in_the_first_table(self):
        done, rows = self.compare(self.ROWS)
        names = [r["implementation"] for r in rows]
        self.assertEqual(names, ["cpu", "fa2-plain", "naive", "torch.flash", "torch.math"])
        table = done.stdout[:done.stdout.index("compared with")]
        for row in rows:
            cells = next(line.split() for line in table.split("\n")
                         if line.startswith(row["implementation"] + " "))
            # ms, GFLOP/s, roof, memory with its unit, error: all have figures.
            self.assertNotIn("-", cells)
            self.assertGreater(row["roof_share"], 0)
            self.assertEqual(row["peak_bytes"], 1000)
        with open(os.path.join(self.folder_out, "report.html"), encoding="utf-8") as page:
            # torch.flash takes half the time of ours.
            self.assertIn("The quickest peer takes 0.50x the time of the quickest of ours",
                          page.read())
        self.assertIn("verdict  cpu forward", done.stdout)
        self.assertIn("torch.flash takes 0.50x its time", done.stdout)

    def test_a_python_without_torch_is_passed_over(self):
        done, rows = self.compare("say(event='missing', modules=['torch'])")
        self.assertEqual(done.stderr, "")
        self.assertEqual([r["implementation"] for r in rows], ["cpu", "fa2-plain", "naive"])
        done, rows = self.compare("os.abort()")
        self.assertEqual(len(rows), 3)
        self.assertIn("python3", done.stderr)

    def test_libraries_on_a_gpu_are_measured_unasked(self):
        folder = os.path.join(os.path.dirname(program()), "tests", "fake_driver")
        if not os.path.isdir(folder):
            self.skipTest("this build has no stand-in for the driver")
        library = os.path.join(folder, "libcuda.so.1")  # cuBLASLt's, too
        done = run("compare", *SHAPE[:-2], "--device", "cuda", *QUICK,
                   "--output", self.path("report"),
                   env={**os.environ, "LD_LIBRARY_PATH": folder, "FAKE_CUDA": "gpu",
                        "FLASHLAB_CUBLASLT": library, "FLASHLAB_NVRTC": library,
                        "FLASHLAB_CACHE": self.path("cache"), "PATH": self.folder})
        with open(self.path("report/results.json"), encoding="utf-8") as file:
            names = {r["implementation"] for r in json.load(file)["results"]}
        self.assertLessEqual({"sm80", "cublas", "cudnn"}, names, done.stderr)

    def test_what_python_does_not_know_is_measured_without_it(self):
        for more in (("--peers", "none"), ("--window", "8,0")):
            _, rows = self.compare(self.ROWS, *more)
            self.assertNotIn("torch.flash", [r["implementation"] for r in rows])


class Missing(Peers):
    CPU = ["--implementation", "cpu"]

    def compare(self, text, *more, **options):
        return super().compare(text, *self.CPU, *more, **options)

    def ours_are_measured_all_the_same(self, done, rows, reason, status="unsupported"):
        # They were asked for and could not be had.
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn(reason, done.stderr)
        self.assertEqual(self.row(rows, "cpu")["status"], "ok")
        row = self.row(rows, "torch.flash")
        self.assertEqual(row["status"], status)
        self.assertIn(reason, row["message"])

    def test_modules(self):
        for modules, reason in ((["torch"], "-m pip install torch"),
                                (["flashlab"], "-m pip install ."),
                                (["flashlab.peers"], "-m pip install .")):
            done, rows = self.compare(f"say(event='missing', modules={modules!r})")
            self.ours_are_measured_all_the_same(done, rows, reason)
            self.assertIn(f"has no {modules[0]}", done.stderr)
            self.assertNotIn("xformers", {r["implementation"] for r in rows})

    def test_no_device(self):
        done, rows = self.compare("say(event='unusable', text='torch 9.8 sees no CUDA device')")
        self.ours_are_measured_all_the_same(done, rows, "sees no CUDA device")

    def test_another_protocol(self):
        done, rows = self.compare("say(**READY)", ready={**READY, "protocol": 2})
        self.ours_are_measured_all_the_same(done, rows, "another version of the protocol")

    def test_crash_at_the_start(self):
        done, rows = self.compare("sys.exit('cannot import numpy')")
        self.ours_are_measured_all_the_same(done, rows, "cannot import numpy", "error")
        self.assertIn("ended by exit code 1", done.stderr)

    def test_bare_python(self):
        """The first lines that a real Python runs: nothing is installed in an isolated one."""
        shell = self.path("isolated")
        with open(shell, "w", encoding="utf-8") as out:
            out.write(f"#!/bin/sh\nexec {sys.executable} -I -S \"$@\"\n")
        os.chmod(shell, 0o755)
        folder = self.path("report")
        os.makedirs(self.path("flashlab/peers"))  # a folder of that name is not the package
        done = run("compare", *SHAPE, *self.CPU, *QUICK, "--peers", "torch.math", "--python", shell,
                   "--output", folder, cwd=self.folder)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("has no flashlab and no torch", done.stderr)

    def test_no_such_python(self):
        self.refused(["compare", *SHAPE, "--peers", "torch", "--python", "/no/such/python"],
                     "--python /no/such/python cannot be started", "No such file")
        path = self.path("data", b"not a program")
        self.refused(["compare", *SHAPE, "--peers", "torch", "--python", path],
                     "cannot be started", "Permission denied")
        empty = {**os.environ, "PATH": self.folder}
        done = run("compare", *SHAPE, *self.CPU, *QUICK, "--peers", "torch.math", "--output",
                   self.path("report"), env=empty)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("python3 cannot be started", done.stdout)

    def test_flags_that_mean_nothing(self):
        self.refused(["compare", *SHAPE, "--implementation", "cpu", "--python", "python3"],
                     "--python", "--peers torch")
        for flag in (("--tile-q", "16"), ("--window", "8,0"), ("--softcap", "5"), ("--alibi",),
                     ("--dropout", "0.5")):
            self.refused(["compare", *SHAPE, "--peers", "torch", *flag], flag[0],
                         "measured in Python")
        self.refused(["compare", *SHAPE, "--peers", "torch", "--python-timeout", "0"],
                     "--python-timeout")
        self.refused(["bench", "--implementation", "torch.flash"], '"torch.flash" is unknown')


class Broken(Peers):
    """The first length is measured; on the second something happens."""

    TWO = ["--seqlen", "64,128"]
    FIRST = """
def answer(request):
    if request["problem"]["seqlen_q"] == 64:
        rows(request)
        say(event="end", cancelled=False, lost=False)
        return
    sys.stderr.write("progress 3 10 timing forward\\n")
    sys.stderr.write("a traceback\\n")
    sys.stderr.flush()
    row("cpu", "forward")
"""

    def broken(self, text, *reasons, more=()):
        arguments = [a for a in SHAPE if a not in ("--seqlen", "64")]
        folder = self.path("report")
        done = run("compare", *arguments, *QUICK, *self.TWO, *more, "--peers", "torch.flash",
                   "--python", self.fake(self.FIRST + text + ANSWERS), "--output", folder,
                   "--implementation", "cpu")
        self.assertEqual(done.returncode, 1, done.stderr)
        with open(os.path.join(folder, "results.json"), encoding="utf-8") as file:
            rows = json.load(file)["results"]
        ok = [(r["implementation"], r["pass"], r["seqlen_q"]) for r in rows if r["status"] == "ok"]
        self.assertEqual(ok, [("cpu", "forward", 64), ("torch.flash", "forward", 64),
                              ("cpu", "backward", 64), ("torch.flash", "backward", 64),
                              ("cpu", "forward", 128)])
        lost = [r for r in rows if r["status"] == "error"]
        self.assertEqual(len(lost), 3, rows)
        for reason in reasons + ("timing forward", "a traceback"):
            self.assertIn(reason, done.stderr)
            self.assertIn(reason, lost[0]["message"])
        self.assertIn("measured before is kept", done.stderr)
        self.assertIn("report.html", done.stdout)
        self.assertTrue(os.path.exists(os.path.join(folder, "report.html")))

    def test_crash(self):
        self.broken("    os.kill(os.getpid(), signal.SIGSEGV)\n", "ended by signal 11",
                    "Segmentation fault")

    def test_exit(self):
        self.broken("    sys.exit(3)\n", "ended by exit code 3")

    def test_garbage(self):
        for line, reason in (("hello", "not a JSON object"), ('{"event": "odd"}', "event is not"),
                             ("\\x00", "is not a JSON object")):
            self.broken(f"    print({line!r}.replace('\\\\x00', chr(0)), flush=True)\n"
                        "    time.sleep(3600)\n", reason, "not by the protocol")

    def test_wrong_rows(self):
        self.broken("    row('torch.flash', 'forward', samples_ms=[-1.0])\n    time.sleep(3600)\n",
                    "samples_ms is not an array of finite numbers")

    def test_hang(self):
        begin = time.monotonic()
        self.broken("    time.sleep(3600)\n", "no sign of life for 1 s",
                    more=["--python-timeout", "1"])
        self.assertLess(time.monotonic() - begin, 3600)

    def test_device_lost(self):
        self.broken("    say(event='end', cancelled=False, lost=True)\n", "lost the device")

    def test_noise_without_end(self):
        """Libraries may chatter: that is neither a result nor a sign of life."""
        self.broken("    while True: sys.stderr.write('a traceback ' * 3000)\n",
                    "no sign of life", more=["--python-timeout", "2"])


class Interrupted(Peers):
    def interrupt(self, text, wait_for):
        folder = self.path("report")
        process = subprocess.Popen(
            [program(), "compare", *SHAPE, *QUICK, "--implementation", "cpu", "--peers",
             "torch.flash", "--python", self.fake(text), "--output", folder],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 300
        while not os.path.exists(self.path(wait_for)) and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 130, err)
        self.assertIn("what was measured is kept", err)
        with open(os.path.join(folder, "results.json"), encoding="utf-8") as file:
            return json.load(file)["results"], out

    def test_what_was_timed_is_kept(self):
        mark = self.path("waiting")
        rows, out = self.interrupt(f"""
def answer(request):
    def stop(*_):
        row("torch.flash", "forward", 2.0)
        say(event="end", cancelled=True, lost=False)
    signal.signal(signal.SIGINT, stop)
    row("cpu", "forward")
    open({mark!r}, "w").close()
    time.sleep(3600)
""" + ANSWERS, "waiting")
        self.assertEqual([(r["implementation"], r["median_ms"]) for r in rows],
                         [("cpu", 2.0), ("torch.flash", 4.0)])
        self.assertIn("report.html", out)

    def test_while_starting(self):
        mark = self.path("waiting")
        rows, _ = self.interrupt(f"open({mark!r}, 'w').close()\ntime.sleep(3600)\n", "waiting")
        self.assertEqual(rows, [])

    def test_nothing_is_left_behind(self):
        mark = self.path("waiting")
        self.interrupt(f"""
signal.signal(signal.SIGINT, signal.SIG_IGN)
def answer(request):
    with open({mark + '.part'!r}, "w") as out:
        out.write(str(os.getpid()))
    os.rename({mark + '.part'!r}, {mark!r})
    time.sleep(3600)
""" + ANSWERS, "waiting")
        with open(mark, encoding="utf-8") as file:
            number = int(file.read())
        with self.assertRaises(ProcessLookupError):
            os.kill(number, 0)


class Real(Folder):
    """PyTorch's CPU attention, where FLASHLAB_TEST_PYTHON or python3 has torch and flashlab."""

    def setUp(self):
        super().setUp()
        self.python = os.environ.get("FLASHLAB_TEST_PYTHON", "python3")
        there = subprocess.run([self.python, "-c", "import torch, flashlab.peers, flashlab._core"],
                               capture_output=True, check=False, cwd=self.folder)
        if there.returncode != 0:
            self.skipTest(f"{self.python} has no torch or no flashlab")

    def compare(self, *arguments):
        path = self.path("results.json")
        done = run("compare", "--device", "cpu", "--peers", "torch", "--python", self.python,
                   "--output", self.path("report"), "--json", path, "--repeats", "5", *arguments,
                   timeout=600)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(path, encoding="utf-8") as file:
            return {(r["implementation"], r["pass"]): r for r in json.load(file)["results"]}

    def test_causal_with_groups(self):
        rows = self.compare("--batch", "2", "--heads", "4", "--kv-heads", "2", "--seqlen", "96",
                            "--head-dim", "32", "--causal", "--dtype", "fp32")
        for name in ("cpu", "naive", "torch.flash", "torch.math"):
            for which in ("forward", "backward"):
                row = rows[name, which]
                self.assertEqual(row["status"], "ok", row["message"])
                self.assertGreater(row["median_ms"], 0)
                self.assertLess(row["error_vs_fp64"], 1e-4)
                self.assertGreater(row["peak_bytes"], 0)
                self.assertGreater(row["roof_share"], 0)
        self.assertIn("CUDA", rows["torch.cudnn", "forward"]["message"])

    def test_two_lengths(self):
        rows = self.compare("--batch", "1", "--heads", "2", "--seqlen", "48", "--seqlen-k", "80",
                            "--head-dim", "16", "--causal=bottom-right", "--dtype", "bf16",
                            "--pass", "forward")
        for name in ("cpu", "torch.math"):
            self.assertEqual(rows[name, "forward"]["status"], "ok")
            self.assertLess(rows[name, "forward"]["error_vs_fp64"], 0.05)


if __name__ == "__main__":
    cli_harness.main()
