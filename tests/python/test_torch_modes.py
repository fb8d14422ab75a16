"""flashlab.torch under torch's modes and switches: autocast, determinism, torch.func, threads."""

import threading
import unittest
from unittest import mock

from torch_cases import gradients, inputs, on_devices

import torch

import flashlab.torch as flash
from flashlab.torch import _operators


@on_devices
class Modes:

    def test_autocast(self):
        q, k, v = inputs(device=self.device)
        double = inputs(dtype=torch.float64)
        with torch.autocast(self.device, dtype=torch.bfloat16):
            o, lse = flash.attention(q, k.detach().half(), v, return_lse=True)
            direct = torch.ops.flashlab.attention_forward(q, k, v)[0]
            self.assertEqual(flash.attention(*double).dtype, torch.float64)
            with torch.autocast(self.device, enabled=False):
                self.assertEqual(flash.attention(q, k, v).dtype, torch.float32)
        self.assertEqual((o.dtype, lse.dtype), (torch.bfloat16, torch.float32))
        self.assertEqual(direct.dtype, torch.bfloat16)
        rounded = [t.detach().bfloat16().requires_grad_() for t in (q, k, v)]
        expected = flash.attention(*rounded, deterministic=True)
        self.assert_equal(direct, expected, "the operator's o")
        dq, = gradients(o, [q])
        self.assertEqual(dq.dtype, torch.float32)

    def test_deterministic_switch_is_followed(self):
        q, k, v = inputs(device=self.device)
        seen = []
        real = _operators.run_backward

        def record(*args, **kwargs):
            seen.append(args[7].deterministic)
            return real(*args, **kwargs)

        with mock.patch.object(_operators, "run_backward", record):
            flash.attention(q, k, v).sum().backward()
            flash.attention(q, k, v, deterministic=True).sum().backward()
            o = flash.attention(q, k, v)
            torch.use_deterministic_algorithms(True)
            try:
                o.sum().backward()
            finally:
                torch.use_deterministic_algorithms(False)
        self.assertEqual(seen, [False, True, True])

    def test_deterministic_is_repeatable(self):
        q, k, v = inputs((2, 700, 4, 64), dtype=torch.bfloat16, device=self.device)
        runs = [gradients(flash.attention(q, k, v, causal=True, deterministic=True), (q, k, v))
                for _ in range(4)]
        for run in runs[1:]:
            for what, a, b in zip(("dq", "dk", "dv"), run, runs[0]):
                self.assert_equal(a, b, what)

    def test_torch_func(self):
        q, k, v = inputs((3, 9, 4, 8), device=self.device, requires_grad=False)

        def loss(q, k, v):
            o, lse = flash.attention(q[None], k[None], v[None], causal=True, return_lse=True)
            return (o * o).sum() + lse.sum()

        each = torch.vmap(torch.func.grad(loss, (0, 1, 2)))(q, k, v)
        for i in range(3):
            leaves = [t[i].clone().requires_grad_() for t in (q, k, v)]
            for what, a, b in zip(("dq", "dk", "dv"), each,
                                  torch.autograd.grad(loss(*leaves), leaves)):
                self.assert_close(a[i], b, what, 1e-5)
        with self.assertRaisesRegex(NotImplementedError, "differentiable once"):
            torch.func.grad(lambda q: torch.func.grad(loss)(q, k[0], v[0]).sum())(q[0])
        masks = torch.rand(3, 9, 9, device=self.device) < 0.7
        got = torch.vmap(lambda mask: flash.attention(q, k, v, mask=mask))(masks)
        for i in range(3):
            self.assert_close(got[i], flash.attention(q, k, v, mask=masks[i]), "o", 1e-6)

    def test_threads(self):
        q, k, v = inputs(device=self.device, requires_grad=False)
        expected = flash.attention(q, k, v)
        wrong = []

        def work():
            for _ in range(20):
                leaf = q.clone().requires_grad_()
                o = flash.attention(leaf, k, v)
                o.sum().backward()
                if not torch.equal(o, expected) or leaf.grad is None:
                    wrong.append(1)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertFalse(wrong)


if __name__ == "__main__":
    unittest.main()
