"""Windows, softcap, ALiBi and dropout in flashlab.torch against plain torch operations in fp64."""

import types
import unittest
from unittest import mock

from torch_cases import torch

from torch.utils.checkpoint import checkpoint

import flashlab
import flashlab.torch as flash
from flashlab.torch import _autograd, _call


FEATURES = ({"window": (3, 1)}, {"window": (3, None), "causal": True}, {"softcap": 2.0},
            {"alibi_slopes": torch.tensor([0.5, 0.25])}, {"dropout_p": 0.3})


def of_flash_attn(features):
    """The features in flash-attn's words, in which -1 is no bound."""
    words = {name: value for name, value in features.items() if name != "window"}
    if "window" in features:
        words["window_size"] = tuple(-1 if side is None else side for side in features["window"])
    return words


def inputs(*shape, dtype, seqlen_k=None, heads_k=None):
    generator = torch.Generator().manual_seed(5)
    batch, seqlen, heads, dim = shape
    keys = (batch, seqlen_k or seqlen, heads_k or heads, dim)
    return tuple(torch.randn(size, generator=generator, dtype=torch.float64).to(dtype)
                 .requires_grad_() for size in ((batch, seqlen, heads, dim), keys, keys))


def scores_of(q, k, window=(-1, -1), softcap=0.0, slopes=None, causal=False):
    """fp64 scores [B, H, Sq, Sk], -inf where hidden; everything aligned bottom-right."""
    q, k = q.double().transpose(1, 2), k.double().transpose(1, 2)
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    scores = q @ k.transpose(2, 3) / q.shape[3] ** 0.5
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    aligned = torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2]
    distance = torch.arange(k.shape[2])[None, :] - aligned
    if slopes is not None:
        scores = scores - slopes.double()[..., None, None] * distance.abs()
    left, right = (-1 if side is None else side for side in window)
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    if causal:
        hidden |= distance > 0
    if left >= 0:
        hidden |= distance < -left
    if right >= 0:
        hidden |= distance > right
    return scores.masked_fill(hidden, float("-inf"))


def attention_of(scores, v, keep=None, p=0.0):
    """fp64 attention [B, Sq, H, D]; rows without a key are 0."""
    v = v.double().transpose(1, 2)
    v = v.repeat_interleave(scores.shape[1] // v.shape[1], 1)
    empty = (scores == float("-inf")).all(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0)
    if keep is not None:
        weights = weights * keep / (1 - p)
    return (weights @ v).transpose(1, 2)


class Features(unittest.TestCase):

    def check(self, given, expected, tensors, bound):
        """Outputs, and the gradients of a fixed combination of them."""
        d_o = torch.randn(expected.shape, generator=torch.Generator().manual_seed(9),
                          dtype=torch.float64)
        self.assertLess((given.double() - expected).abs().max().item(), bound)
        ours = torch.autograd.grad((given.double() * d_o).sum(), tensors)
        theirs = torch.autograd.grad((expected * d_o).sum(), tensors)
        for mine, other in zip(ours, theirs):
            self.assertLess((mine.double() - other.double()).abs().max().item(),
                            bound * max(1.0, other.abs().max().item()) * 4)

    def test_flash_attn_arguments(self):
        slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625])
        for dtype, bound in ((torch.float64, 1e-6), (torch.float32, 1e-5), (torch.bfloat16, 3e-2)):
            q, k, v = inputs(2, 37, 4, 16, dtype=dtype, seqlen_k=50, heads_k=2)
            for options in ({"window_size": (10, 3)}, {"window_size": (-1, 2)},
                            {"window_size": (5, 0)}, {"window_size": (-1, 0)},
                            {"window_size": (7, -1), "causal": True}, {"softcap": 2.0},
                            {"alibi_slopes": slopes}, {"alibi_slopes": slopes, "causal": True},
                            {"alibi_slopes": torch.stack([slopes, 2 * slopes])},
                            {"alibi_slopes": slopes, "softcap": 3.0, "window_size": (20, 4)}):
                with self.subTest(dtype=dtype, **{name: str(x) for name, x in options.items()}):
                    scores = scores_of(q, k, options.get("window_size", (-1, -1)),
                                       options.get("softcap", 0.0), options.get("alibi_slopes"),
                                       options.get("causal", False))
                    self.check(flash.flash_attn_func(q, k, v, **options),
                               attention_of(scores, v), (q, k, v), bound)

    def test_packed(self):
        q, k, v = inputs(1, 20, 2, 8, dtype=torch.float32)
        for packed in (lambda: flash.flash_attn_qkvpacked_func(torch.stack([q, k, v], 2),
                                                               window_size=(4, 1)),
                       lambda: flash.flash_attn_kvpacked_func(q, torch.stack([k, v], 2),
                                                              window_size=(4, 1))):
            self.check(packed(), attention_of(scores_of(q, k, (4, 1)), v), (q, k, v), 1e-5)

    def test_attention_window_names_an_alignment(self):
        q, k, v = inputs(1, 9, 1, 8, dtype=torch.float32, seqlen_k=14)
        with self.assertRaisesRegex(ValueError, "window.*alignment"):
            flash.attention(q, k, v, window=(2, 1))
        bottom = flash.attention(q, k, v, window=(2, 1, "bottom-right"))
        self.check(bottom, attention_of(scores_of(q, k, (2, 1)), v), (q, k, v), 1e-5)
        with self.assertRaisesRegex(ValueError, "^window: got"):
            flash.attention(q, k, v, window=(1, 2, 3, 4))

    def test_dropout(self):
        p, (q, k, v) = 0.3, inputs(2, 40, 4, 16, dtype=torch.float32, seqlen_k=56, heads_k=2)
        # With v = 1 for one key after the other, the weights themselves come out.
        torch.manual_seed(11)
        before = torch.random.get_rng_state()
        eye = torch.eye(56).reshape(1, 56, 1, 56).expand(2, 56, 2, 56)
        weights = flash.flash_attn_func(q.detach(), k.detach(), eye, p).transpose(1, 2)
        keep = (weights != 0).double()
        share = keep.mean().item()
        self.assertLess(abs(share - (1 - p)), 5 * (p * (1 - p) / keep.numel()) ** 0.5)
        # The same seed, the same pattern, in forward and backward; lse is that without dropout.
        torch.random.set_rng_state(before)
        o, lse, _ = flash.flash_attn_func(q, k, v, p, return_attn_probs=True)
        scores = scores_of(q, k)
        self.check(o, attention_of(scores, v, keep, p), (q, k, v), 2e-5)
        self.assertLess((lse.double() - torch.logsumexp(scores, -1)).abs().max().item(), 1e-5)
        # The generator has moved on.
        other = flash.flash_attn_func(q.detach(), k.detach(), eye, p).transpose(1, 2)
        self.assertGreater(((other != 0) != (weights != 0)).double().mean().item(), 0.1)

    def test_dropout_of_scaled_dot_product_attention(self):
        q, k, v = (t.detach().transpose(1, 2) for t in inputs(1, 64, 2, 8, dtype=torch.float32))
        sdpa = flash.scaled_dot_product_attention
        torch.manual_seed(3)
        first = sdpa(q, k, v, dropout_p=0.5)
        second = sdpa(q, k, v, dropout_p=0.5)
        torch.manual_seed(3)
        self.assertTrue(torch.equal(first, sdpa(q, k, v, dropout_p=0.5)))
        self.assertFalse(torch.equal(first, second))
        self.assertTrue(torch.equal(sdpa(q, k, v), sdpa(q, k, v, dropout_p=0.0)))
        mean = torch.stack([sdpa(q, k, v, dropout_p=0.5) for _ in range(400)]).mean(0)
        self.assertLess((mean - sdpa(q, k, v)).abs().mean().item(), 0.05)

    def test_compiled_in_one_graph(self):
        q, k, v = inputs(2, 20, 4, 8, dtype=torch.float32, heads_k=2)
        slopes = torch.linspace(0.01, 0.3, 4)

        def function(options):
            def run(q, k, v):
                o, lse = flash.attention(q * 2, k, v, return_lse=True, **options)
                return o.tanh(), lse
            return run

        for options in ({"dropout_p": 0.4}, {"window": (5, 0, "bottom-right"), "softcap": 3.0},
                        {"alibi_slopes": slopes, "causal": True, "dropout_p": 0.1}):
            torch.compiler.reset()
            eager = function(options)
            compiled = torch.compile(eager, fullgraph=True, backend="aot_eager")
            results = []
            for run in (eager, compiled, compiled):
                if len(results) < 2:
                    torch.manual_seed(21)
                o, lse = run(q, k, v)
                results.append((o, lse, *torch.autograd.grad(o.sum() + lse.sum(), (q, k, v))))
            for a, b in zip(results[0], results[1]):
                torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
            drops = "dropout_p" in options
            self.assertEqual(torch.equal(results[1][0], results[2][0]), not drops, options)

    def test_compiled_calls_draw_for_each(self):
        """Queries that attend twice drop other pairs each time, also compiled by default."""
        torch.compiler.reset()
        q, k, v = inputs(1, 16, 2, 16, dtype=torch.float32)
        twice = torch.compile(lambda q, k, v: [flash.attention(q, k, v, dropout_p=0.5)
                                               for _ in range(2)], fullgraph=True)
        first, second = twice(q, k, v)
        self.assertFalse(torch.equal(first, second))
        torch.autograd.grad((first + second).sum(), (q, k, v))

    def test_a_checkpoint_drops_again_what_it_dropped(self):
        q, k, _ = inputs(1, 16, 2, 16, dtype=torch.float32)
        v = torch.eye(16).reshape(1, 16, 1, 16).repeat(1, 1, 2, 1).requires_grad_()
        d_o = torch.randn(1, 16, 2, 16)

        def block(q, k, v):
            return flash.attention(q * 2, k, v, dropout_p=0.4)

        def again(q, k, v):
            return checkpoint(block, q, k, v, use_reentrant=False)

        compiled = torch.compile(again, fullgraph=True, backend="aot_eager")
        for run in (block, again, compiled):
            o = run(q, k, v)
            dv, = torch.autograd.grad(o, v, d_o)
            # With v = 1 for one key after the other, o is the weights themselves.
            expected = torch.einsum("bihj,bihd->bjhd", o.detach(), d_o)
            torch.testing.assert_close(dv, expected, rtol=1e-4, atol=1e-4)

    def test_operators_keep_their_word(self):
        q, k, v = inputs(2, 9, 2, 8, dtype=torch.float32)
        slopes = torch.tensor([0.5, 0.1])
        forward = torch.ops.flashlab.attention_forward.default
        seed = torch.ops.flashlab.dropout_seed.default(q)
        self.assertEqual((seed.dtype, tuple(seed.shape)), (torch.int64, (2,)))
        torch.library.opcheck(torch.ops.flashlab.dropout_seed.default, (q,),
                              test_utils=("test_schema", "test_faketensor"))
        for rest in ((None, None, None, "ieee", False, [3, 1], "top-left", 2.0, 0.0, slopes),
                     (None, None, None, "ieee", False, None, None, None, 0.5, None, seed)):
            torch.library.opcheck(forward, (q, k, v, *rest))
            o, lse = (t.detach() for t in forward(q, k, v, *rest))
            torch.library.opcheck(
                torch.ops.flashlab.attention_backward.default,
                (o, q.detach(), k.detach(), v.detach(), o, lse, None, *rest),
                test_utils=("test_schema", "test_faketensor"))

    def test_second_derivative_raises(self):
        q, k, v = inputs(1, 9, 2, 8, dtype=torch.float64)
        ways = {
            "attention": lambda **f: flash.attention(q, k, v, **f),
            "with lse": lambda **f: flash.attention(q, k, v, return_lse=True, **f)[1],
            "qkvpacked": lambda **f: flash.flash_attn_qkvpacked_func(
                torch.stack([q, k, v], 2), **of_flash_attn(f)),
            "kvpacked": lambda **f: flash.flash_attn_kvpacked_func(
                q, torch.stack([k, v], 2), **of_flash_attn(f)),
        }
        for features in FEATURES:
            for name, way in ways.items():
                with self.subTest(name, features=list(features)):
                    dq, = torch.autograd.grad(way(**features).sum(), q, create_graph=True)
                    with self.assertRaisesRegex(NotImplementedError, "differentiable once"):
                        torch.autograd.grad(dq.sum(), q)
        x = torch.tensor([1.0, 2.0], dtype=torch.float64).reshape(1, 2, 1, 1)
        with self.assertRaisesRegex(NotImplementedError, "differentiable once"):
            torch.autograd.functional.hessian(
                lambda x: flash.attention(torch.ones_like(x), x, x, softcap=1e6).sum(), x)

    def test_torch_func(self):
        q, k, v = (t.detach() for t in inputs(3, 9, 2, 8, dtype=torch.float32))
        for features in FEATURES:
            if "dropout_p" in features:
                features = {**features, "dropout_seed": (5, 6)}

            def loss(q, k, v):
                o, lse = flash.attention(q[None], k[None], v[None], return_lse=True, **features)
                return (o * o).sum() + lse.sum()

            each = torch.vmap(torch.func.grad(loss, (0, 1, 2)))(q, k, v)
            for i in range(3):
                leaves = [t[i].clone().requires_grad_() for t in (q, k, v)]
                for a, b in zip(each, torch.autograd.grad(loss(*leaves), leaves)):
                    torch.testing.assert_close(a[i], b, rtol=1e-5, atol=1e-5)
            with self.assertRaisesRegex(NotImplementedError, "differentiable once"):
                torch.func.grad(lambda q: torch.func.grad(loss)(q, k[0], v[0]).sum())(q[0])

    def test_vmap_over_slopes(self):
        q, k, v = (t.detach() for t in inputs(2, 9, 4, 8, dtype=torch.float32))
        for shape in ((4,), (2, 4)):
            slopes = torch.rand(3, *shape)
            got = torch.vmap(lambda s: flash.attention(q, k, v, alibi_slopes=s))(slopes)
            for i in range(3):
                torch.testing.assert_close(got[i], flash.attention(q, k, v, alibi_slopes=slopes[i]))

    def test_vmap_and_dropout(self):
        """vmap's own rule for random numbers: entries draw apart, together or not at all."""
        q, k, v = (t.detach()[:1].expand(3, 1, 24, 2, 8)
                   for t in inputs(1, 24, 2, 8, dtype=torch.float32))

        def drop(q, k, v):
            return flash.attention(q, k, v, dropout_p=0.5)

        torch.manual_seed(7)
        one = drop(q[0], k[0], v[0])
        torch.manual_seed(7)
        same = torch.vmap(drop, randomness="same")(q, k, v)
        for entry in same:
            self.assertTrue(torch.equal(entry, one))
        other = torch.vmap(drop, randomness="different")(q, k, v)
        self.assertFalse(torch.equal(other[0], other[1]))
        with self.assertRaisesRegex(RuntimeError, "randomness"):
            torch.vmap(drop)(q, k, v)

    def test_autocast(self):
        q, k, v = inputs(1, 9, 2, 8, dtype=torch.float32)
        for features in FEATURES:
            features = {**features, "dropout_seed": (1, 2)}
            with torch.autocast("cpu", dtype=torch.bfloat16):
                o = flash.attention(q, k, v, **features)
            expected = flash.attention(*(t.bfloat16() for t in (q, k, v)), **features)
            self.assertTrue(torch.equal(o, expected))
            self.assertEqual(torch.autograd.grad(o.sum(), q)[0].dtype, torch.float32)

    def test_a_seed_that_is_given(self):
        """Equal seeds, equal patterns, whichever door; gradients in each."""
        q, k, v = inputs(1, 24, 2, 8, dtype=torch.float32)
        first = flash.attention(q, k, v, dropout_p=0.5, dropout_seed=(3, 2**64 - 1))
        stored = torch.tensor([3, -1])
        others = {
            "a tensor": flash.attention(q, k, v, dropout_p=0.5, dropout_seed=stored),
            "flashlab": flashlab.attention(q, k, v, dropout_p=0.5, dropout_seed=(3, -1)),
            "compiled": torch.compile(
                lambda *t: flash.attention(*t, dropout_p=0.5, dropout_seed=(3, 2**64 - 1)),
                fullgraph=True, backend="aot_eager")(q, k, v),
        }
        expected = torch.autograd.grad(first.sum(), (q, k, v))
        for name, o in others.items():
            with self.subTest(name):
                self.assertTrue(torch.equal(o, first))
                for a, b in zip(torch.autograd.grad(o.sum(), (q, k, v)), expected):
                    self.assertTrue(torch.equal(a, b))
        # Without dropout it changes nothing.
        self.assertTrue(torch.equal(flash.attention(q, k, v, dropout_seed=(3, 4)),
                                    flash.attention(q, k, v)))

    def test_an_output_that_is_given_has_no_gradient(self):
        q, k, v = inputs(1, 9, 2, 8, dtype=torch.float32)
        out = torch.empty(1, 9, 2, 8)
        with self.assertRaisesRegex(ValueError, "^out: got an output beside q"):
            flashlab.attention(q, k, v, softcap=2.0, out=out)
        with torch.no_grad():
            flashlab.attention(q, k, v, softcap=2.0, out=out)
            self.assertTrue(torch.equal(out, flash.attention(q, k, v, softcap=2.0)))

    def test_gradients_of_slopes(self):
        q, k, v = inputs(1, 9, 2, 8, dtype=torch.float32)
        slopes = torch.ones(2, requires_grad=True)
        doors = (lambda: flash.attention(q, k, v, alibi_slopes=slopes),
                 lambda: flashlab.attention(q, k, v, alibi_slopes=slopes),
                 lambda: flash.flash_attn_qkvpacked_func(torch.stack([q, k, v], 2),
                                                         alibi_slopes=slopes),
                 lambda: torch.ops.flashlab.attention_forward(q, k, v, alibi_slopes=slopes))
        for door in doors:
            with self.assertRaisesRegex(NotImplementedError, "^alibi_slopes: a gradient"):
                door()
            with torch.no_grad():
                door()

    def test_a_captured_call_draws_a_tensor(self):
        # A stand-in for a tensor on a GPU whose stream is captured.
        q = types.SimpleNamespace(is_cuda=True, device=torch.device("cpu"), shape=(1, 4, 2, 8))
        with mock.patch.object(torch.cuda, "is_current_stream_capturing", lambda: True):
            torch.manual_seed(1)
            first, second = (_call.draw_seed(q, 2) for _ in range(2))
            torch.manual_seed(1)
            self.assertTrue(torch.equal(first, _call.draw_seed(q, 2)))
        self.assertEqual((first.dtype, tuple(first.shape)), (torch.int64, (2,)))
        self.assertFalse(torch.equal(first, second))
        # Forward and backward read it when they run.
        q, k, v = inputs(1, 24, 2, 8, dtype=torch.float32)
        with mock.patch.object(_autograd, "draw_seed", lambda q, heads: tuple(first.tolist())):
            numbers = flash.attention(q, k, v, dropout_p=0.5)
        with mock.patch.object(_autograd, "draw_seed", lambda q, heads: first):
            stored = flash.attention(q, k, v, dropout_p=0.5)
        self.assertTrue(torch.equal(numbers, stored))
        for a, b in zip(torch.autograd.grad(numbers.sum(), (q, k, v)),
                        torch.autograd.grad(stored.sum(), (q, k, v))):
            self.assertTrue(torch.equal(a, b))

    def test_errors(self):
        q, k, v = inputs(1, 5, 4, 8, dtype=torch.float32)
        for call, pattern in (
                (lambda: flash.flash_attn_func(q, k, v, 1.0), "^dropout_p: got 1.0"),
                (lambda: flash.attention(q, k, v, softcap=-1.0), "^softcap|^options.softcap"),
                (lambda: flash.flash_attn_func(q, k, v, alibi_slopes=torch.ones(3)),
                 r"^alibi_slopes.shape\[1\]: got 3"),
                (lambda: flash.attention(q, k, v, window=(1.5, 0)), "window")):
            with self.assertRaisesRegex(ValueError, pattern):
                call()


if __name__ == "__main__":
    unittest.main()
