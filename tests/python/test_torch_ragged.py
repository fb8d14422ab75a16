"""Ragged batches and sinks where operators are seen: compilers, modes, transforms, autocast."""

import unittest

from torch_cases import gradients, inputs, on_devices

import torch

import flashlab.torch as flash
from flashlab.torch import _checks

FORWARD = torch.ops.flashlab.attention_forward.default
BACKWARD = torch.ops.flashlab.attention_backward.default
LENGTHS = ((5, 9), (0, 3), (12, 14), (7, 0))


@on_devices
class RaggedOperator:
    """As Operator of test_torch_operator.py, for lists of sequences."""

    def setUp(self):
        torch.compiler.reset()
        # A GPU trains in bf16.
        self.dtype = torch.float32 if self.device == "cpu" else torch.bfloat16

    def rows(self, lengths=LENGTHS, index=torch.int32, gap=0):
        """q, k, v with gradients, sinks with one, and where each sequence begins."""
        counts = torch.tensor(lengths, device=self.device)
        cu = [torch.nn.functional.pad((each + gap).cumsum(0), (1, 0)).to(index)
              for each in counts.unbind(1)]
        totals = [int(each[-1]) for each in cu]
        q, k, v = (t[0].detach().requires_grad_() for t in inputs(
            (1, totals[0], 4, 16), totals[1], 2, dtype=self.dtype, device=self.device))
        sinks = torch.randn(4, device=self.device, requires_grad=True)
        return (q, k, v, sinks), cu, [each.to(index) for each in counts.unbind(1)]

    def calls(self):
        """q, k, v and the members of a Call, in their order, that differ in what they use."""
        def call(**given):
            return tuple(flash._call.Call(**given))
        (q, k, v, sinks), (cu_q, cu_k), _ = self.rows()
        yield (q, k, v), call(cu_seqlens_q=cu_q, cu_seqlens_k=cu_k)
        yield (q, k, v), call(cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, causal="bottom-right",
                              softcap=9.0, sinks=sinks, max_seqlen_q=12, deterministic=True)
        (q, k, v, sinks), (cu_q, cu_k), (used_q, used_k) = self.rows(index=torch.int64, gap=3)
        yield (q, k, v), call(cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, seqused_q=used_q,
                              seqused_k=used_k, window=[4, 2], alignment="top-left")
        q, k, v = inputs((2, 9, 4, 16), 9, 2, dtype=self.dtype, device=self.device)
        yield (q, k, v), call(sinks=sinks, attention_chunk=4)

    def test_opcheck(self):
        for tensors, call in self.calls():
            torch.library.opcheck(FORWARD, (*tensors, *call))
            given = [a.detach() if isinstance(a, torch.Tensor) else a for a in (*tensors, *call)]
            torch.library.opcheck(FORWARD, tuple(given))
            o, lse = FORWARD(*given)
            for d_lse in (None, torch.randn_like(lse)):
                torch.library.opcheck(
                    BACKWARD, (torch.randn_like(o), *given[:3], o, lse, d_lse, *given[3:]),
                    test_utils=("test_schema", "test_faketensor"))

    def test_one_schedule_serves_all_layers(self):
        (q, k, v, _), (cu_q, cu_k), _ = self.rows()
        lengths = dict(cu_seqlens_q=cu_q, cu_seqlens_k=cu_k)
        order = flash.schedule(q, k, v, **lengths, causal=True)
        self.assertEqual(order.dtype, torch.int32)
        self.assertEqual(order.numel() > 0, self.device == "cuda")
        plain = flash.flash_attn_varlen_func(q, k, v, **lengths, causal=True)
        for _ in range(2):  # layers
            ordered = flash.flash_attn_varlen_func(q, k, v, **lengths, causal=True,
                                                   scheduler_metadata=order)
            self.assert_equal(ordered, plain, "out")
            self.assertEqual([a.shape for a in gradients((ordered,), (q, k, v))],
                             [q.shape, k.shape, v.shape])
        compiled = torch.compile(flash.flash_attn_varlen_func, fullgraph=True, backend="eager")
        self.assert_equal(compiled(q, k, v, **lengths, causal=True, scheduler_metadata=order),
                          plain, "compiled")
        foreign = torch.zeros(7, 3, dtype=torch.int32, device=self.device)
        with self.assertRaisesRegex(ValueError, "^scheduler_metadata: got "):
            flash.flash_attn_varlen_func(q, k, v, **lengths, causal=True,
                                         scheduler_metadata=foreign)

    def test_both_ways_give_the_same(self):
        for tensors, call in self.calls():
            call = flash._call.Call(*call)._replace(deterministic=True)
            eager = flash._autograd.attend(*tensors, call, True)
            operator = FORWARD(*tensors, *call)
            leaves = tensors if call.sinks is None else (*tensors, call.sinks)
            for a, b in zip((*eager, *gradients(eager, leaves)),
                            (*operator, *gradients(operator, leaves))):
                self.assert_equal(a.nan_to_num(neginf=-1e3), b.nan_to_num(neginf=-1e3), "a result")

    def test_one_graph_serves_other_totals(self):
        """No recompilation where rows and sequences change, nor a second graph."""
        import torch._dynamo.testing
        counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")

        def function(q, k, v, sinks, cu_q, cu_k):
            return flash.attention(q * 2, k, v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, sinks=sinks,
                                   causal="bottom-right", deterministic=True).relu()

        compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=counter)
        counts = []
        for lengths in (LENGTHS, LENGTHS[:2], ((30, 4), (2, 50), (8, 8), (1, 1), (3, 90))):
            tensors, cu, _ = self.rows(lengths)
            got, expected = compiled(*tensors, *cu), function(*tensors, *cu)
            self.assert_close(got, expected, "o", 1e-5)
            for what, a, b in zip("qkvs", gradients(got, tensors), gradients(expected, tensors)):
                self.assert_close(a, b, f"d{what}", 1e-5)
            counts.append(counter.frame_count)
        self.assertEqual(counts, counts[:1] * 3)

    def test_sinks_under_transforms(self):
        (q, k, v, sinks), (cu, cu_k), _ = self.rows()

        def loss(q, sinks, cu=cu):
            o = flash.attention(q, k.detach(), v.detach(), cu_seqlens_q=cu, cu_seqlens_k=cu_k,
                                sinks=sinks, deterministic=True)
            return o.float().square().sum()

        expected = torch.autograd.grad(loss(q, sinks), (q, sinks))
        detached = q.detach(), sinks.detach()
        for a, b in zip(torch.func.grad(loss, (0, 1))(*detached), expected):
            self.assert_equal(a, b, "a gradient")
        # vmap: over rows, over sinks, and over neither but the lists.
        many = torch.stack([q, q * 0.5]).detach(), torch.stack([sinks, sinks + 1]).detach()
        for dims in ((0, 0), (0, None), (None, 0)):
            given = [x if d == 0 else one for x, one, d in zip(many, detached, dims)]
            got = torch.vmap(torch.func.grad(loss, (0, 1)), dims)(*given)
            for i in range(2):
                one = [x[i] if d == 0 else x for x, d in zip(given, dims)]
                for a, b in zip(got, torch.func.grad(loss, (0, 1))(*one)):
                    self.assert_equal(a[i], b, f"entry {i} of {dims}")
        lists = torch.stack([cu, torch.tensor([0, 6, 6, 20, 24]).to(cu)])
        got = torch.vmap(loss, (None, None, 0))(*detached, lists)
        self.assert_equal(got, torch.stack([loss(*detached, each) for each in lists]), "losses")

    def test_dense_sinks_under_vmap(self):
        q, k, v = (t.detach() for t in inputs((2, 9, 4, 16), dtype=self.dtype, device=self.device))
        sinks = torch.randn(3, 4, device=self.device)
        got = torch.vmap(lambda s: flash.attention(q, k, v, sinks=s))(sinks)
        for one, s in zip(got, sinks):
            self.assert_equal(one, flash.attention(q, k, v, sinks=s), "o")
        many = torch.stack([q, q * 2])
        got = torch.vmap(lambda q: flash.attention(q, k, v, sinks=sinks[0]))(many)
        self.assert_close(got[1], flash.attention(q * 2, k, v, sinks=sinks[0]), "o")

    def test_autocast(self):
        (q, k, v, sinks), (cu_q, cu_k), _ = self.rows()
        leaves = (*(t.detach().float().requires_grad_() for t in (q, k, v)), sinks)

        def function(q, k, v, sinks):
            with torch.autocast(self.device, dtype=torch.bfloat16):
                return flash.attention(q, k, v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, sinks=sinks)

        got = function(*leaves)
        self.assertEqual(got.dtype, torch.bfloat16)
        half = flash.attention(*(t.detach().bfloat16() for t in leaves[:3]), cu_seqlens_q=cu_q,
                               cu_seqlens_k=cu_k, sinks=sinks.detach())
        self.assert_equal(got, half, "o")
        through = torch.compile(function, fullgraph=True, backend="aot_eager")(*leaves)
        self.assert_equal(through, got, "o of a graph")
        for a, b in zip(gradients(got, leaves), gradients(through, leaves)):
            self.assertEqual((a.dtype, b.dtype), (torch.float32,) * 2)

    def test_export(self):
        class Model(torch.nn.Module):
            def forward(self, q, k, v, cu_q, cu_k):
                return flash.attention(q, k, v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k)

        tensors, cu, _ = self.rows()
        given = [t.detach() for t in (*tensors[:3], *cu)]
        rows_q, rows_k, batch = (torch.export.Dim(name, min=2, max=4096)
                                 for name in ("rows_q", "rows_k", "batch"))
        exported = torch.export.export(Model(), tuple(given), dynamic_shapes=(
            {0: rows_q}, {0: rows_k}, {0: rows_k}, {0: batch}, {0: batch}))
        self.assertIn(FORWARD, [node.target for node in exported.graph.nodes])
        tensors, cu, _ = self.rows(((20, 3), (9, 30)))
        given = [t.detach() for t in (*tensors[:3], *cu)]
        self.assert_equal(exported.module()(*given), Model()(*given), "o")

    def test_chunks(self):
        q, k, v = inputs((2, 21, 4, 16), 21, 2, dtype=self.dtype, device=self.device)
        i = torch.arange(21, device=self.device)
        same = i[:, None] // 6 == i[None] // 6
        got = flash.attention(q, k, v, causal=True, attention_chunk=6)
        expected = flash.attention(q, k, v, causal=True, mask=same)
        self.assert_close(got, expected, "o", 1e-2 if self.dtype == torch.bfloat16 else 1e-5)
        for a, b in zip(gradients(got, (q, k, v)), gradients(expected, (q, k, v))):
            self.assert_close(a, b, "a gradient", 2e-2 if self.dtype == torch.bfloat16 else 1e-4)
        graph = torch.compile(lambda *t: flash.attention(*t, causal=True, attention_chunk=6),
                              fullgraph=True, backend="aot_eager")
        self.assert_equal(graph(q, k, v), got, "o of a graph")
        # Without causal the window names the alignment; a query looks ahead in its chunk, too.
        ahead = flash.attention(q[:, 4:], k, v, attention_chunk=6,
                                window=(None, None, "bottom-right"))
        expected = flash.attention(q[:, 4:], k, v, mask=same[4:])
        self.assert_close(ahead, expected, "o ahead", 1e-2)
        with self.assertRaisesRegex(ValueError, "^attention_chunk: .* an alignment"):
            flash.attention(q[:, 4:], k, v, attention_chunk=6)
        with self.assertRaisesRegex(Exception, "attention_chunk: got no alignment"):
            torch.compile(lambda *t: flash.attention(*t, attention_chunk=6), fullgraph=True,
                          backend="aot_eager")(q[:, 4:], k, v)
        for wrong in (0, -3, 2.5):
            with self.assertRaisesRegex(ValueError, "^attention_chunk: got "):
                flash.attention(q, k, v, attention_chunk=wrong)


class Checks(unittest.TestCase):
    def test_windows_keep_the_alignment_of_chunks(self):
        self.assertEqual(_checks.window((None, None, "top-left")), (None, None))
        sides, alignment = _checks.window((None, None, "top-left"), aligns=True)
        self.assertEqual((sides, alignment), ((_checks.NO_BOUND,) * 2, "top-left"))


if __name__ == "__main__":
    unittest.main()
