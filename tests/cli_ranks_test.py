#!/usr/bin/env python3
"""Several ranks by the command line: launch, bench collective, and how they end."""

import ctypes.util
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from cli_harness import main, program, run

BENCH = ["bench", "collective", "--bytes", "4KiB,1MiB", "--repeats", "3", "--warmup", "1"]


def launch(ranks, *words, **options):
    return run("launch", "-n", str(ranks), *words, **options)


def shell(ranks, script, **options):
    return launch(ranks, "--", "sh", "-c", script, **options)


def wait_for(test, holds, what):
    end = time.monotonic() + 300
    while not holds():
        test.assertLess(time.monotonic(), end, what)
        time.sleep(0.02)


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Peers(unittest.TestCase):
    """bench collective --peers mpi: OpenMPI's own, in processes that its mpirun starts."""

    def rows(self, *words, **options):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "rows.json")
            got = launch(2, *BENCH, "--peers", "mpi", "--python", sys.executable, "--timeout", "60",
                         "--json", path, *words, **options)
            self.assertEqual(got.returncode, 0, got.stderr)
            with open(path, encoding="utf-8") as file:
                return [row for row in json.load(file)["results"]
                        if row["implementation"].startswith("mpi")]

    def test_every_operation_beside_ours(self):
        if shutil.which("mpirun") is None or ctypes.util.find_library("mpi") is None:
            self.skipTest("skipped: no OpenMPI")
        rows = self.rows()
        self.assertEqual([row["status"] for row in rows], ["ok"] * 10, rows)
        for row in rows:
            self.assertGreater(row["median_ms"], 0)
            self.assertIn("Open MPI", row["plan"])
        for row in self.rows("--operation", "all-reduce", "--dtype", "bf16"):
            self.assertEqual(row["status"], "unsupported")
            self.assertIn("bf16 is no type of MPI", row["message"])

    def test_without_mpirun_the_row_says_so(self):
        rows = self.rows("--operation", "broadcast", env={**os.environ, "PATH": "/nowhere"})
        self.assertEqual([row["status"] for row in rows], ["unsupported"] * 2)
        self.assertIn("no mpirun in PATH", rows[0]["message"])
        self.assertIn("openmpi-bin", rows[0]["message"])

    def test_an_unknown_peer_is_refused(self):
        got = run("bench", "collective", "--device", "cpu", "--peers", "mpich")
        self.assertEqual(got.returncode, 2)
        self.assertIn("mpi", got.stderr)


class Launch(unittest.TestCase):
    def test_variables_and_lines(self):
        got = shell(3, 'echo "$RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE at '
                       '$MASTER_ADDR"; test -n "$MASTER_PORT" && echo $MASTER_PORT >&2')
        self.assertEqual(got.returncode, 0, got.stderr)
        self.assertEqual(got.stdout, "0 of 3, 0 of 3 at 127.0.0.1\n")
        self.assertIn("[rank 1] 1 of 3, 1 of 3 at 127.0.0.1\n", got.stderr)
        self.assertIn("[rank 2] 2 of 3, 2 of 3 at 127.0.0.1\n", got.stderr)

    def test_multicast_is_off_in_every_rank(self):
        # Whatever somebody set.
        env = {**os.environ, "NCCL_NVLS_ENABLE": "1"}
        got = shell(2, 'echo $NCCL_NVLS_ENABLE $TORCH_SYMM_MEM_DISABLE_MULTICAST '
                       '$NVSHMEM_DISABLE_NVLS', env=env)
        self.assertEqual(got.stdout, "0 1 1\n")
        self.assertIn("[rank 1] 0 1 1\n", got.stderr)

    def test_processors_are_dealt(self):
        script = "import os; print(sorted(os.sched_getaffinity(0)), os.environ['FLASHLAB_THREADS'])"
        ranks = 2
        got = launch(ranks, "--", sys.executable, "-c", script)
        texts = [got.stdout.strip()] + re.findall(r"^\[rank 1\] (.*)$", got.stderr, re.M)
        sets = [set(json.loads(text.rsplit(" ", 1)[0])) for text in texts]
        self.assertEqual(len(sets), ranks)
        self.assertEqual(sets[0] | sets[1], os.sched_getaffinity(0) if len(sets[0]) < len(
            os.sched_getaffinity(0)) else sets[0])

    def test_the_first_that_fails_ends_all(self):
        got = shell(3, 'if [ $RANK = 1 ]; then exit 7; fi; sleep 3600')
        self.assertEqual(got.returncode, 7)
        self.assertRegex(got.stderr, r"^flashlab: rank 1 of 3 \(process \d+ on \S+\) ended with "
                                     r"exit code 7; all ranks were ended\n$")

    def test_a_killed_rank_is_named(self):
        got = shell(2, 'if [ $RANK = 1 ]; then kill -9 $$; fi; sleep 3600')
        self.assertEqual(got.returncode, 1)
        self.assertRegex(got.stderr, r"^flashlab: rank 1 of 2 \(process \d+ on \S+\) was ended by "
                                     r"signal 9 \(Killed\); all ranks were ended\n$")

    def test_nothing_is_left_running(self):
        # What a rank started goes with it; a rank that does not listen is ended, too.
        with tempfile.TemporaryDirectory() as folder:
            got = shell(2, f'trap "" TERM; sleep 300 & echo $! > {folder}/$RANK; '
                           f'while [ ! -e {folder}/0 ] || [ ! -e {folder}/1 ]; do sleep 0.05; '
                           'done; if [ $RANK = 0 ]; then exit 1; fi; while true; do sleep 1; done')
            self.assertEqual(got.returncode, 1)
            for rank in "01":
                with open(f"{folder}/{rank}", encoding="utf-8") as file:
                    pid = int(file.read())
                # A killed process is gone when a busy machine next lets it run.
                wait_for(self, lambda pid=pid: not is_running(pid), "a child outlived its rank")

    def test_ranks_end_with_a_killed_launcher(self):
        with tempfile.TemporaryDirectory() as folder:
            child = subprocess.Popen(
                [program(), "launch", "-n", "2", "--", "sh", "-c",
                 f'echo $$ > {folder}/$RANK.new; mv {folder}/$RANK.new {folder}/$RANK; '
                 'exec sleep 300'])
            paths = [f"{folder}/{rank}" for rank in "01"]
            wait_for(self, lambda: all(os.path.exists(path) for path in paths), "they never began")
            child.kill()
            child.wait()
            for path in paths:
                with open(path, encoding="utf-8") as file:
                    pid = int(file.read())
                wait_for(self, lambda pid=pid: not is_running(pid), "a rank outlived its launcher")

    def test_ctrl_c_reaches_all(self):
        with tempfile.TemporaryDirectory() as folder:
            child = subprocess.Popen(
                [program(), "launch", "-n", "2", "--", "sh", "-c",
                 f'trap "echo stop > {folder}/$RANK.end; exit 0" INT; echo > {folder}/$RANK; '
                 'while true; do sleep 0.1; done'], stderr=subprocess.PIPE, text=True)
            wait_for(self, lambda: all(os.path.exists(f"{folder}/{r}") for r in "01"), "begin")
            child.send_signal(signal.SIGINT)
            _, notes = child.communicate(timeout=300)
            self.assertEqual(child.returncode, 130)
            self.assertEqual(notes, "")
            self.assertEqual(sorted(os.listdir(folder)), ["0", "0.end", "1", "1.end"])

    def test_bad_input(self):
        for words, text in [
                (["launch", "bench", "collective"], "launch needs the number of ranks"),
                (["launch", "-n", "2"], "launch needs a command"),
                (["launch", "-n", "0", "bench", "collective"], "use 1 to 64"),
                (["launch", "-n", "2", "--"], "needs a program"),
                (["launch", "-n", "2", "info"], "info does not run as several ranks; launch takes "
                                                "bench collective"),
                (["launch", "-n", "2", "--", "no-such"], "no-such: no such program")]:
            got = run(*words)
            self.assertEqual(got.returncode, 2, got.stderr)
            self.assertIn(text, got.stderr)
            self.assertEqual(got.stderr.count("\n"), 1, got.stderr)


class Collective(unittest.TestCase):
    def check_rows(self, results, ranks):
        self.assertEqual(len(results), 10)
        for row in results:
            self.assertEqual(row["status"], "ok", row)
            self.assertEqual(row["ranks"], ranks)
            self.assertGreater(row["median_ms"], 0)
            self.assertGreaterEqual(row["slowest_rank_ms"], row["mean_rank_ms"])
            factor = {"all-reduce": 2 * (ranks - 1) / ranks, "broadcast": 1}.get(
                row["operation"], (ranks - 1) / ranks)
            self.assertAlmostEqual(row["bus_gb_per_s"] / row["algorithm_gb_per_s"], factor, 2)

    def test_alone_it_starts_the_ranks(self):
        got = run(*BENCH, "--ranks", "3", "--json", "-")
        self.assertEqual(got.returncode, 0, got.stderr)
        self.check_rows(json.loads(got.stdout)["results"], 3)

    def test_under_launch_rank_0_prints(self):
        got = launch(2, *BENCH, "--json", "-")
        self.assertEqual(got.returncode, 0, got.stderr)
        self.check_rows(json.loads(got.stdout)["results"], 2)
        self.assertNotIn("[rank 1]", got.stderr)

    def test_one_rank_has_no_bus(self):
        for got, who in ((run(*BENCH, "--ranks", "1"), "--ranks 1"),
                         (run(*BENCH, "--ranks", "2,1"), "--ranks 1"),
                         (launch(1, *BENCH), "the one rank that flashlab launch started")):
            self.assertEqual(got.returncode, 2, got.stderr)
            self.assertEqual(got.stderr, f"flashlab: bench collective with {who}: one rank has no "
                             "bus bandwidth, it sends nothing; use at least 2: flashlab bench "
                             "collective --ranks 2\n")

    def test_other_starters(self):
        # mpirun's and torchrun's variables, set by hand: two processes that nobody watches.
        for variables in [
                lambda r: {"OMPI_COMM_WORLD_RANK": r, "OMPI_COMM_WORLD_SIZE": "2",
                           "OMPI_COMM_WORLD_LOCAL_RANK": r, "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
                           "PMIX_NAMESPACE": f"test{os.getpid()}"},
                lambda r: {"RANK": r, "WORLD_SIZE": "2", "LOCAL_RANK": r, "LOCAL_WORLD_SIZE": "2",
                           "MASTER_ADDR": "localhost", "TORCHELASTIC_RUN_ID": "none",
                           "MASTER_PORT": str(20000 + os.getpid() % 9999)}]:
            ranks = [subprocess.Popen([program(), *BENCH], stdout=subprocess.PIPE, text=True,
                                      stderr=subprocess.PIPE, env={**os.environ, **variables(r)})
                     for r in "01"]
            texts = [rank.communicate(timeout=300) for rank in ranks]
            self.assertEqual([rank.returncode for rank in ranks], [0, 0], texts)
            self.assertIn("all-reduce", texts[0][0])
            self.assertEqual(texts[1], ("", ""))

    def test_contradictions_are_refused(self):
        for env, text in [({"RANK": "0", "WORLD_SIZE": "2"}, "LOCAL_WORLD_SIZE: got nothing"),
                          ({"RANK": "3", "WORLD_SIZE": "2"}, "RANK: got \"3\", expected a whole"),
                          ({"RANK": "0"}, "WORLD_SIZE: got nothing")]:
            got = run(*BENCH, env={**os.environ, **env})
            self.assertEqual(got.returncode, 2, got.stderr)
            self.assertIn(text, got.stderr)
            self.assertIn("unset RANK", got.stderr)
        # Half of four ranks: the others are on another host.
        hosts = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4",
                 "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
        got = run(*BENCH, env={**os.environ, **hosts})
        self.assertEqual(got.returncode, 2, got.stderr)
        self.assertIn("ranks: got 4 on 2 hosts or more", got.stderr)
        self.assertIn("expected MASTER_ADDR and MASTER_PORT", got.stderr)
        got = launch(2, *BENCH, "--ranks", "4")
        self.assertEqual(got.returncode, 2)
        self.assertEqual(got.stderr, "flashlab: --ranks 4 beside the 2 ranks that flashlab launch "
                                     "started; leave one of the two away\n")

    def test_products_beside_want_gpus(self):
        for launched in ([], ["launch", "-n", "2"]):
            got = subprocess.run([program(), *launched, "bench", "collective", "--device", "cpu",
                                  "--beside", "product"], capture_output=True, text=True,
                                 check=False)
            self.assertEqual((got.returncode, got.stdout), (2, ""), got.stderr)
            self.assertRegex(got.stderr, "^flashlab: --beside product: got processors, "
                                         "expected --device cuda; [^\n]*\n$")

    def start_endless(self, folder, *flags):
        """Ranks that exchange for a minute; gives the launcher and the ranks' processes."""
        child = subprocess.Popen(
            [program(), "launch", "-n", "2", "bench", "collective", "--operation", "all-reduce",
             "--bytes", "64KiB,68KiB,72KiB,76KiB", "--repeats", "100000", "--json",
             f"{folder}/out.json", *flags],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        def ranks():
            with open(f"/proc/{child.pid}/task/{child.pid}/children", encoding="utf-8") as file:
                return file.read().split()
        # The place where they met is gone when all have come.
        wait_for(self, lambda: len(ranks()) == 2 and os.path.exists(f"{folder}/out.json"), "begin")
        return child, [int(pid) for pid in ranks()]

    def test_a_killed_rank_ends_all_with_one_message(self):
        for killed in (0, 1):
            with tempfile.TemporaryDirectory() as folder:
                child, ranks = self.start_endless(folder, "--timeout", "3600")
                os.kill(ranks[killed], signal.SIGKILL)
                _, notes = child.communicate(timeout=300)
                self.assertEqual(child.returncode, 1)
                self.assertRegex(notes, rf"^flashlab: rank {killed} of 2 \(process "
                                        rf"{ranks[killed]} on \S+\) was ended by signal 9 "
                                        r"\(Killed\); .*all ranks were ended\n$")
                self.assertFalse(any(is_running(pid) for pid in ranks))

    def test_a_rank_killed_at_the_start_is_all_that_is_said(self):
        for delay in (0, 0.1, 0.2, 0.3):
            child = subprocess.Popen([program(), "launch", "-n", "2", *BENCH],
                                     stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            children = f"/proc/{child.pid}/task/{child.pid}/children"
            def ranks(path=children):
                with open(path, encoding="utf-8") as file:
                    return file.read().split()
            wait_for(self, lambda: len(ranks()) == 2, "begin")
            killed = int(ranks()[1])
            time.sleep(delay)
            if not is_running(killed):
                child.communicate(timeout=300)
                continue  # it was done before
            os.kill(killed, signal.SIGKILL)
            _, notes = child.communicate(timeout=300)
            self.assertRegex(notes, r"^(flashlab: rank 1 of 2 .* signal 9 .*\n)?$")
            self.assertEqual(child.returncode, 1 if notes else 0)

    def test_a_stopped_rank_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            # Long enough for a rank of a busy machine to come while it is not stopped.
            child, ranks = self.start_endless(folder, "--timeout", "5")
            os.kill(ranks[1], signal.SIGSTOP)
            _, notes = child.communicate(timeout=300)
            self.assertEqual(child.returncode, 1)
            self.assertRegex(notes, rf"^flashlab: rank 1 \(process {ranks[1]} on \S+\) did not "
                                    r"come within 5 s, it is stopped \(SIGSTOP\); .*(rank 1 "
                                    r"never did|all ranks had begun it); all ranks were ended\n$")
            self.assertFalse(any(is_running(pid) for pid in ranks))

    def test_the_place_where_ranks_met_is_gone(self):
        launch(2, *BENCH)
        left = [name for name in os.listdir("/dev/shm")
                if name.startswith("flashlab-") and not name.startswith("flashlab-test")]
        mine = [name for name in left if name.startswith(f"flashlab-{os.getuid()}-")]
        # Other tests may be meeting at this moment.
        wait_for(self, lambda: not any(os.path.exists(f"/dev/shm/{name}") for name in mine), mine)


class Explain(unittest.TestCase):
    def test_numbers_are_put_in_at_once(self):
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        got = run("explain", "parallel", "--size", "large", "--machine", "h100", "--ranks", "2,4",
                  "--json", "-")
        self.assertLess(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before, 5)
        self.assertEqual(got.returncode, 0, got.stderr)
        modes = json.loads(got.stdout)["modes"]
        self.assertEqual([mode["mode"] for mode in modes[:8]],
                         ["naive", "flat", "overlap", "bucket", "sharded", "zero1", "zero2",
                          "fsdp"])
        self.assertEqual([mode["ranks"] for mode in modes], [2] * 8 + [4] * 8)
        text = run("explain", "parallel", "--tflops", "100", "--link", "10").stdout
        for words in ("C = 100 TFLOP/s, W = 10 GB/s", "hides up to N = 2", "3.518 TB: 44 GPUs",
                      "319, of all 64 devices 20444", "N <= 1.5BF(W/C)^2"):
            self.assertIn(words, text)

    def test_bad_input(self):
        for flags, text in [(["--ranks", "1"], "--ranks 1 is out of range"),
                            (["--link", "0"], "--link 0 is not above 0"),
                            (["--size", "huge"], "huge"), (["--bucket", "0"], "--bucket \"0\""),
                            (["--machine", "cray"], "--machine \"cray\" is unknown")]:
            got = run("explain", "parallel", *flags)
            self.assertEqual(got.returncode, 2)
            self.assertIn(text, got.stderr)


if __name__ == "__main__":
    main()
