#!/usr/bin/env python3
"""Collectives between GPUs by the command line: against stand-ins for the driver, the compiler and
NCCL, which run copies between processes and sum as GPUs do (dist_fake_gpu.cpp)."""

import json
import os
import tempfile
import unittest

from cli_harness import main, run

FAKE = os.environ.get("FLASHLAB_FAKE_GPU", "")
BENCH = ["bench", "collective", "--device", "cuda", "--enqueue", "eager", "--bytes", "4KiB",
         "--repeats", "2", "--warmup", "1", "--timeout", "30"]


def environment(**more):
    library = os.path.join(FAKE, "libcuda.so.1")
    return {**os.environ, "LD_LIBRARY_PATH": FAKE, "FLASHLAB_NVRTC": library,
            "FLASHLAB_CACHE": "/proc/nowhere", "FLASHLAB_NCCL": "/nowhere/libnccl.so.2", **more}


def bench(*words, **more):
    return run(*BENCH, *words, env=environment(**more))


def rows_of(*words, **more):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rows.json")
        got = bench("--json", path, *words, **more)
        with open(path, encoding="utf-8") as file:
            return got, json.load(file)["results"]


class OnGpus(unittest.TestCase):
    def test_copies_run_and_nccl_says_what_it_lacks(self):
        got, rows = rows_of("--dtype", "bf16,fp32")
        self.assertEqual(got.returncode, 0, got.stderr)
        by_name = {}
        for row in rows:
            by_name.setdefault(row["implementation"], []).append(row)
        self.assertEqual({name: len(each) for name, each in by_name.items()},
                         {"auto.eager": 10, "nccl.eager": 10, "copies.eager": 10})
        for row in by_name["copies.eager"] + by_name["auto.eager"]:
            self.assertEqual(row["status"], "ok", row)
            self.assertIn("by copies", row["plan"])
        for row in by_name["nccl.eager"]:
            self.assertEqual(row["status"], "unsupported")
            self.assertIn("/nowhere/libnccl.so.2", row["message"])

    def test_sums_say_whose_they_are(self):
        _, rows = rows_of("--operation", "reduce-scatter", "--transport", "copies")
        self.assertRegex(rows[0]["plan"], r"^\d+ calls a sample, by copies, our sums$")

    def test_mpi_is_no_peer_of_gpus(self):
        got = bench("--peers", "mpi")
        self.assertEqual(got.returncode, 2)
        self.assertIn("mpi on GPUs", got.stderr)

    def test_without_peer_access_the_table_says_why(self):
        _, rows = rows_of("--operation", "all-gather", "--transport", "copies", FAKE_NO_PEERS="1")
        self.assertEqual(rows[0]["status"], "unsupported")
        self.assertIn("no peer access from cuda:0 to cuda:1", rows[0]["message"])

    def test_an_old_nccl_is_named(self):
        _, rows = rows_of("--operation", "all-gather", "--transport", "nccl", FAKE_NCCL="21803",
                          FLASHLAB_NCCL=os.path.join(FAKE, "libcuda.so.1"))
        self.assertIn("libcuda.so.1: version 2.18.3", rows[0]["message"])
        self.assertIn("2.19.0 or newer", rows[0]["message"])

    def test_a_python_without_pytorch_is_a_row(self):
        _, rows = rows_of("--operation", "all-gather", "--transport", "copies", "--peers", "torch",
                          "--python", "/nowhere/python")
        self.assertEqual([row["implementation"] for row in rows], ["copies.eager", "torch"])
        self.assertIn("/nowhere/python cannot be started", rows[1]["message"])

    def refused(self, words, *needles, **more):
        got = bench(*words, **more)
        self.assertEqual(got.returncode, 2, got.stderr)
        self.assertEqual(len(got.stderr.strip().splitlines()), 1, got.stderr)
        for needle in needles:
            self.assertIn(needle, got.stderr)

    def test_bad_input(self):
        self.refused([], "one GPU for ranks 0 and 1", FAKE_SAME="1")
        self.refused(["--ranks", "3"], "3 ranks on ", "which has 2 GPUs")
        self.refused(["--ranks", "2,4"], "--ranks takes one number beside --device cuda")
        self.refused(["--transport", "shared"], "--transport: got shared",
                     "expected auto, nccl, copies on this device;")
        self.refused(["--transport", "smoke"], "smoke")


if __name__ == "__main__":
    main()
