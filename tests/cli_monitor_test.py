"""monitor: samples in lines and files, a GPU by a stand-in for NVML, and how it ends."""

import csv
import io
import json
import os
import signal
import subprocess
import unittest

import cli_harness
from cli_harness import Folder, program, run

QUICK = ["--device", "cpu", "--interval", "0.05", "--duration", "0.2"]
FIGURES = ["load_percent", "clock_mhz", "power_w", "temperature_c", "memory_bytes"]


def with_gpu(**variables):
    """The environment of a machine with one GPU, as far as driver and NVML say."""
    tests = os.path.dirname(os.path.abspath(os.environ["FLASHLAB_FAKE_NVML"]))
    folders = [tests, os.path.join(os.path.dirname(tests), "fake_driver")]
    return dict(os.environ, FAKE_CUDA="gpu", LD_LIBRARY_PATH=":".join(folders), **variables)


class Samples(Folder):
    def monitor(self, *arguments, env=None, code=0):
        done = run("monitor", *arguments, env=env)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout

    def test_a_line_for_every_sample(self):
        lines = self.monitor(*QUICK).splitlines()
        self.assertEqual(lines[0], "cpu")
        self.assertEqual(len(lines), 5)
        for line in lines[1:]:
            self.assertRegex(line, r"^ +0\.[0-9] s ")
            self.assertIn("memory ", line)

    def test_files_hold_the_same_samples(self):
        self.monitor(*QUICK, "--csv", self.path("m.csv"), "--json", self.path("m.json"))
        with open(self.path("m.csv"), newline="") as file:
            rows = list(csv.DictReader(file))
        with open(self.path("m.json")) as file:
            result = json.load(file)
        self.assertEqual(result["schema"], "flashlab.monitor/1")
        self.assertEqual(len(rows), 4)
        self.assertEqual(len(result["samples"]), 4)
        for row, sample in zip(rows, result["samples"]):
            self.assertEqual(list(row), ["seconds", *FIGURES, "throttle"])
            self.assertEqual(float(row["memory_bytes"]), sample["memory_bytes"])
            self.assertTrue(0 <= sample["load_percent"] <= 100, sample)
        self.assertIsNone(result["samples"][0]["power_w"])

    def test_one_of_them_alone_on_stdout(self):
        rows = list(csv.DictReader(io.StringIO(self.monitor(*QUICK, "--csv", "-"))))
        self.assertEqual(len(rows), 4)
        self.assertEqual(len(json.loads(self.monitor(*QUICK, "--json", "-"))["samples"]), 4)

    def test_a_gpu_by_nvml(self):
        out = self.monitor("--device", "cuda", "--interval", "0.05", "--duration", "0.1",
                           "--json", self.path("gpu.json"), env=with_gpu())
        self.assertIn("Fake H200 (cuda:0)", out)
        self.assertIn("load 87 %  clock 1410 MHz  power 700.5 W  temperature 61 °C  memory 3.00 GiB"
                      "  slowed by power limit", out)
        with open(self.path("gpu.json")) as file:
            result = json.load(file)
        self.assertEqual(result["max_clock_mhz"], 1980)
        self.assertEqual(result["samples"][0]["memory_bytes"], 3 << 30)

    def test_a_gpu_that_nobody_knows_is_refused_with_a_remedy(self):
        for env, words in ((with_gpu(FAKE_NVML="broken"), "nvmlInit gave 18"),
                           (dict(os.environ, LD_LIBRARY_PATH=""), "--device cpu")):
            done = run("monitor", "--device", "cuda", "--duration", "0.1", env=env)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn(words, done.stderr)
            self.assertIn("--device cpu", done.stderr)

    def test_ctrl_c_is_how_it_ends(self):
        for arguments, code in (([], 0), (["--duration", "100"], 130)):
            name = self.path(f"end{code}.json")
            process = subprocess.Popen(
                [program(), "monitor", "--device", "cpu", "--interval", "0.05", "--json", name,
                 *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for _ in range(3):
                process.stdout.readline()
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=300)
            self.assertEqual(process.returncode, code)
            with open(name) as file:
                self.assertGreaterEqual(len(json.load(file)["samples"]), 2)

    def test_bad_input(self):
        self.refused(["monitor", "--interval", "0"], "--interval")
        self.refused(["monitor", "--duration", "-1"], "--duration")
        self.refused(["monitor", "--csv", "-", "--json", "-"], "--csv", "--json")


if __name__ == "__main__":
    cli_harness.main()
