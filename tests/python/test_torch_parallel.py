"""flashlab.torch.parallel on two ranks: over gloo, and over FlashLab's own transport.

What runs on the ranks is parallel_ranks.py, with warnings as errors. FLASHLAB_REPEATS=20 runs every
case 20 times in a row.
"""

import os
import subprocess
import sys
import tempfile
import unittest

import torch_cases  # noqa: F401  (skips without PyTorch)
import torch
from torch import nn

from flashlab.torch import parallel as fp
import flashlab.torch

HERE = os.path.dirname(os.path.abspath(__file__))


def free_port():
    import socket
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]


def run_ranks(backend, ranks=2, limit_s=420):
    """Every rank's (exit code, output). Nothing waits longer than that."""
    port, started = free_port(), []
    for rank in range(ranks):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(ranks),
                       "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks),
                       "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
        command = [sys.executable, "-W", "error", os.path.join(HERE, "parallel_ranks.py"), backend,
                   os.environ.get("FLASHLAB_REPEATS", "1")]
        out = tempfile.TemporaryFile(mode="w+")
        started.append((subprocess.Popen(command, env=environment, stdout=out,
                                         stderr=subprocess.STDOUT), out))
    ended = []
    for process, out in started:
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            code = f"nothing within {limit_s} s"
        out.seek(0)
        ended.append((code, out.read()))
        out.close()
    return ended


class Ranks(unittest.TestCase):

    def pass_all(self, backend):
        with open(os.path.join(HERE, "parallel_ranks.py"), encoding="utf-8") as source:
            cases = source.read().count("\ndef case_")
        ended = run_ranks(backend)
        for rank, (code, said) in enumerate(ended):
            self.assertEqual(code, 0, f"rank {rank}: {said}")
        repeats = int(os.environ.get("FLASHLAB_REPEATS", "1"))
        self.assertEqual(ended[0][1].count("passed case_"), cases * repeats, ended[0][1])

    def test_own_transport(self):
        self.pass_all("own")

    def test_gloo(self):
        if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
            self.skipTest("skipped: no gloo in this PyTorch")
        self.pass_all("gloo")


class Alone(unittest.TestCase):
    """Without a starter a process is a group of one, and everything works."""

    def test_a_group_of_one(self):
        torch.manual_seed(0)
        for made, after in ((fp.get_ddp, fp.ddp_on_after_backward),
                            (fp.get_fsdp, fp.fsdp_on_after_backward)):
            model = made(nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2)))
            optimizer = fp.get_sharded_optimizer(model.parameters(), torch.optim.AdamW, lr=0.1)
            x = torch.rand(8, 3)
            first = model(x).square().mean()
            for _ in range(20):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                after(model, optimizer)
                optimizer.step()
            self.assertLess(model(x).square().mean().item(), first.item())

    def test_names(self):
        for name in fp.__all__:
            self.assertTrue(getattr(fp, name).__doc__, name)
            if name.islower():
                self.assertIs(getattr(flashlab.torch, name), getattr(fp, name))


if __name__ == "__main__":
    unittest.main()
