#!/usr/bin/env python3
"""Ranks whose bytes MPI carries, by the command line under mpirun; skipped where it is not."""

import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest

from cli_harness import main, program, run
from cli_parallel_test import SMALL as TRAIN, bytes_of, short_text

MODULE = os.environ.get("FLASHLAB_MPI_MODULE", "")
BENCH = ["bench", "collective", "--device", "cpu", "--repeats", "2", "--warmup", "1"]
HERE = MODULE != "" and shutil.which("mpirun") is not None


def mpirun(ranks, *words, **more):
    # OpenMPI's, by variables, so that MPICH's mpirun takes the same line.
    env = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
           "OMPI_MCA_rmaps_base_oversubscribe": "1", **more}
    return subprocess.run(["mpirun", "-n", str(ranks), *words], capture_output=True, text=True,
                          timeout=300, env=env, check=False)


def ours(got):
    return [line for line in got.stderr.splitlines() if "flashlab: " in line]


class WithoutMpi(unittest.TestCase):
    def test_a_missing_module_is_named_once_with_where_it_was_looked_for(self):
        got = run("launch", "-n", "2", *BENCH, "--bytes", "4KiB", "--transport", "mpi",
                  env={**os.environ, "FLASHLAB_MPI": "/nowhere/module.so"})
        self.assertEqual(got.returncode, 2, got.stderr)
        self.assertEqual(len(ours(got)), 1, got.stderr)
        self.assertIn("/nowhere/module.so", got.stderr)
        self.assertIn("FLASHLAB_MPI names a file", got.stderr)

    def test_a_library_that_is_no_module_is_refused(self):
        got = run("launch", "-n", "2", "train", "--steps", "1", "--transport", "mpi",
                  env={**os.environ, "FLASHLAB_MPI": "libm.so.6"})
        self.assertEqual(got.returncode, 2, got.stderr)
        self.assertEqual(len(ours(got)), 1, got.stderr)
        self.assertIn("libm.so.6 without flashlab_mpi_open", got.stderr)


@unittest.skipUnless(HERE, "no mpirun, or built without mpi.h")
class UnderMpirun(unittest.TestCase):
    def test_every_operation_and_type_arrives(self):
        for ranks, types, sizes, rows_here in ((2, "fp64,fp32,fp16,bf16", "48,6MiB", 40),
                                               (3, "fp32,bf16", "48,4KiB", 20)):
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "rows.json")
                # A slice of 6 MiB is more than what is added at once.
                got = mpirun(ranks, program(), *BENCH, "--transport", "mpi", "--bytes",
                             sizes, "--dtype", types, "--json", path)
                self.assertEqual(got.returncode, 0, got.stderr)
                with open(path, encoding="utf-8") as file:
                    rows = json.load(file)["results"]
            self.assertEqual(len(rows), rows_here)
            for row in rows:
                self.assertEqual(row["status"], "ok", row)
                self.assertIn("by mpi", row["plan"])

    def test_check_parallel_finds_one_ranks_bits(self):
        got = mpirun(2, program(), "check", "parallel", "--quick", "--transport", "mpi")
        self.assertEqual(got.returncode, 0, got.stdout + got.stderr)
        self.assertRegex(got.stdout, r"\n(\d+) of \1 give the bits of one rank")

    def test_training_has_the_bits_of_one_rank(self):
        with tempfile.TemporaryDirectory() as folder:
            words = [*TRAIN, *short_text(folder), "--steps", "10", "--save-every", "10", "--output"]
            got = run(*words, f"{folder}/one", "--shares", "2")
            self.assertEqual(got.returncode, 0, got.stderr)
            for mode in ("bucket", "zero1"):  # between them every collective of training
                got = mpirun(2, program(), *words, f"{folder}/{mode}", "--parallel", mode,
                             "--transport", "mpi")
                self.assertEqual(got.returncode, 0, got.stdout + got.stderr)
                for file in ("model", "optimizer"):
                    ends = [bytes_of(f"{folder}/{name}/step-10/{file}.safetensors")
                            for name in ("one", mode)]
                    self.assertEqual(*ends, mode)

    def test_a_missing_module_is_one_message(self):
        got = mpirun(2, program(), *BENCH, "--bytes", "4KiB", "--transport", "mpi",
                     FLASHLAB_MPI="/nowhere/module.so")
        self.assertEqual(got.returncode, 2, got.stderr)
        self.assertEqual(len(ours(got)), 1, got.stderr)

    def test_ranks_that_another_started_are_refused(self):
        got = run("launch", "-n", "2", *BENCH, "--bytes", "4KiB", "--transport", "mpi")
        self.assertEqual(got.returncode, 2, got.stderr)
        self.assertRegex(got.stderr, r"rank 0 of 1 by .*expected rank 0 of 2; start the ranks by")

    def test_a_rank_that_dies_ends_all(self):
        with tempfile.TemporaryDirectory() as folder:
            script = ('if [ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" = 1 ]; then (while [ ! -s '
                      f'{folder}/run/log.jsonl ]; do sleep 0.1; done; kill -9 $$) & fi; exec "$@"')
            got = mpirun(2, "sh", "-c", script, "sh", program(), *TRAIN, *short_text(folder),
                         "--steps", "100000", "--transport", "mpi", "--output", f"{folder}/run")
        self.assertNotEqual(got.returncode, 0)
        self.assertTrue(re.search(r"signal 9|SIGNAL 9|KILLED", got.stderr), got.stderr)


if __name__ == "__main__":
    main()
