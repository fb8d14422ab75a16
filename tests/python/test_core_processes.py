#!/usr/bin/env python3
"""flashlab from many threads, after fork(), in spawned processes, and as a program."""

import concurrent.futures
import multiprocessing
import os
import subprocess
import sys
import threading
import unittest

import core_oracle as oracle

import flashlab
from flashlab import _core


def agrees(seed):
    """Whether a call gives what the formula says; runs in other threads and processes."""
    q, k, v, d_o = oracle.arrays(seed, 1, 16 + seed % 7, 33, 4, 2, 16)
    o, lse = _core.forward(q, k, v)
    dq, _, _ = _core.backward(d_o, q, k, v, o, lse)
    o_error = abs(o - oracle.forward(q, k, v)[0]).max()
    dq_error = abs(dq - oracle.backward(d_o, q, k, v)[0]).max()
    return bool(o_error < 1e-4 and dq_error < 1e-4)


def in_child(body):
    """Forks; the child's exit code says whether body() was true."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if body() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Threads(unittest.TestCase):
    def test_many_threads(self):
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            self.assertTrue(all(pool.map(agrees, range(64))))

    def test_the_interpreter_runs_on(self):
        q, k, v, _ = oracle.arrays(1, 4, 1024, 1024, 8, 8, 64)
        ticks, done = [], threading.Event()

        def tick():
            while not done.is_set():
                ticks.append(1)
                done.wait(0.001)
        ticker = threading.Thread(target=tick)
        ticker.start()
        before = len(ticks)
        for _ in range(3):
            flashlab.attention(q, k, v)
        during = len(ticks) - before
        done.set()
        ticker.join()
        # While the lock was held there would be none.
        self.assertGreater(during, 3)


class Processes(unittest.TestCase):
    def test_fork_after_use(self):
        self.assertTrue(agrees(1))
        self.assertEqual(in_child(lambda: agrees(2)), 0)
        self.assertTrue(agrees(3))

    def test_fork_of_a_fork(self):
        self.assertTrue(agrees(1))
        self.assertEqual(in_child(lambda: in_child(lambda: agrees(2)) == 0 and agrees(3)), 0)

    def test_fork_while_other_threads_compute(self):
        stop = threading.Event()

        def work():
            while not stop.is_set():
                agrees(4)
        workers = [threading.Thread(target=work) for _ in range(3)]
        for worker in workers:
            worker.start()
        try:
            for seed in range(10):
                self.assertEqual(in_child(lambda seed=seed: agrees(seed)), 0)
        finally:
            stop.set()
            for worker in workers:
                worker.join()

    def test_pools(self):
        for method in ("fork", "spawn"):
            with self.subTest(method), multiprocessing.get_context(method).Pool(2) as pool:
                self.assertTrue(all(pool.map(agrees, range(8))))


class Program(unittest.TestCase):
    def run_program(self, *arguments):
        return subprocess.run([sys.executable, "-m", "flashlab", *arguments], text=True,
                              capture_output=True, check=False, stdin=subprocess.DEVNULL)

    def test_runs(self):
        done = self.run_program("--version")
        self.assertEqual(done.returncode, 0)
        self.assertIn(flashlab.__version__, done.stdout)

    def test_exit_codes_come_through(self):
        done = self.run_program("bench", "--seqlen", "x")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--seqlen", done.stderr)


if __name__ == "__main__":
    unittest.main()
