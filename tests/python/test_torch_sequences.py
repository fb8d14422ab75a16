"""Ragged batches and sinks on torch tensors: gradients, flash-attn's names, its padding helpers."""

import unittest

from torch_cases import Judge, gradients, inputs

import torch

import flashlab
import flashlab.torch as flash
from flashlab.torch import bert_padding

LENGTHS = ((7, 9), (0, 3), (1, 40), (33, 33), (5, 0), (64, 17))


def rows(lengths=LENGTHS, heads=4, heads_k=2, dim=16, dtype=torch.float32, seed=0):
    """q, k, v with gradients, and where each sequence begins."""
    cu = [torch.tensor([pair[n] for pair in lengths]).cumsum(0) for n in (0, 1)]
    cu = [torch.nn.functional.pad(each, (1, 0)) for each in cu]
    q, k, v = inputs((1, int(cu[0][-1]), heads, dim), int(cu[1][-1]), heads_k, dtype=dtype,
                     seed=seed)
    return tuple(x[0].detach().requires_grad_() for x in (q, k, v)), cu


def loop(q, k, v, cu_q, cu_k, slopes=None, **options):
    """o and lse by a dense call for each sequence."""
    outs, statistics = [], []
    for b in range(len(cu_q) - 1):
        at_q, at_k = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])
        more = {} if slopes is None else {"alibi_slopes": slopes[b]}
        o, lse = flash.attention(q[None, at_q], k[None, at_k], v[None, at_k], return_lse=True,
                                 **options, **more)
        outs.append(o[0])
        statistics.append(lse[0])
    return torch.cat(outs), torch.cat(statistics, 1)


class Sequences(Judge):
    def same(self, got, tensors, expected):
        for what, a, b in zip(("o", "lse"), got, expected):
            self.assert_close(a.nan_to_num(neginf=-1e3), b.nan_to_num(neginf=-1e3), what)
        for what, a, b in zip("qkvs", gradients(got[0], tensors), gradients(expected[0], tensors)):
            self.assert_close(a, b, f"d{what}")

    def test_gradients_are_those_of_a_loop(self):
        slopes = torch.rand(len(LENGTHS), 4)
        for options in ({}, {"causal": "bottom-right", "softcap": 9.0}, {"causal": "top-left"},
                        {"window": (12, 3, "bottom-right")}, {"alibi_slopes": slopes}):
            with self.subTest(options=options):
                tensors, (cu_q, cu_k) = rows()
                got = flashlab.attention(*tensors, cu_seqlens_q=cu_q.int(), cu_seqlens_k=cu_k,
                                         return_lse=True, **options)
                dense = dict(options)
                expected = loop(*tensors, cu_q, cu_k, dense.pop("alibi_slopes", None), **dense)
                self.same(got, tensors, expected)

    def test_sinks_have_a_gradient(self):
        tensors, (cu_q, cu_k) = rows()
        sinks = torch.randn(4, requires_grad=True)
        got = flash.attention(*tensors, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, sinks=sinks,
                              return_lse=True)
        self.same(got, (*tensors, sinks), loop(*tensors, cu_q, cu_k, sinks=sinks))
        alone = torch.autograd.grad(flash.attention(*(x.detach()[None, :7] for x in tensors),
                                                    sinks=sinks).sum(), sinks)[0]
        self.assertGreater(alone.abs().sum(), 0)

    def test_varlen_names(self):
        tensors, (cu_q, cu_k) = rows()
        q, k, v = tensors
        expected = loop(q, k, v, cu_q, cu_k, causal="bottom-right")
        out, lse, pattern = flash.flash_attn_varlen_func(
            q, k, v, cu_q.int(), cu_k.int(), 64, 40, causal=True, return_attn_probs=True)
        self.same((out, lse), tensors, expected)
        self.assertEqual(pattern.numel(), 0)
        kv = torch.stack([k, v], 1).detach().requires_grad_()
        out = flash.flash_attn_varlen_kvpacked_func(q, kv, cu_q.int(), cu_k.int(), 64, 40,
                                                    causal=True)
        self.assert_close(out, expected[0], "out of kvpacked")
        expected = loop(q, k, v, cu_q, cu_k, causal="bottom-right")
        dq, dkv = gradients(out, (q, kv))
        for what, a, b in zip("qkv", (dq, *dkv.unbind(1)), gradients(expected[0], tensors)):
            self.assert_close(a, b, f"d{what} of kvpacked")

    def test_qkvpacked_writes_one_gradient(self):
        (q, _, _), (cu, _) = rows(((9, 9), (1, 1), (30, 30)), heads_k=4)
        qkv = torch.randn(q.shape[0], 3, 4, 16, requires_grad=True)
        out = flash.flash_attn_varlen_qkvpacked_func(qkv, cu.int(), 30, causal=True)
        expected = loop(*qkv.unbind(1), cu, cu, causal="bottom-right")[0]
        self.assert_close(out, expected, "out")
        self.assert_close(gradients(out, (qkv,))[0], gradients(expected, (qkv,))[0], "dqkv")

    def test_dropout_repeats_with_torch_seed(self):
        tensors, (cu_q, cu_k) = rows()
        outs = []
        for _ in range(2):
            torch.manual_seed(3)
            outs.append(flash.flash_attn_varlen_func(*tensors, cu_q, cu_k, dropout_p=0.3))
        self.assert_equal(*outs, "out")

    def test_padding_helpers(self):
        lengths = torch.tensor([5, 0, 12])
        mask = torch.arange(12)[None] < lengths[:, None]
        hidden = torch.randn(3, 12, 4, 8, requires_grad=True)
        flat, indices, cu, longest, used = bert_padding.unpad_input(hidden, mask)
        self.assertEqual((cu.tolist(), cu.dtype, longest, used.tolist()),
                         ([0, 5, 5, 17], torch.int32, 12, [5, 0, 12]))
        out = bert_padding.pad_input(
            flash.flash_attn_varlen_func(flat, flat, flat, cu, cu, longest, longest), indices,
            3, 12)
        expected = flash.attention(hidden, hidden, hidden, mask=mask[:, None, None])
        expected = expected * mask[..., None, None]
        self.assert_close(out, expected, "out")
        got, wanted = (gradients(x, (hidden,))[0] for x in (out, expected))
        self.assert_close(got, wanted, "dhidden")
        kept = bert_padding.unpad_input(hidden, mask.int(), (~mask).int() * (torch.arange(12) < 6))
        self.assertEqual((kept[2].tolist(), kept[4].tolist()), ([0, 6, 12, 24], [5, 0, 12]))

    def test_operators_know_the_shapes(self):
        from torch._subclasses.fake_tensor import FakeTensorMode
        with FakeTensorMode():
            q, k = torch.empty(10, 4, 8), torch.empty(12, 2, 8)
            cu = torch.zeros(3, dtype=torch.int32)
            o, lse = flash.attention(q, k, k, cu_seqlens_q=cu, cu_seqlens_k=cu, return_lse=True)
            self.assertEqual((tuple(o.shape), tuple(lse.shape)), ((10, 4, 8), (4, 10)))
            with self.assertRaisesRegex(ValueError, "^q: got 4 dimensions"):
                flash.attention(q[None], k, k, cu_seqlens_q=cu, cu_seqlens_k=cu)

    def test_one_compiled_graph_serves_other_totals(self):
        import torch._dynamo.testing
        counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")

        def call(q, k, v, cu):
            return flash.flash_attn_varlen_func(q, k, v, cu, cu, causal=True)

        compiled = torch.compile(call, fullgraph=True, dynamic=True, backend=counter)
        counts = []
        for lengths in ((5, 9), (3, 1, 20), (8, 30, 2)):
            tensors, (cu, _) = rows(tuple((n, n) for n in lengths), heads_k=4)
            got, expected = compiled(*tensors, cu), call(*tensors, cu)
            self.assert_equal(got, expected, "out")
            for a, b in zip(gradients(got, tensors), gradients(expected, tensors)):
                self.assert_close(a, b, "a gradient")
            counts.append(counter.frame_count)
        self.assertEqual(counts, counts[:1] * 3)

    def test_errors(self):
        (q, k, v), (cu_q, cu_k) = rows()
        with self.assertRaisesRegex(ValueError, "^causal: True with sequences of any lengths"):
            flash.attention(q, k, v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, causal=True)
        with self.assertRaisesRegex(TypeError, "^cu_seqlens_q: got "):
            flash.flash_attn_varlen_func(q, k, v, [0, 3], cu_k, 3, 3)
        wrong = cu_k.clone()
        wrong[1] = 10**12
        with self.assertRaisesRegex(ValueError, r"^cu_seqlens_k\[1\]: got 1000000000000"):
            flash.attention(q, k, v, cu_seqlens_q=cu_q, cu_seqlens_k=wrong)


if __name__ == "__main__":
    unittest.main()
