"""Processes that begin after FlashLab was used: forks, DataLoader workers."""

import multiprocessing
import os
import signal
import unittest

from torch_cases import CUDA, Judge, formula, inputs

import torch
from torch.utils.data import DataLoader, Dataset

import flashlab.torch as flash


class Rows(Dataset):
    """Items whose making needs attention, as a teacher model in a data pipeline would."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        q, k, v = inputs((1, 65, 4, 32), seed=index)
        o = flash.attention(q, k, v, causal=True)
        dq, = torch.autograd.grad(o.sum(), q)
        return o.detach()[0], dq[0]


def check_workers(start):
    """In a process of its own, which must not have differentiated: torch refuses to do so in a fork
    of one that has, where a GPU is."""
    q, k, v = inputs((2, 257, 8, 64), requires_grad=False)
    flash.attention(q, k, v)  # the threads of a pool, which no fork copies
    loader = DataLoader(Rows(), batch_size=None, num_workers=2, timeout=600,
                        multiprocessing_context=multiprocessing.get_context(start))
    items = list(loader)
    torch.testing.assert_close(items, [Rows()[i] for i in range(len(Rows()))], rtol=1e-5, atol=1e-5)


class Forked(Judge):

    def setUp(self):
        q, k, v = inputs((2, 257, 8, 64))
        flash.attention(q, k, v).sum().backward()  # the threads of a pool, which no fork copies

    def test_fork(self):
        q, k, v = inputs((2, 257, 8, 64), requires_grad=False)
        expected = flash.attention(q, k, v)
        self.assert_close(expected, formula(q, k, v)[0], "o in the parent")
        child = os.fork()
        if child == 0:
            signal.alarm(600)
            try:
                # Compared as bytes: torch's own threads did not survive the fork either.
                o = flash.attention(q, k, v)
                right = o.numpy().tobytes() == expected.numpy().tobytes()
            except BaseException:  # a traceback here would be the parent's, twice
                right = False
            os._exit(0 if right else 1)
        _, status = os.waitpid(child, 0)
        self.assertEqual(status, 0, "the child hung or computed something else")
        self.assert_equal(flash.attention(q, k, v), expected, "o in the parent")

    def test_data_loader_workers(self):
        for start in ("fork", "spawn"):
            with self.subTest(start):
                process = multiprocessing.get_context("spawn").Process(
                    target=check_workers, args=(start,))
                process.start()
                process.join(900)
                process.kill()  # one that hangs must not hold up the end; no effect on others
                process.join()
                self.assertEqual(process.exitcode, 0)

    @unittest.skipUnless(CUDA, "skipped: no GPU")
    def test_cuda_in_a_forked_child_is_refused(self):
        q = torch.randn(1, 16, 1, 64, device="cuda", dtype=torch.bfloat16)
        flash.attention(q, q, q)
        child = os.fork()
        if child == 0:
            signal.alarm(600)
            try:
                flash.attention(q, q, q)
            except RuntimeError:
                os._exit(0)
            os._exit(1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(flash.attention(q, q, q).shape, q.shape)


if __name__ == "__main__":
    unittest.main()
