"""Names of ragged calls in other libraries: FlashAttention-3, -4, torch's varlen and nested."""

import inspect
import unittest

from torch_cases import Judge, formula, gradients, inputs

import torch
import torch.nn.functional as F

import flashlab.torch as flash
from flashlab.torch import cute, flash_attn_interface

try:
    from torch.nn.attention import varlen
except ImportError:  # before torch 2.10
    varlen = None

LENGTHS = ((7, 9), (0, 3), (1, 40), (33, 33), (5, 0), (64, 17))


def ragged(lengths=LENGTHS, heads=4, heads_k=2, dim=16, dim_v=None):
    cu = [F.pad(torch.tensor(side).cumsum(0), (1, 0)).int() for side in zip(*lengths)]
    q, k, v = inputs((1, int(cu[0][-1]), heads, dim), int(cu[1][-1]), heads_k, dim_v)
    return tuple(t[0].detach().requires_grad_() for t in (q, k, v)), cu


def loop(tensors, cu, **options):
    """o and lse by a dense call for each sequence; `sinks` and all else as given."""
    q, k, v = tensors
    parts = [flash.attention(q[None, a:b], k[None, c:d], v[None, c:d], return_lse=True, **options)
             for a, b, c, d in zip(cu[0], cu[0][1:], cu[1], cu[1][1:])]
    return torch.cat([o[0] for o, _ in parts]), torch.cat([lse[0] for _, lse in parts], 1)


class Names(Judge):
    def same(self, got, expected, tensors):
        for what, a, b in zip(("out", "lse"), got, expected):
            if a is not None:
                self.assert_close(a.nan_to_num(neginf=-1e3), b.nan_to_num(neginf=-1e3), what, 1e-5)
        for what, a, b in zip("qkvs", gradients(got[0], tensors), gradients(expected[0], tensors)):
            self.assert_close(a, b, f"d{what}", 1e-5 if a.dtype == torch.float32 else 1e-2)


class FlashAttention3(Names):
    def test_dense(self):
        tensors = inputs((2, 21, 4, 16), 30, 2, 8)
        for more, ours in (
                ({}, {}), ({"causal": True}, {"causal": "bottom-right"}),
                ({"window_size": (5, 2), "softcap": 9.0},
                 {"window": (5, 2, "bottom-right"), "softcap": 9.0}),
                ({"attention_chunk": 8}, {"attention_chunk": 8,
                                          "window": (None, None, "bottom-right")}),
                ({"attention_chunk": 8, "causal": True},
                 {"attention_chunk": 8, "causal": "bottom-right"})):
            with self.subTest(more=more):
                got = flash_attn_interface.flash_attn_func(
                    *tensors, num_splits=3, pack_gqa=True, sm_margin=8, return_attn_probs=True,
                    **more)
                self.same(got, flash.attention(*tensors, return_lse=True, **ours), tensors)

    def test_packed(self):
        q, k, v = inputs((2, 9, 4, 8), heads_k=2)
        qkv = torch.cat([q, k, v], 2).detach().requires_grad_()
        got = flash_attn_interface.flash_attn_qkvpacked_func(qkv, causal=True, num_heads_q=4)
        expected = flash.attention(*qkv.split([4, 2, 2], 2), causal=True)
        self.same((got,), (expected,), (qkv,))
        qkv = torch.randn(2, 9, 3, 4, 8, requires_grad=True)
        got = flash_attn_interface.flash_attn_qkvpacked_func(qkv, causal=True)
        self.same((got,), (flash.attention(*qkv.unbind(2), causal=True),), (qkv,))
        with self.assertRaisesRegex(ValueError, r"^qkv: .* num_heads_q 4, expected"):
            flash_attn_interface.flash_attn_qkvpacked_func(qkv, num_heads_q=4)

    def test_varlen_and_rows_that_do_not_count(self):
        tensors, cu = ragged()
        got = flash_attn_interface.flash_attn_varlen_func(
            *tensors, *cu, 64, 40, causal=True, window_size=(20, -1), return_attn_probs=True)
        self.same(got, loop(tensors, cu, causal="bottom-right",
                            window=(20, None, "bottom-right")), tensors)
        used = [(cu[n].diff() // 2).int() for n in (0, 1)]
        got = flash_attn_interface.flash_attn_varlen_func(
            *tensors, *cu, 64, 40, seqused_q=used[0], seqused_k=used[1])
        expected = torch.zeros_like(got)
        for b in range(len(LENGTHS)):
            at = [slice(int(cu[n][b]), int(cu[n][b] + used[n][b])) for n in (0, 1)]
            expected[at[0]] = formula(tensors[0][None, at[0]], *(
                t[None, at[1]] for t in tensors[1:]))[0][0].float()
        self.assert_close(got, expected, "out")

    def test_what_is_refused(self):
        q, k, v = inputs((1, 4, 2, 8))
        for name in ("qv", "q_descale", "k_descale", "v_descale"):
            with self.subTest(name), self.assertRaisesRegex(NotImplementedError, f"^{name}: "):
                flash_attn_interface.flash_attn_func(q, k, v, **{name: q})


class FlashAttention4(Names):
    def test_windows_have_a_sign(self):
        tensors = inputs((2, 21, 4, 16), 30, 2)
        i, j = torch.arange(21)[:, None] + 9, torch.arange(30)
        for window, causal, seen in (
                ((None, None), False, j >= 0), ((4, 3), False, (j >= i - 4) & (j <= i + 3)),
                ((None, -3), False, j <= i - 3), ((-3, None), False, j >= i + 3),
                ((6, -2), False, (j >= i - 6) & (j <= i - 2)), ((None, 9), True, j <= i),
                ((5, None), True, (j >= i - 5) & (j <= i)), ((2, -3), False, j >= 0)):
            with self.subTest(window=window, causal=causal):
                out, lse = cute.flash_attn_func(*tensors, window_size=window, causal=causal,
                                                return_lse=True)
                mask = seen.expand(21, 30)
                expected = flash.attention(*tensors, mask=mask, return_lse=True)
                self.same((out, lse), expected, tensors)
        self.assertIsNone(cute.flash_attn_func(*tensors)[1])

    def test_sinks_in_16_bits(self):
        tensors, cu = ragged()
        sink = torch.randn(4).bfloat16().requires_grad_()
        got = cute.flash_attn_varlen_func(
            *tensors, cu_seqlens_q=cu[0], cu_seqlens_k=cu[1], max_seqlen_q=64, max_seqlen_k=40,
            learnable_sink=sink, causal=True, return_lse=True)
        expected = loop(tensors, cu, causal="bottom-right", sinks=sink.float())
        self.same(got, expected, (*tensors, sink))
        self.assertEqual(got[0].dtype, torch.float32)

    def test_either_side_may_be_padded(self):
        (q, _, _), cu = ragged()
        k, v = (torch.randn(len(LENGTHS), 40, 2, 16, requires_grad=True) for _ in range(2))
        used = cu[1].diff()
        out, _ = cute.flash_attn_varlen_func(q, k, v, cu_seqlens_q=cu[0], seqused_k=used,
                                             max_seqlen_q=64, max_seqlen_k=40)
        rows = [torch.cat([t[b, :n] for b, n in enumerate(used)]) for t in (k, v)]
        self.assert_close(out, loop((q, *rows), cu)[0], "out", 1e-5)

    def test_what_is_refused(self):
        q, k, v = inputs((1, 4, 2, 8))
        for name in ("qv", "gather_kv_indices", "score_mod", "score_mod_bwd", "mask_mod",
                     "block_sparse_tensors", "block_sparse_tensors_bwd"):
            with self.subTest(name), self.assertRaisesRegex(NotImplementedError, f"^{name}: "):
                cute.flash_attn_func(q, k, v, **{name: q})
        with self.assertRaisesRegex(TypeError, "^learnable_sink: got dtype torch.int64|^learnable"):
            cute.flash_attn_func(q, k, v, learnable_sink=[1.0, 2.0])


class TorchVarlen(Names):
    @unittest.skipUnless(varlen, "skipped: this torch has no varlen_attn")
    def test_signature(self):
        ours = inspect.signature(flash.varlen_attn).parameters
        for name, theirs in inspect.signature(varlen.varlen_attn).parameters.items():
            self.assertIn(name, ours)
            if theirs.default is not theirs.empty:
                self.assertEqual(ours[name].default, theirs.default, name)

    def test_results(self):
        tensors, cu = ragged()
        for more, ours in (({}, {}), ({"window_size": (-1, 0)}, {"causal": "bottom-right"}),
                           ({"is_causal": True}, {"causal": "bottom-right"}),
                           ({"window_size": (9, 0), "num_splits": 1, "scale": 0.3},
                            {"window": (9, 0, "bottom-right"), "scale": 0.3})):
            with self.subTest(more=more):
                aux = varlen.AuxRequest(lse=True) if varlen else type("Aux", (), {"lse": True})
                got = flash.varlen_attn(*tensors, *cu, 64, 40, enable_gqa=True, return_aux=aux,
                                        **more)
                self.same(got, loop(tensors, cu, **ours), tensors)
        with self.assertRaisesRegex(ValueError, "^key: got 2 heads"):
            flash.varlen_attn(*tensors, *cu, 64, 40)
        with self.assertRaisesRegex(TypeError, "^cu_seq_q: got dtype|^cu_seq_q"):
            flash.varlen_attn(*tensors, cu[0].float(), cu[1], enable_gqa=True)


class Nested(Names):
    def nested(self, lengths, heads, dim=8, of=None):
        parts = [torch.randn(n, heads * dim) for n in lengths]
        if of is None:
            made = torch.nested.nested_tensor(parts, layout=torch.jagged)
        else:
            made = torch.nested.nested_tensor_from_jagged(torch.cat(parts), of.offsets())
        return made.requires_grad_()

    @staticmethod
    def split(x, heads):
        return x.unflatten(-1, [heads, -1]).transpose(1, 2)

    def test_sequences_by_themselves(self):
        for lengths_k in ((5, 9, 1, 12), (7, 2, 30, 4)):
            q = self.nested((5, 9, 1, 12), 4)
            k = self.nested(lengths_k, 2, of=q if lengths_k[0] == 5 else None)
            v = self.nested(lengths_k, 2, of=k)
            for causal in (False, True):
                given = [self.split(x, heads) for x, heads in ((q, 4), (k, 2), (v, 2))]
                got = flash.scaled_dot_product_attention(*given, is_causal=causal, enable_gqa=True)
                self.assertEqual((got.is_nested, got.shape[1], got.shape[3]), (True, 4, 8))
                merged = got.transpose(1, 2).flatten(-2)
                self.assertEqual((merged * q).shape, q.shape)  # of query's sequences
                expected = [F.scaled_dot_product_attention(*rows, is_causal=causal,
                                                           enable_gqa=True)
                            for rows in zip(*(x.unbind() for x in given))]
                for a, b in zip(got.unbind(), expected):
                    self.assert_close(a, b, "o")
                grads = torch.autograd.grad(got.values().square().sum(), (q, k, v),
                                            retain_graph=True)
                wanted = torch.autograd.grad(sum(x.square().sum() for x in expected), (q, k, v))
                for what, a, b in zip("qkv", grads, wanted):
                    self.assert_close(a.values(), b.values(), f"d{what}")

    def test_what_is_refused(self):
        q = self.split(self.nested((5, 9), 4), 4)
        k = self.split(self.nested((5, 9), 4), 4)
        with self.assertRaisesRegex(NotImplementedError, "^attn_mask: "):
            flash.scaled_dot_product_attention(q, q, q, attn_mask=torch.ones(1, 1))
        with self.assertRaisesRegex(NotImplementedError, "^key: "):
            flash.scaled_dot_product_attention(q, torch.ones(2, 4, 9, 8), q)
        with self.assertRaisesRegex(ValueError, "^value: its sequences are not key's"):
            flash.scaled_dot_product_attention(q, k, q)
        flat = self.nested((5, 9), 4)
        with self.assertRaisesRegex(ValueError, "^query: got the nested shape"):
            flash.scaled_dot_product_attention(flat, flat, flat)


if __name__ == "__main__":
    unittest.main()
