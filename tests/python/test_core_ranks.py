"""flashlab.Communicator: arrays between processes, by the command line's own launcher."""

import os
import subprocess
import sys
import unittest

import numpy as np

import flashlab

COMMAND = os.path.join(os.path.dirname(flashlab.__file__), "bin", "flashlab")

PROGRAM = """
import sys, numpy as np, flashlab
c = flashlab.Communicator(timeout=60)
N, r = c.size, c.rank
for dtype in (np.float64, np.float32, np.float16):
    x = np.arange(6 * N, dtype=dtype).reshape(2 * N, 3) + r
    everybody = [np.arange(6 * N, dtype=dtype).reshape(2 * N, 3) + k for k in range(N)]
    total = sum(everybody[1:], everybody[0])
    assert np.array_equal(c.all_reduce(x), total)
    assert np.array_equal(x, everybody[r])
    assert np.array_equal(c.reduce_scatter(x), total[2 * r:2 * r + 2])
    assert np.array_equal(c.all_gather(x), np.concatenate(everybody))
    parts = np.concatenate([one[2 * r:2 * r + 2] for one in everybody])
    assert np.array_equal(c.all_to_all(x), parts)
    for root in range(N):
        assert np.array_equal(c.broadcast(x, root=root), everybody[root])
    assert c.all_reduce(x, out=x) is x and np.array_equal(x, total)
assert c.all_gather(np.array([[r, 7]], np.int8)).tolist() == [[k, 7] for k in range(N)]
assert c.all_gather(np.array(r == 0)).tolist() == [k == 0 for k in range(N)]
assert c.all_gather(np.empty((0, 3))).shape == (0, 3)
assert c.exchange({"rank": r, "long": "x" * r}) == [{"rank": k, "long": "x" * k} for k in range(N)]
# A second group of the same ranks, beside the first.
second = flashlab.Communicator()
second.barrier()
assert second.all_reduce(np.ones(1)).item() == N
print("right", r, c)
"""

LOST = """
import os, sys, numpy as np, flashlab
c = flashlab.Communicator(timeout=60)
c.all_reduce(np.ones(3))
if c.rank == 1:
    os._exit(0)
try:
    c.all_reduce(np.ones(3), name="the sum")
except RuntimeError as error:
    print("told:", error)
try:
    c.barrier()
except RuntimeError as error:
    print("again:", error)
"""


def launch(program, ranks):
    return subprocess.run([COMMAND, "launch", "-n", str(ranks), "--", sys.executable, "-W", "error",
                           "-c", program], capture_output=True, text=True, timeout=120, check=False)


@unittest.skipUnless(os.path.exists(COMMAND), "skipped: no command line beside the package")
class Ranks(unittest.TestCase):

    def test_every_call(self):
        for ranks in (1, 2, 3):
            ended = launch(PROGRAM, ranks)
            self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
            for rank in range(ranks):
                self.assertIn(f"right {rank} <flashlab.Communicator rank {rank} of {ranks}",
                              ended.stdout + ended.stderr)

    def test_a_rank_that_is_gone(self):
        ended = launch(LOST, 2)
        self.assertIn("told: ", ended.stdout)
        self.assertIn("the sum", ended.stdout)
        self.assertIn("rank 1", ended.stdout)
        self.assertIn("again: ", ended.stdout)


class Alone(unittest.TestCase):
    """A group of one: what is wrong with arguments."""

    def setUp(self):
        self.group = flashlab.Communicator()

    def test_sums_of_one(self):
        x = np.ones((3, 2), np.float32)
        self.assertEqual((self.group.rank, self.group.size), (0, 1))
        self.assertTrue(np.array_equal(self.group.all_reduce(x), x))
        self.assertEqual(self.group.exchange("word"), ["word"])

    def test_bad_arguments(self):
        group, x = self.group, np.ones((4, 2), np.float32)
        cases = (
            (TypeError, "int64", lambda: group.all_reduce(np.arange(3))),
            (TypeError, "objects", lambda: group.all_gather(np.array([None, "a"]))),
            (ValueError, "strides", lambda: group.all_reduce(x.T)),
            (ValueError, "root", lambda: group.broadcast(x, root=1)),
            (ValueError, "out", lambda: group.all_reduce(x, out=np.ones(3, np.float32))),
            (ValueError, "out", lambda: group.all_reduce(x, out=np.ones((4, 2)))),
            (TypeError, "out", lambda: group.all_reduce(x, out=[1, 2])),
            (ValueError, "shares memory", lambda: group.all_gather(x, out=x)),
            (ValueError, "rows", lambda: group.reduce_scatter(np.float32(3))),
            (ValueError, "transport", lambda: flashlab.Communicator(transport="wires")))
        for kind, word, call in cases:
            with self.assertRaises(kind) as raised:
                call()
            self.assertIn(word, str(raised.exception))
        fixed = np.ones(3, np.float32)
        fixed.flags.writeable = False
        with self.assertRaisesRegex(ValueError, "cannot be written"):
            group.all_reduce(fixed, out=fixed)
        self.assertEqual(group.all_reduce(fixed).tolist(), [1, 1, 1])

    def test_closed(self):
        self.group.close()
        with self.assertRaisesRegex(ValueError, "closed"):
            self.group.all_reduce(np.ones(2))

    def test_tensors(self):
        try:
            import torch
        except ImportError:
            self.skipTest("skipped: no PyTorch")
        x = torch.arange(4, dtype=torch.bfloat16, requires_grad=True)
        got = self.group.all_reduce(x)
        self.assertIs(type(got), torch.Tensor)
        self.assertTrue(torch.equal(got, x) and not got.requires_grad)
        with self.assertRaisesRegex(ValueError, "strides"):
            self.group.all_reduce(torch.ones(3, 2).T)


if __name__ == "__main__":
    unittest.main()
