"""The drop-ins: torch's scaled_dot_product_attention, flash-attn's functions, the course's."""

import inspect
import unittest

from torch_cases import formula, gradients, inputs, on_devices

import torch
import torch.nn.functional as F

import flashlab.torch as flash


@on_devices
class ScaledDotProductAttention:
    """Against torch's own function (its formula in fp64)."""

    def same(self, q, k, v, **options):
        given = [t.to(self.device).requires_grad_() for t in (q, k, v)]
        double = [t.detach().double().requires_grad_() for t in given]
        truth_options = dict(options)
        mask = options.get("attn_mask")
        if isinstance(mask, torch.Tensor):
            options["attn_mask"] = mask.to(self.device)
            truth_options["attn_mask"] = mask.to(
                self.device, torch.float64 if mask.is_floating_point() else None)
        got = flash.scaled_dot_product_attention(*given, **options)
        truth = F.scaled_dot_product_attention(*double, **truth_options)
        self.assertEqual(got.shape, truth.shape)
        self.assert_close(got, truth, "o")
        for what, a, b in zip(("query", "key", "value"), gradients(got, given),
                              gradients(truth, double)):
            self.assert_close(a, b, f"the gradient of {what}")

    def test_signature(self):
        signature = inspect.signature(flash.scaled_dot_product_attention)
        self.assertEqual(
            [(p.name, p.default) for p in signature.parameters.values()],
            [("query", inspect.Parameter.empty), ("key", inspect.Parameter.empty),
             ("value", inspect.Parameter.empty), ("attn_mask", None), ("dropout_p", 0.0),
             ("is_causal", False), ("scale", None), ("enable_gqa", False)])

    def test_ranks_and_broadcasting(self):
        r = torch.randn
        cases = {
            "2": (r(5, 4), r(6, 4), r(6, 3)),
            "3": (r(2, 5, 4), r(2, 6, 4), r(2, 6, 3)),
            "4": (r(2, 3, 5, 4), r(2, 3, 6, 4), r(2, 3, 6, 3)),
            "5": (r(2, 3, 2, 5, 4), r(2, 3, 2, 6, 4), r(2, 3, 2, 6, 4)),
            "batch": (r(2, 2, 5, 4), r(1, 2, 6, 4), r(1, 2, 6, 4)),
            "keys of rank 2": (r(2, 2, 5, 4), r(6, 4), r(6, 4)),
            "queries of rank 2": (r(5, 4), r(2, 2, 6, 4), r(2, 2, 6, 4)),
            "one key head": (r(2, 2, 5, 4), r(2, 1, 6, 4), r(2, 1, 6, 4)),
            "one query head": (r(2, 1, 5, 4), r(2, 3, 6, 4), r(2, 3, 6, 4)),
            "one value head": (r(2, 3, 5, 4), r(2, 3, 6, 4), r(2, 1, 6, 4)),
        }
        for name, tensors in cases.items():
            for is_causal in (False, True):
                with self.subTest(name, is_causal=is_causal):
                    self.same(*tensors, is_causal=is_causal)

    def test_grouped_heads(self):
        r = torch.randn
        self.same(r(2, 6, 5, 4), r(2, 2, 6, 4), r(2, 2, 6, 4), enable_gqa=True)
        self.same(r(2, 6, 5, 4), r(2, 2, 6, 4), r(2, 3, 6, 4), enable_gqa=True)
        self.same(r(6, 5, 4), r(2, 6, 4), r(2, 6, 4), enable_gqa=True)
        self.same(r(3, 6, 5, 4), r(1, 2, 6, 4), r(3, 2, 6, 4), enable_gqa=True, scale=0.1)

    def test_masks(self):
        r = torch.randn
        q, k, v = r(2, 3, 5, 4), r(2, 3, 6, 4), r(2, 3, 6, 4)
        for shape in ((5, 6), (1, 6), (5, 1), (3, 5, 6), (2, 1, 5, 6), (1, 3, 1, 6), (2, 3, 5, 6)):
            for mask in (torch.rand(shape) < 0.6, r(shape)):
                with self.subTest(shape=shape, dtype=mask.dtype):
                    if mask.dtype == torch.bool:
                        mask = mask | (torch.arange(shape[-1]) == 0)
                    self.same(q, k, v, attn_mask=mask)
        more = (r(2, 2, 3, 5, 4), r(2, 2, 3, 6, 4), r(2, 2, 3, 6, 4))
        self.same(*more, attn_mask=r(2, 1, 3, 5, 6))
        self.same(*more, attn_mask=r(3, 5, 6))
        self.same(*(t[0, 0, 0] for t in more), attn_mask=r(5, 6))

    def test_a_mask_as_wide_as_the_heads(self):
        """The keys are what a mask is as wide as, whatever layout the kernels read."""
        q, k, v = (torch.randn(1, 4, 8, 16, device=self.device) for _ in range(3))
        narrow = torch.zeros(1, 1, 8, 1, device=self.device).expand(1, 1, 8, 4)
        with self.assertRaisesRegex(ValueError, r"^attn_mask.shape\[3\]: got 4, expected 1 or 8"):
            flash.scaled_dot_product_attention(q, k, v, attn_mask=narrow)
        wide = torch.randn(1, 1, 8, 1).expand(1, 1, 8, 8)
        self.same(q.cpu(), k.cpu(), v.cpu(), attn_mask=wide)

    def test_a_column_mask_stays_a_column(self):
        """Expanded over many keys it would be a matrix of 128 MiB."""
        if self.device != "cpu":
            self.skipTest("skipped: memory is read from this process")
        import resource
        q = torch.randn(1, 1, 512, 8)
        k, v = torch.randn(1, 1, 65536, 8), torch.randn(1, 1, 65536, 8)
        mask = torch.zeros(1, 1, 512, 1).expand(1, 1, 512, 65536)
        flash.scaled_dot_product_attention(q, k, v)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        flash.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        self.assertLess(grown, 64, "MiB")

    def test_queries_without_a_key(self):
        q, k, v = (torch.randn(1, 2, 5, 4, device=self.device) for _ in range(3))
        mask = torch.ones(5, 5, dtype=torch.bool, device=self.device)
        mask[2] = False
        o = flash.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        self.assertTrue((o[:, :, 2] == 0).all())

    def test_causal_biases(self):
        from torch.nn.attention.bias import causal_lower_right, causal_upper_left
        q, k, v = (torch.randn(2, 3, n, 4, device=self.device) for n in (5, 7, 7))
        for bias, causal in ((causal_lower_right(5, 7), "bottom-right"),
                             (causal_upper_left(5, 7), "top-left")):
            o = flash.scaled_dot_product_attention(q, k, v, attn_mask=bias)
            truth = formula(*(t.transpose(1, 2) for t in (q, k, v)), causal)[0].transpose(1, 2)
            self.assert_close(o, truth, "o")
        with self.assertRaisesRegex(ValueError, "attn_mask: a causal bias for lengths 5 and 6"):
            flash.scaled_dot_product_attention(q, k, v, attn_mask=causal_lower_right(5, 6))

    def test_precision_follows_torch(self):
        from flashlab.torch import _sdpa
        q = torch.randn(1, 1, 4, 8, device=self.device)
        self.assertEqual(_sdpa._precision(q), "ieee")
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        try:
            on_gpu = self.device == "cuda"
            self.assertEqual(_sdpa._precision(q), "tf32" if on_gpu else "ieee")
            self.assertEqual(_sdpa._precision(q.half()), "ieee")
        finally:
            torch.set_float32_matmul_precision(before)


@on_devices
class FlashAttn:
    """flash-attn's layout, bottom-right causal, and results."""

    def test_signatures(self):
        tail = [("dropout_p", 0.0), ("softmax_scale", None), ("causal", False),
                ("window_size", (-1, -1)), ("softcap", 0.0), ("alibi_slopes", None),
                ("deterministic", False), ("return_attn_probs", False)]
        for function, tensors in ((flash.flash_attn_func, "q k v"),
                                  (flash.flash_attn_qkvpacked_func, "qkv"),
                                  (flash.flash_attn_kvpacked_func, "q kv")):
            parameters = inspect.signature(function).parameters.values()
            expected = [(name, inspect.Parameter.empty) for name in tensors.split()] + tail
            self.assertEqual([(p.name, p.default) for p in parameters], expected)

    def test_signatures_begin_as_flash_attns(self):
        """So do those of what is not computed yet."""
        names = {
            flash.flash_attn_varlen_func: "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q",
            flash.flash_attn_varlen_qkvpacked_func: "qkv cu_seqlens max_seqlen dropout_p",
            flash.flash_attn_varlen_kvpacked_func: "q kv cu_seqlens_q cu_seqlens_k max_seqlen_q",
            flash.flash_attn_with_kvcache: "q k_cache v_cache k v rotary_cos",
            flash.flash_attn_combine: "out_partial lse_partial out out_dtype",
        }
        for function, first in names.items():
            parameters = list(inspect.signature(function).parameters)
            self.assertEqual(parameters[:len(first.split())], first.split(), function.__name__)

    def test_flash_attn_func(self):
        for causal in (False, True):
            for lengths in ((5, 9), (9, 5), (7, 7), (1, 7)):
                with self.subTest(causal=causal, lengths=lengths):
                    q, k, v = inputs((2, lengths[0], 6, 8), lengths[1], 2, device=self.device)
                    got = flash.flash_attn_func(q, k, v, 0.0, 0.3, causal)
                    truth = formula(q, k, v, "bottom-right" if causal else None, 0.3)[0]
                    self.assert_close(got, truth, "out")
                    for what, a, b in zip(("dq", "dk", "dv"), gradients(got, (q, k, v)),
                                          gradients(truth, (q, k, v))):
                        self.assert_close(a, b, what)

    def test_return_attn_probs(self):
        q, k, v = inputs((2, 5, 4, 8), 9, device=self.device)
        out, lse, pattern = flash.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
        truth = formula(q, k, v, "bottom-right")
        self.assert_close(out, truth[0], "out")
        self.assert_close(lse, truth[1], "softmax_lse")
        self.assertEqual(pattern.numel(), 0)
        for a, b in zip(gradients(lse, [q, k]), gradients(truth[1], [q, k])):
            self.assert_close(a, b, "a gradient of softmax_lse")

    def test_a_window_that_is_causal(self):
        q, k, v = inputs((2, 5, 4, 8), 9, device=self.device)
        self.assert_equal(flash.flash_attn_func(q, k, v, window_size=(-1, 0)),
                          flash.flash_attn_func(q, k, v, causal=True), "out")

    def test_packed(self):
        q, k, v = inputs((2, 9, 4, 8), device=self.device, requires_grad=False)
        for return_attn_probs in (False, True):
            for causal in (False, True):
                qkv = torch.stack([q, k, v], 2).requires_grad_()
                leaf, kv = q.clone().requires_grad_(), torch.stack([k, v], 2).requires_grad_()
                leaves = [t.clone().requires_grad_() for t in (q, k, v)]
                options = {"causal": causal, "return_attn_probs": return_attn_probs}
                expected = flash.flash_attn_func(*leaves, **options)
                first = flash.flash_attn_qkvpacked_func(qkv, **options)
                second = flash.flash_attn_kvpacked_func(leaf, kv, **options)
                used = slice(0, 2) if return_attn_probs else slice(None)
                truth = gradients(expected[used], leaves)
                dqkv, = gradients(first[used], [qkv])
                dq, dkv = gradients(second[used], [leaf, kv])
                self.assert_close(dqkv, torch.stack(truth, 2), "dqkv", 1e-5)
                self.assert_close(dq, truth[0], "dq", 1e-5)
                self.assert_close(dkv, torch.stack(truth[1:], 2), "dkv", 1e-5)

    def test_packed_tensors_of_any_strides(self):
        dense = torch.randn(2, 9, 3, 4, 8, device=self.device)
        layouts = {
            "dense": dense,
            "innermost last but one": dense.mT.contiguous().mT,
            "reversed": dense.permute(4, 3, 2, 1, 0).contiguous().permute(4, 3, 2, 1, 0),
            "heads first": dense.transpose(1, 3).contiguous().transpose(1, 3),
            "part of a larger": torch.cat([dense, dense], 4)[..., :8],
            "every second": torch.stack([dense, dense], 5)[..., 0],
            "expanded": dense[:1, :, :, :, :1].expand(2, 9, 3, 4, 8),
            "one of each": dense[:1, :1, :, :1, :1].permute(0, 4, 2, 3, 1),
        }
        for name, layout in layouts.items():
            with self.subTest(name):
                qkv = layout.detach().requires_grad_()
                q, kv = (part.detach().requires_grad_() for part in (layout[:, :, 0],
                                                                     layout[:, :, 1:]))
                leaves = [part.detach().contiguous().requires_grad_()
                          for part in layout.unbind(2)]
                truth = gradients(flash.flash_attn_func(*leaves, causal=True), leaves)
                dqkv, = gradients(flash.flash_attn_qkvpacked_func(qkv, causal=True), [qkv])
                dq, dkv = gradients(flash.flash_attn_kvpacked_func(q, kv, causal=True), [q, kv])
                self.assert_close(dqkv, torch.stack(truth, 2), "dqkv", 1e-5)
                self.assert_close(dq, truth[0], "dq", 1e-5)
                self.assert_close(dkv, torch.stack(truth[1:], 2), "dkv", 1e-5)

    def test_packed_without_gradients_under_autocast_and_twice(self):
        qkv = torch.randn(2, 9, 3, 4, 8, device=self.device, requires_grad=True)
        with torch.no_grad():
            expected = flash.flash_attn_qkvpacked_func(qkv)
        self.assertFalse(expected.requires_grad)
        with torch.autocast(self.device, dtype=torch.bfloat16):
            o = flash.flash_attn_qkvpacked_func(qkv)
        self.assertEqual(o.dtype, torch.bfloat16)
        self.assertEqual(gradients(o, [qkv])[0].dtype, torch.float32)
        dqkv, = torch.autograd.grad(flash.flash_attn_qkvpacked_func(qkv).sum(), qkv,
                                    create_graph=True)
        with self.assertRaisesRegex(NotImplementedError, "differentiable once"):
            dqkv.sum().backward()


@on_devices
class Course:
    """Stanford CS336's assignment 2: what its tests look at."""

    names = (flash.get_flashattention_autograd_function_pytorch,
             flash.get_flashattention_autograd_function_triton)

    def tensors(self, dtype=torch.float32, shape=(4, 128, 64)):
        torch.manual_seed(0)
        return [torch.randn(shape, device=self.device).to(dtype).requires_grad_()
                for _ in range(3)]

    def formula(self, q, k, v, is_causal):
        o, lse = formula(*(t[:, :, None] for t in (q, k, v)), "top-left" if is_causal else None)
        return o[:, :, 0], lse[:, 0]

    def test_forward_saves_one_logsumexp(self):
        for name in self.names:
            for is_causal in (False, True):
                for dtype in (torch.float32, torch.bfloat16):
                    q, k, v = self.tensors(dtype)
                    o = name().apply(q, k, v, is_causal)
                    saved = [t for t in o.grad_fn.saved_tensors if t.shape == q.shape[:2]]
                    self.assertEqual(len(saved), 1)
                    truth = self.formula(q, k, v, is_causal)
                    self.assert_close(o, truth[0], "o", 1e-2)
                    self.assert_close(saved[0], truth[1], "lse", 1e-4)

    def test_autocast(self):
        """As torch's own attention: the region's dtype, and gradients in the tensors' own."""
        q, k, v = self.tensors()
        with torch.autocast(self.device, dtype=torch.bfloat16):
            o = flash.FlashAttention.apply(q, k, v, True)
            twin = flash.attention(*(t[:, :, None] for t in (q, k, v)), causal=True)
        self.assertEqual(o.dtype, torch.bfloat16)
        self.assert_equal(o, twin[:, :, 0], "o")
        for got, expected in zip(gradients(o, (q, k, v)), gradients(twin[:, :, 0], (q, k, v))):
            self.assertEqual(got.dtype, torch.float32)
            self.assert_close(got, expected, "a gradient", 1e-2)

    def test_backward(self):
        for is_causal in (False, True):
            q, k, v = self.tensors()
            got = flash.FlashAttention.apply(q, k, v, is_causal)
            truth = self.formula(q, k, v, is_causal)[0]
            for what, a, b in zip(("dq", "dk", "dv"), gradients(got, (q, k, v)),
                                  gradients(truth, (q, k, v))):
                self.assert_close(a, b, what)
        o = flash.FlashAttention.apply(q, k, v)
        self.assert_close(o, self.formula(q, k, v, False)[0], "o without is_causal")

    def test_functions(self):
        q, k, v = self.tensors(shape=(2, 16, 16))
        truth = self.formula(q, k, v, True)[0]
        self.assert_close(flash.flash_attention_pytorch(q, k, v, causal=True), truth, "o")
        with_heads = flash.flash_attention_pytorch(q[:, None], k[:, None], v[:, None], True)
        self.assert_close(with_heads[:, 0], truth, "o with heads")
        if self.device == "cuda":
            self.assert_close(flash.flash_attention_triton(q, k, v, causal=True), truth, "o")
        else:
            with self.assertRaisesRegex(ValueError, "q: is on cpu, expected a CUDA device"):
                flash.flash_attention_triton(q, k, v, causal=True)

    def test_errors(self):
        q, k, v = self.tensors(shape=(2, 16, 16))
        with self.assertRaisesRegex(ValueError, "k: got 4 dimensions, expected 3"):
            flash.FlashAttention.apply(q, k[None], v)
        for call in (flash.FlashAttention.apply, flash.flash_attention_pytorch):
            with self.assertRaisesRegex(TypeError, "causal: got 'bottom-right', expected True or"):
                call(q, k, v, "bottom-right")
        o = flash.FlashAttention.apply(q, k, v)
        dq, = torch.autograd.grad(o.sum(), q, create_graph=True)
        with self.assertRaisesRegex(NotImplementedError, "differentiable once"):
            dq.sum().backward()


if __name__ == "__main__":
    unittest.main()
