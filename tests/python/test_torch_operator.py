"""The registered operators: torch's own checks, compilers, tracers and modes."""

import unittest

from torch_cases import CUDA, formula, gradients, inputs, on_devices

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import flashlab.torch as flash

FORWARD = torch.ops.flashlab.attention_forward.default
BACKWARD = torch.ops.flashlab.attention_backward.default


class Recorder(TorchDispatchMode):
    """Notes the operators that pass."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


@on_devices
class Operator:
    """What torch.library and the tracers ask of an operator."""

    def calls(self):
        """Arguments of forward calls that differ in what they use."""
        device = self.device
        yield inputs((2, 9, 4, 8), 7, 2, 5, device=device)
        yield (*inputs((1, 9, 4, 8), device=device, dtype=torch.bfloat16), None, 0.5, "top-left")
        mask = torch.rand(9, 7, device=device) < 0.7
        yield (*inputs((2, 9, 4, 8), 7, device=device), mask, None, "bottom-right")
        heads_first = (t.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
                       for t in inputs((2, 9, 4, 8), device=device))
        yield (*heads_first, torch.randn(2, 1, 9, 9, device=device), None, None, "ieee", True)
        yield inputs((0, 9, 4, 8), 7, device=device)

    def test_opcheck_forward(self):
        for args in self.calls():
            torch.library.opcheck(FORWARD, args)
            torch.library.opcheck(FORWARD, tuple(
                a.detach() if isinstance(a, torch.Tensor) else a for a in args))

    def test_opcheck_backward(self):
        for args in self.calls():
            q, k, v, *rest = (a.detach() if isinstance(a, torch.Tensor) else a for a in args)
            mask, *options = rest or (None,)
            o, lse = FORWARD(q, k, v, mask, *options)
            for d_lse in (None, torch.randn_like(lse)):
                torch.library.opcheck(
                    BACKWARD, (torch.randn_like(o), q, k, v, o, lse, d_lse, mask, *options),
                    # The formula that raises for a second derivative is tested by name elsewhere.
                    test_utils=("test_schema", "test_faketensor"))

    def test_fake_results_look_like_real_ones(self):
        def looks(tensors):
            return [(t.shape, t.stride(), t.dtype, t.device) for t in tensors]

        for args in self.calls():
            args = [a.detach() if isinstance(a, torch.Tensor) else a for a in args]
            real = FORWARD(*args)
            gradients_of = (torch.randn_like(real[0]), *args[:3], *real, None, *args[3:])
            real_gradients = BACKWARD(*gradients_of)
            with FakeTensorMode() as mode:
                def fake(a):
                    return mode.from_tensor(a) if isinstance(a, torch.Tensor) else a
                self.assertEqual(looks(FORWARD(*map(fake, args))), looks(real))
                self.assertEqual(looks(BACKWARD(*map(fake, gradients_of))), looks(real_gradients))

    def test_both_ways_give_the_same(self):
        for args in self.calls():
            q, k, v, *rest = args
            names = ("mask", "scale", "causal", "precision")
            options = dict(zip(names, rest)) | {"deterministic": True}
            eager = flash.attention(q, k, v, return_lse=True, **options)
            rest = (*rest, *(None, None, None, "ieee")[len(rest):])[:4]
            operator = FORWARD(q, k, v, *rest, True)
            for a, b in zip((*eager, *gradients(eager, (q, k, v))),
                            (*operator, *gradients(operator, (q, k, v)))):
                self.assertTrue(torch.equal(a, b))

    def test_modes_and_tracers_see_the_operator(self):
        q, k, v = inputs(device=self.device)
        with Recorder() as recorder:
            flash.attention(q, k, v).sum().backward()
        self.assertIn(FORWARD, recorder.seen)
        self.assertIn(BACKWARD, recorder.seen)

        graph = make_fx(lambda *t: flash.attention(*t))(q.detach(), k.detach(), v.detach())
        self.assertIn(FORWARD, [node.target for node in graph.graph.nodes])

        class Model(torch.nn.Module):
            def forward(self, q, k, v):
                return flash.attention(q, k, v, causal=True)

        exported = torch.export.export(Model(), (q.detach(), k.detach(), v.detach()))
        self.assertIn(FORWARD, [node.target for node in exported.graph.nodes])
        got = exported.module()(q, k, v)
        self.assert_close(got, formula(q, k, v, "top-left")[0], "o")

    def test_selective_checkpoint(self):
        try:
            from torch.utils.checkpoint import (
                CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts)
        except ImportError:
            self.skipTest("skipped: torch before 2.5 has no selective checkpoints")
        q, k, v = inputs(device=self.device)
        counted = []

        def policy(ctx, func, *args, **kwargs):
            if func is FORWARD:
                counted.append(ctx.is_recompute)
                return CheckpointPolicy.MUST_SAVE
            return CheckpointPolicy.PREFER_RECOMPUTE

        def block(q, k, v):
            return flash.attention(q * 2, k, v, deterministic=True).relu()

        o = checkpoint(block, q, k, v, use_reentrant=False,
                       context_fn=lambda: create_selective_checkpoint_contexts(policy))
        for a, b in zip(gradients(o, (q, k, v)), gradients(block(q, k, v), (q, k, v))):
            self.assert_equal(a, b, "a gradient")
        self.assertIn(False, counted)


@on_devices
class Compiled:
    """torch.compile(fullgraph=True): one graph, equal results."""

    def setUp(self):
        torch.compiler.reset()

    def same(self, function, tensors, **options):
        compiled = torch.compile(function, fullgraph=True, **options)
        got, expected = compiled(*tensors), function(*tensors)
        self.assert_close(got, expected, "o", 1e-5)
        for what, a, b in zip(("dq", "dk", "dv"), gradients(got, tensors),
                              gradients(expected, tensors)):
            self.assert_close(a, b, what, 1e-5)
        return compiled

    def test_attention(self):
        def function(q, k, v):
            o, lse = flash.attention(q * 2, k, v, causal=True, return_lse=True)
            return o.relu() + lse.sigmoid().mT[..., None]
        self.same(function, inputs(device=self.device))

    def test_mask_and_unequal_lengths(self):
        mask = torch.rand(37, 21, device=self.device) < 0.7
        self.same(lambda q, k, v: flash.attention(
            q, k, v, mask=mask, causal="bottom-right", scale=0.3) + 1,
            inputs(seqlen_k=21, heads_k=2, device=self.device))

    def test_drop_ins(self):
        q, k, v = inputs((2, 8, 37, 24), device=self.device)
        self.same(lambda q, k, v: flash.scaled_dot_product_attention(q, k, v, is_causal=True) * 2,
                  (q, k, v))
        self.same(lambda q, k, v: flash.flash_attn_func(q, k, v, causal=True) * 2, (q, k, v))
        self.same(lambda q, k, v: flash.flash_attn_qkvpacked_func(torch.stack([q, k, v], 2)) * 2,
                  (q, k, v))
        self.same(lambda q, k, v: flash.flash_attn_kvpacked_func(q, torch.stack([k, v], 2)) * 2,
                  (q, k, v))

    def test_course_function(self):
        q, k, v = (t.detach()[:, :, 0].requires_grad_() for t in inputs(device=self.device))
        self.same(lambda q, k, v: flash.FlashAttention.apply(q * 2, k, v, True) + 1, (q, k, v))

    def test_dynamic_lengths(self):
        compiled = torch.compile(lambda q, k, v: flash.attention(q, k, v, causal=True).relu(),
                                 fullgraph=True, dynamic=True)
        for length in (17, 33, 64):
            q, k, v = inputs((2, length, 4, 24), device=self.device)
            got, truth = compiled(q, k, v), formula(q, k, v, "top-left")[0].relu()
            self.assert_close(got, truth, "o")
            for a, b in zip(gradients(got, (q, k, v)), gradients(truth, (q, k, v))):
                self.assert_close(a, b, "a gradient")

    def test_autocast(self):
        def function(q, k, v):
            with torch.autocast(self.device, dtype=torch.bfloat16):
                return flash.attention(q, k, v)
        q, k, v = inputs(device=self.device)
        compiled = torch.compile(function, fullgraph=True)
        self.assertEqual(compiled(q, k, v).dtype, torch.bfloat16)
        self.assert_close(compiled(q, k, v), function(q, k, v), "o", 1e-2)
        with torch.autocast(self.device, dtype=torch.bfloat16):
            outside = torch.compile(lambda *t: flash.attention(*t), fullgraph=True)(q, k, v)
        self.assertEqual(outside.dtype, torch.bfloat16)
        self.assertEqual(gradients(outside, [q])[0].dtype, torch.float32)

    def test_deterministic_switch(self):
        q, k, v = inputs(device=self.device)
        graphs = []

        def backend(graph, example):
            graphs.append(graph)
            return graph.forward

        torch.use_deterministic_algorithms(True)
        try:
            torch.compile(lambda *t: flash.attention(*t), fullgraph=True, backend=backend)(q, k, v)
        finally:
            torch.use_deterministic_algorithms(False)
        node, = [n for n in graphs[0].graph.nodes if n.target == FORWARD]
        self.assertIs(node.args[7], True)

    def test_errors_are_raised_while_tracing(self):
        q, k, v = inputs(device=self.device)
        compiled = torch.compile(lambda q, k, v: flash.attention(q, k, v), fullgraph=True)
        with self.assertRaisesRegex(Exception, "k: got head_dim 8, expected q's 24"):
            compiled(q, k[..., :8], v)


class Meta(unittest.TestCase):
    """Shapes without memory."""

    def test_meta_device(self):
        q, k, v = (t.detach().to("meta").requires_grad_() for t in inputs((2, 9, 4, 8), 7, 2, 5))
        o, lse = flash.attention(q, k, v, causal="bottom-right", return_lse=True)
        self.assertEqual((o.shape, lse.shape), ((2, 9, 4, 5), (2, 4, 9)))
        self.assertEqual((o.device.type, lse.dtype), ("meta", torch.float32))
        o = flash.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)),
                                               enable_gqa=True)
        self.assertEqual(o.shape, (2, 4, 9, 5))
        dq, dk, dv = torch.autograd.grad(o.sum(), (q, k, v))
        self.assertEqual((dq.shape, dk.shape, dv.shape), (q.shape, k.shape, v.shape))

    @unittest.skipIf(CUDA, "a GPU is present: the test is about machines without one")
    def test_fake_cuda_without_a_gpu(self):
        with FakeTensorMode():
            q = torch.empty(2, 9, 4, 8, device="cuda", dtype=torch.bfloat16)
            o = flash.attention(q, q, q, causal=True)
        self.assertEqual((o.device.type, o.dtype), ("cuda", torch.bfloat16))




if __name__ == "__main__":
    unittest.main()
