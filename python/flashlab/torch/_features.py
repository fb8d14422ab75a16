"""Windows, softcap, ALiBi and dropout: attention whose scores and probabilities are changed.

Calls without them do not come here. The seed and offset of dropout are drawn once, in forward, and
backward draws the same pattern from them again.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

import torch
from torch import Tensor

from .. import _core
from . import _checks, _operators

# What torch's own dropout kernels take from the generator for one head: its offset grows so.
_NUMBERS_PER_HEAD = 32


class Features(NamedTuple):
    """What _core.forward and _core.backward take beside the usual options."""

    window: Optional[tuple] = None        # (left, right) or (left, right, alignment)
    softcap: Optional[float] = None
    alibi_slopes: Optional[Tensor] = None  # [heads] or [batch, heads] float32
    dropout_p: float = 0.0

    def __bool__(self) -> bool:
        return (self.window is not None or self.softcap is not None
                or self.alibi_slopes is not None or self.dropout_p != 0.0)


def probability(name: str, value) -> float:
    """A dropout probability that can be computed with."""
    if not 0.0 <= value < 1.0:
        raise ValueError(f"{name}: got {value}, expected a probability from 0 to below 1")
    return float(value)


def dropout_seed(q: Tensor, heads: int) -> tuple[int, int]:
    """(seed, offset) from torch's generator of q's device, which moves on as torch moves it.

    On a CUDA device the generator's own seed and offset; the offset grows by 32 for every batch
    entry and head, as torch's flash attention lets it grow. On a CPU two numbers of its stream.
    """
    if q.is_cuda:
        if torch.cuda.is_current_stream_capturing():
            raise NotImplementedError(
                "dropout_p: dropout inside a CUDA graph is not supported yet (every replay would "
                "drop the same pairs); pass 0.0 while capturing")
        generator = torch.cuda.default_generators[q.device.index]
        seed, offset = generator.initial_seed(), generator.get_offset()
        generator.set_offset(offset + _NUMBERS_PER_HEAD * q.shape[0] * heads)
        return seed, offset
    drawn = torch.randint(-2**63, 2**63 - 1, (2,), dtype=torch.int64).tolist()
    return drawn[0], drawn[1]


class FlashLabFeatures(torch.autograd.Function):
    """The autograd function of attention with features."""

    @staticmethod
    def forward(ctx, q, k, v, mask, slopes, options, features, seed, return_lse):
        scale, causal, precision, deterministic = options
        o, lse = _core.forward(q, k, v, mask=mask, scale=scale, causal=causal, precision=precision,
                               deterministic=deterministic, window=features.window,
                               softcap=features.softcap, alibi_slopes=slopes,
                               dropout_p=features.dropout_p, dropout_seed=seed)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, mask, slopes, o, lse)
        ctx.call = options, features, seed
        return (o, lse) if return_lse else o

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_o, d_lse=None):
        if d_o is None and d_lse is None:
            return (None,) * 9
        q, k, v, mask, slopes, o, lse = ctx.saved_tensors
        (scale, causal, precision, deterministic), features, seed = ctx.call
        if d_o is None:
            d_o = torch.zeros_like(o)
        grads = _core.backward(
            d_o, q, k, v, o, lse, d_lse=d_lse, mask=mask, scale=scale, causal=causal,
            precision=precision, window=features.window, softcap=features.softcap,
            alibi_slopes=slopes, dropout_p=features.dropout_p, dropout_seed=seed,
            deterministic=deterministic or torch.are_deterministic_algorithms_enabled())
        return (*grads, None, None, None, None, None, None)


def attend(q, k, v, mask, scale, causal, precision, deterministic, return_lse, heads_first,
           features: Features):
    """As _autograd.attend, with features. torch.compile breaks its graph here."""
    _checks.tensors(q=q, k=k, v=v)
    _checks.no_tangents(q, k, v, mask)
    slopes = features.alibi_slopes
    if slopes is not None:
        _checks.tensors(alibi_slopes=slopes)
        if slopes.requires_grad:
            raise NotImplementedError("alibi_slopes: a gradient of the slopes is not supported; "
                                      "pass alibi_slopes.detach()")
    if mask is not None and mask.requires_grad and torch.is_grad_enabled():
        raise NotImplementedError(_checks.MASK_GRADIENT)
    if heads_first:
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    if torch.is_autocast_enabled(q.device.type):
        dtype = torch.get_autocast_dtype(q.device.type)
        q, k, v = (_operators.autocast(tensor, dtype) for tensor in (q, k, v))
        mask = _operators.autocast_mask(mask, q)
    seed = dropout_seed(q, q.shape[2]) if features.dropout_p else None
    options = (scale, causal, precision,
               bool(deterministic) or torch.are_deterministic_algorithms_enabled())
    outputs = FlashLabFeatures.apply(q, k, v, mask, slopes, options,
                                     features._replace(alibi_slopes=None), seed, return_lse)
    if not heads_first:
        return outputs
    return (outputs[0].transpose(1, 2), outputs[1]) if return_lse else outputs.transpose(1, 2)


# What torch.compiler.disable does. The decorator itself imports torch._dynamo, which takes seconds.
attend._torchdynamo_disable = True
