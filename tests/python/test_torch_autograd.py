"""Gradients of flashlab.torch: right, in every way that autograd can ask for them."""

import unittest
import warnings

from torch_cases import formula, gradients, inputs, on_devices

import torch
from torch.utils.checkpoint import checkpoint

import flashlab
import flashlab.torch as flash

CASES = {
    "plain": {},
    "causal": {"causal": "top-left"},
    "bottom-right": {"causal": "bottom-right"},
    "scaled": {"scale": -0.7},
}


def bool_mask(q, k, seed=3):
    """About 60 % visible; query 2 of every head sees nothing."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(q.shape[0], 1, q.shape[1], k.shape[1], generator=generator) < 0.6
    mask[:, :, 2] = False
    return mask.to(q.device)


class Gradcheck(unittest.TestCase):
    """fp64 on the CPU against finite differences, o and lse together."""

    def check(self, q, k, v, **options):
        self.assertTrue(torch.autograd.gradcheck(
            lambda *t: flash.attention(*t, return_lse=True, **options), (q, k, v)))

    def test_cases(self):
        for name, options in CASES.items():
            with self.subTest(name):
                self.check(*inputs((2, 5, 4, 3), seqlen_k=7, dtype=torch.float64), **options)

    def test_grouped_heads_and_unequal_head_dims(self):
        self.check(*inputs((1, 4, 6, 3), 5, 2, 2, dtype=torch.float64))

    def test_masks(self):
        q, k, v = inputs((1, 5, 2, 3), 6, dtype=torch.float64)
        visible = bool_mask(q, k)
        visible[:, :, 2, :2] = True  # differences of an lse of -inf are not numbers
        self.check(q, k, v, mask=visible)
        self.check(q, k, v, mask=torch.randn(5, 6, dtype=torch.float64), causal="bottom-right")

    def test_rows_without_a_key(self):
        q, k, v = inputs((1, 5, 2, 3), 6, dtype=torch.float64)
        mask = bool_mask(q, k)
        self.assertTrue(torch.autograd.gradcheck(
            lambda *t: flash.attention(*t, mask=mask), (q, k, v)))


@on_devices
class Autograd:
    """Every device against the formula."""

    def test_float32_with_the_gradient_of_lse(self):
        for name, options in CASES.items():
            with self.subTest(name):
                q, k, v = inputs(seqlen_k=45, heads_k=2, device=self.device)
                got = flash.attention(q, k, v, return_lse=True, **options)
                truth = formula(q, k, v, **options)
                for what, a, b in zip(("o", "lse"), got, truth):
                    self.assert_close(a, b, what)
                for what, a, b in zip(("dq", "dk", "dv"), gradients(got, (q, k, v)),
                                      gradients(truth, (q, k, v))):
                    self.assert_close(a, b, what)

    def test_sixteen_bits(self):
        for dtype in (torch.bfloat16, torch.float16):
            with self.subTest(dtype):
                q, k, v = inputs((2, 130, 4, 64), dtype=dtype, device=self.device)
                got = flash.attention(q, k, v, causal=True)
                truth = formula(q, k, v, causal="top-left")[0]
                naive = formula(q, k, v, causal="top-left", dtype=dtype)[0]
                self.assertEqual(got.dtype, dtype)
                self.assert_near(got, truth, naive, "o")
                three = [gradients(o, (q, k, v)) for o in (got, truth, naive)]
                for what, *values in zip(("dq", "dk", "dv"), *three):
                    self.assert_near(*values, what)

    def test_masks(self):
        q, k, v = inputs(device=self.device)
        for mask in (bool_mask(q, k), torch.randn(4, 1, 37, device=self.device)):
            with self.subTest(mask.dtype):
                got = flash.attention(q, k, v, mask=mask, causal=True)
                truth = formula(q, k, v, mask=mask, causal="top-left")[0]
                self.assert_close(got, truth, "o")
                for what, a, b in zip(("dq", "dk", "dv"), gradients(got, (q, k, v)),
                                      gradients(truth, (q, k, v))):
                    self.assert_close(a, b, what)

    def test_only_lse_is_used(self):
        q, k, v = inputs(device=self.device)
        lse = flash.attention(q, k, v, return_lse=True)[1]
        truth = formula(q, k, v)[1]
        for what, a, b in zip(("dq", "dk"), gradients(lse, (q, k)), gradients(truth, (q, k))):
            self.assert_close(a, b, what)

    def test_used_twice_in_one_graph(self):
        q, k, v = inputs(device=self.device)

        def twice(attend):
            first = attend(q, k, v)
            return attend(first, k, v) + attend(q, first, first)

        got = gradients(twice(lambda *t: flash.attention(*t, causal=True)), (q, k, v))
        truth = gradients(twice(lambda *t: formula(*t, causal="top-left")[0]), (q, k, v))
        for what, a, b in zip(("dq", "dk", "dv"), got, truth):
            self.assert_close(a, b, what)

    def test_gradients_that_are_not_dense(self):
        q, k, v = inputs(device=self.device)
        weights = torch.randn(2, 37, 4, 24, device=self.device)
        ways = {
            "expanded from one number": lambda o: o.sum(),
            "expanded over heads": lambda o: (o.sum(2) * weights[:, :, 0]).sum(),
            "heads first": lambda o: (o.transpose(1, 2) * weights.transpose(1, 2)).sum(),
            "innermost stride": lambda o: (o.mT.contiguous() * weights.mT.contiguous()).sum(),
            "every second": lambda o: (o[..., ::2] * weights[..., ::2]).sum(),
        }
        for name, way in ways.items():
            with self.subTest(name):
                got = torch.autograd.grad(way(flash.attention(q, k, v)), (q, k, v))
                truth = torch.autograd.grad(way(formula(q, k, v)[0].to(q.dtype)), (q, k, v))
                for what, a, b in zip(("dq", "dk", "dv"), got, truth):
                    self.assert_close(a, b, what)

    def test_inputs_that_are_not_dense(self):
        dense = inputs(device=self.device, requires_grad=False)
        expected = flash.attention(*dense)
        layouts = {
            "heads first": lambda t: t.transpose(1, 2).contiguous().transpose(1, 2),
            "innermost stride": lambda t: t.mT.contiguous().mT,
            "part of a larger": lambda t: torch.cat([t, t], 3)[..., :t.shape[3]],
        }
        for name, layout in layouts.items():
            with self.subTest(name):
                tensors = [layout(t).requires_grad_() for t in dense]
                got = flash.attention(*tensors)
                self.assert_close(got, expected, "o", 1e-6)
                given = torch.randn_like(got)
                leaves = [t.clone().requires_grad_() for t in dense]
                truth = torch.autograd.grad(flash.attention(*leaves), leaves, given)
                for what, a, b in zip(("dq", "dk", "dv"),
                                      torch.autograd.grad(got, tensors, given), truth):
                    self.assert_close(a, b, what, 1e-5)

    def test_which_inputs_need_a_gradient(self):
        for chosen in range(3):
            tensors = list(inputs(device=self.device, requires_grad=False))
            tensors[chosen].requires_grad_()
            o = flash.attention(*tensors)
            truth = formula(*tensors)[0]
            self.assert_close(*(gradients(x, [tensors[chosen]])[0] for x in (o, truth)),
                              "qkv"[chosen])
        tensors = inputs(device=self.device, requires_grad=False)
        self.assertIsNone(flash.attention(*tensors).grad_fn)
        tensors = inputs(device=self.device)
        for guard in (torch.no_grad, torch.inference_mode):
            with guard():
                self.assertFalse(flash.attention(*tensors).requires_grad)

    def test_backward_again(self):
        q, k, v = inputs(device=self.device)
        o = flash.attention(q, k, v, deterministic=True)
        first = torch.autograd.grad(o.sum(), q, retain_graph=True)[0]
        self.assert_equal(torch.autograd.grad(o.sum(), q)[0], first, "dq")
        with self.assertRaisesRegex(RuntimeError, "second time"):
            torch.autograd.grad(o.sum(), q)

    def test_changed_in_place(self):
        q, k, v = inputs(device=self.device)
        q = q * 1
        o = flash.attention(q, k, v)
        q.mul_(2)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            o.sum().backward()

    def test_the_lowest_number_hides_a_key(self):
        """Hugging Face's masks: finfo.min where a key is padding, over whole rows of padding."""
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            lowest = torch.finfo(dtype).min
            q, k, v = inputs((2, 12, 4, 16), device=self.device, dtype=dtype)
            visible = torch.ones(2, 1, 12, 12, dtype=torch.bool, device=self.device).tril()
            visible[1, :, :, :5] = False  # left padding: its first five queries see nothing
            results = {}
            for name, hidden in (("bool", None), ("lowest", lowest), ("half", lowest / 2),
                                 ("infinity", -float("inf"))):
                mask = visible
                if hidden is not None:
                    mask = torch.zeros(visible.shape, dtype=dtype, device=self.device)
                    mask[~visible] = hidden
                o, lse = flash.attention(q, k, v, mask=mask, return_lse=True)
                results[name] = (o, lse, *gradients(o, (q, k, v)))
            self.assertTrue((results["lowest"][0][1, :5] == 0).all())
            self.assertTrue(torch.isneginf(results["lowest"][1][1, :, :5]).all())
            for name in ("lowest", "half"):
                for got, expected in zip(results[name], results["infinity"]):
                    with self.subTest(name, dtype=dtype):
                        self.assertTrue(torch.equal(got, expected))

    def test_forward_mode_raises(self):
        """A tangent is not dropped, whichever door the tensor comes through."""
        import torch.autograd.forward_ad as forward_ad
        q, k, v = inputs((2, 5, 4, 8), device=self.device, requires_grad=False)
        row = (slice(None), slice(None), 0)
        doors = {
            "flashlab.torch": lambda t: flash.attention(t, k, v),
            "flashlab": lambda t: flashlab.attention(t, k, v),
            "of a key": lambda t: flash.attention(q, t, v),
            "of a mask": lambda t: flash.attention(q, k, v, mask=t[0, :, 0, :5]),
            "operator": lambda t: torch.ops.flashlab.attention_forward(q, k, t),
            "sdpa": lambda t: flash.scaled_dot_product_attention(t, k, v),
            "flash-attn": lambda t: flash.flash_attn_func(t, k, v),
            "packed": lambda t: flash.flash_attn_qkvpacked_func(torch.stack((t, t, t), 2)),
            "course": lambda t: flash.FlashAttention.apply(t[row], k[row], v[row]),
            "beside a gradient": lambda t: flash.attention(t, k.clone().requires_grad_(), v),
        }
        for name, door in doors.items():
            with self.subTest(name), forward_ad.dual_level():
                dual = forward_ad.make_dual(q.clone(), torch.ones_like(q))
                with self.assertRaisesRegex(NotImplementedError, "forward.mode|jvp"):
                    door(dual)
        with self.assertRaisesRegex(NotImplementedError, "forward.mode|jvp"):
            torch.func.jvp(lambda t: flash.attention(t, k, v), (q,), (torch.ones_like(q),))
        leaf = q.clone().requires_grad_()
        o = flash.attention(leaf, k, v)
        with forward_ad.dual_level():
            with self.assertRaisesRegex(NotImplementedError, "forward.mode|jvp"):
                o.backward(forward_ad.make_dual(torch.ones_like(o), torch.ones_like(o)))
            # Without a tangent a level changes nothing.
            self.assertTrue(torch.equal(flash.attention(q, k, v), o))

    def test_second_derivative_raises(self):
        for return_lse in (False, True):
            q, k, v = inputs(device=self.device)
            o = flash.attention(q, k, v, return_lse=return_lse)
            o = o[0] if return_lse else o
            dq, = torch.autograd.grad(o.sum(), q, create_graph=True)
            with self.assertRaisesRegex(NotImplementedError, "differentiable once"):
                dq.sum().backward()
        q, k, v = inputs(device=self.device)
        weight = torch.ones(1, device=self.device, requires_grad=True)
        loss = (flash.attention(q, k, v) * weight).sum()
        torch.autograd.grad(loss, q, create_graph=True)  # asked for, not differentiated

    def test_checkpoint(self):
        q, k, v = inputs(device=self.device)

        def block(q, k, v):
            return flash.attention(q * 2, k, v, causal=True, deterministic=True).relu()

        expected = gradients(block(q, k, v), (q, k, v))
        for reentrant in (False, True):
            got = gradients_by_backward(
                checkpoint(block, q, k, v, use_reentrant=reentrant), (q, k, v))
            for what, a, b in zip(("dq", "dk", "dv"), got, expected):
                self.assert_equal(a, b, what)

    def test_saved_tensors_hooks(self):
        q, k, v = inputs(device=self.device)
        expected = gradients(flash.attention(q, k, v, deterministic=True), (q, k, v))
        with torch.autograd.graph.save_on_cpu():
            o = flash.attention(q, k, v, deterministic=True)
        for what, a, b in zip(("dq", "dk", "dv"), gradients(o, (q, k, v)), expected):
            self.assert_equal(a, b, what)


def gradients_by_backward(o, tensors, seed=1):
    """As gradients, by .backward(), which reentrant checkpoints need."""
    generator = torch.Generator().manual_seed(seed)
    given = torch.randn(o.shape, generator=generator, dtype=torch.float64).to(o.device, o.dtype)
    for tensor in tensors:
        tensor.grad = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        o.backward(given)
    return [tensor.grad for tensor in tensors]


if __name__ == "__main__":
    unittest.main()
