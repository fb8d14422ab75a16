"""What the tests of flashlab.torch share: the formula, inputs, and how results are judged."""

import math
import unittest

try:
    import torch
except ImportError as error:
    raise unittest.SkipTest("skipped: no PyTorch") from error

CUDA = torch.cuda.is_available()
needs_cuda = unittest.skipUnless(CUDA, "skipped: no GPU")


def formula(q, k, v, causal=None, scale=None, mask=None, dtype=torch.float64):
    """(o, lse) as the page defines them, in `dtype`, with torch's own gradients. [B, S, H, D]."""
    q, k, v = (t.to(dtype) for t in (q, k, v))
    group = q.shape[2] // k.shape[2]
    k, v = (t.repeat_interleave(group, 2) for t in (k, v))
    scale = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * scale
    seqlen_q, seqlen_k = q.shape[1], k.shape[1]
    if mask is not None and mask.dtype != torch.bool:
        scores = scores + mask.to(dtype)
    visible = torch.ones(scores.shape, dtype=torch.bool, device=q.device)
    if mask is not None and mask.dtype == torch.bool:
        visible = visible & mask
    if causal is not None:
        last = torch.arange(seqlen_q, device=q.device)[:, None]
        last = last + (seqlen_k - seqlen_q if causal == "bottom-right" else 0)
        visible = visible & (torch.arange(seqlen_k, device=q.device)[None] <= last)
    scores = scores.masked_fill(~visible, -math.inf)
    lse = torch.logsumexp(scores, -1)
    # Rows without a key: exp(-inf - 0) = 0, and no gradient through the -inf.
    finite = torch.where(torch.isneginf(lse), torch.zeros_like(lse), lse)
    weights = torch.exp(scores - finite[..., None])
    return torch.einsum("bhqk,bkhd->bqhd", weights, v), lse


def inputs(shape_q=(2, 37, 4, 24), seqlen_k=None, heads_k=None, head_dim_v=None, *,
           dtype=torch.float32, device="cpu", seed=0, requires_grad=True):
    """Random q, k, v. The generator is the CPU's, so that every device sees the same numbers."""
    batch, seqlen_q, heads, head_dim = shape_q
    shape_k = (batch, seqlen_k or seqlen_q, heads_k or heads, head_dim)
    shapes = (shape_q, shape_k, (*shape_k[:3], head_dim_v or head_dim))
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        torch.randn(shape, generator=generator, dtype=torch.float64).to(device, dtype)
        .requires_grad_(requires_grad) for shape in shapes)


def gradients(outputs, tensors, seed=1):
    """Gradients of <outputs, random numbers>."""
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    generator = torch.Generator().manual_seed(seed)
    given = [torch.randn(o.shape, generator=generator, dtype=torch.float64).to(o.device, o.dtype)
             for o in outputs]
    return torch.autograd.grad(outputs, tensors, given)


class Judge(unittest.TestCase):
    """assert_* that name what differs and where."""

    def assert_near(self, got, truth, naive, what):
        """No further from the truth (fp64) than twice what the plain formula is in got's dtype."""
        truth, naive = truth.detach().double(), naive.detach().double()
        error = (got.detach().double() - truth).abs()
        rounding = ((truth.to(got.dtype) + 0.3 - 0.3).double() - truth).abs().max()
        allowed = 2 * (naive - truth).abs().max() + 2 * rounding
        self.assertFalse(torch.isnan(got).any(), f"{what} has NaN")
        self.assertLessEqual(error.max().item(), allowed.item(),
                             f"{what} differs most at {int(error.argmax())}")

    def assert_equal(self, got, expected, what):
        self.assertTrue(torch.equal(got, expected), f"{what} differs: largest difference "
                        f"{(got.double() - expected.double()).abs().max().item():.3g}")

    def assert_close(self, got, expected, what, tolerance=1e-4):
        torch.testing.assert_close(got.double(), expected.double(), rtol=tolerance, atol=tolerance,
                                   msg=lambda text: f"{what}: {text}")


def on_devices(cls):
    """Makes <cls>Cpu and <cls>Cuda, skipped without a GPU, from tests that use self.device."""
    import sys
    module = sys.modules[cls.__module__]
    for device, suffix in (("cpu", "Cpu"), ("cuda", "Cuda")):
        made = type(cls.__name__ + suffix, (cls, Judge), {"device": device})
        made.__module__ = cls.__module__
        setattr(module, made.__name__, made if device == "cpu" else needs_cuda(made))
    return cls
