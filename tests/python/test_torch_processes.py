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
            signal.alarm(60)
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
        expected = [Rows()[i] for i in range(len(Rows()))]
        for start in ("fork", "spawn"):
            with self.subTest(start):
                loader = DataLoader(Rows(), batch_size=None, num_workers=2, timeout=60,
                                    multiprocessing_context=multiprocessing.get_context(start))
                for got, truth in zip(loader, expected):
                    for a, b in zip(got, truth):
                        self.assert_close(a, b, "an item", 1e-5)

    @unittest.skipUnless(CUDA, "skipped: no GPU")
    def test_cuda_in_a_forked_child_is_refused(self):
        q = torch.randn(1, 16, 1, 64, device="cuda", dtype=torch.bfloat16)
        flash.attention(q, q, q)
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            try:
                flash.attention(q, q, q)
            except RuntimeError:
                os._exit(0)
            os._exit(1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(flash.attention(q, q, q).shape, q.shape)


if __name__ == "__main__":
    unittest.main()
