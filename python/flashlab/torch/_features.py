"""Windows, softcap, ALiBi and dropout: attention whose scores and probabilities are changed.

Calls without them do not come here. The seed and offset of dropout are drawn once, in forward, and
backward draws the same pattern from them again. An eager call hands both to the kernels as numbers;
inside a CUDA graph, and through the operators that torch.compile sees, they lie in a tensor that
the kernels read when they run.
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


def dropout_seed(q: Tensor, heads: int) -> tuple[int, int] | Tensor:
    """(seed, offset) from torch's generator of q's device, which moves on as torch moves it.

    On a CUDA device the generator's own seed and offset; the offset grows by 32 for every batch
    entry and head, as torch's flash attention lets it grow. On a CPU two numbers of its stream.
    While a CUDA graph is captured: a tensor that every replay of the graph draws anew.
    """
    if q.is_cuda:
        if torch.cuda.is_current_stream_capturing():
            return torch.empty(2, dtype=torch.int64, device=q.device).random_()
        generator = torch.cuda.default_generators[q.device.index]
        seed, offset = generator.initial_seed(), generator.get_offset()
        generator.set_offset(offset + _NUMBERS_PER_HEAD * q.shape[0] * heads)
        return seed, offset
    drawn = torch.randint(-2**63, 2**63 - 1, (2,), dtype=torch.int64).tolist()
    return drawn[0], drawn[1]


def dropout_state(q: Tensor, heads: int) -> Tensor:
    """dropout_seed as a tensor on q's device, without waiting for the device."""
    drawn = dropout_seed(q, heads)
    if isinstance(drawn, Tensor):
        return drawn
    state = torch.empty(2, dtype=torch.int64, device=q.device)
    for at, number in enumerate(drawn):
        state[at].fill_((number + 2**63) % 2**64 - 2**63)
    return state


class FlashLabFeatures(torch.autograd.Function):
    """The eager autograd function of attention with features."""

    @staticmethod
    def forward(ctx, q, k, v, mask, slopes, options, features, seed, return_lse):
        scale, causal, precision, deterministic = options
        o, lse = _core.forward(q, k, v, mask=mask, scale=scale, causal=causal, precision=precision,
                               deterministic=deterministic, window=features.window,
                               softcap=features.softcap, alibi_slopes=slopes,
                               dropout_p=features.dropout_p, dropout_seed=seed)
        ctx.set_materialize_grads(False)
        stored = isinstance(seed, Tensor)
        ctx.save_for_backward(q, k, v, mask, slopes, o, lse, seed if stored else None)
        ctx.call = options, features, None if stored else seed
        return (o, lse) if return_lse else o

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_o, d_lse=None):
        if d_o is None and d_lse is None:
            return (None,) * 9
        q, k, v, mask, slopes, o, lse, state = ctx.saved_tensors
        (scale, causal, precision, deterministic), features, seed = ctx.call
        if d_o is None:
            d_o = torch.zeros_like(o)
        grads = _core.backward(
            d_o, q, k, v, o, lse, d_lse=d_lse, mask=mask, scale=scale, causal=causal,
            precision=precision, window=features.window, softcap=features.softcap,
            alibi_slopes=slopes, dropout_p=features.dropout_p,
            dropout_seed=seed if state is None else state,
            deterministic=deterministic or torch.are_deterministic_algorithms_enabled())
        return (*grads, None, None, None, None, None, None)


# ---------------------------------------------------------------------------------------------
# The operators, for what has to see them
# ---------------------------------------------------------------------------------------------

_OPTIONS = ("float dropout_p, float? softcap, int[]? window, str? alignment, float? scale, "
            "str? causal, str precision, bool deterministic")
_operators.LIBRARY.define(
    "features_forward(Tensor q, Tensor k, Tensor v, Tensor? mask, Tensor? alibi_slopes, "
    f"{_OPTIONS}) -> (Tensor o, Tensor lse, Tensor dropout_state)",
    tags=(*_operators.TAGS, torch.Tag.nondeterministic_seeded))
_operators.LIBRARY.define(
    "features_backward(Tensor d_o, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, "
    "Tensor dropout_state, Tensor? d_lse, Tensor? mask, Tensor? alibi_slopes, "
    f"{_OPTIONS}) -> (Tensor dq, Tensor dk, Tensor dv)", tags=_operators.TAGS)
_forward_operator = torch.ops.flashlab.features_forward.default
_backward_operator = torch.ops.flashlab.features_backward.default


def _keywords(dropout_p, softcap, window, alignment, scale, causal, precision, deterministic):
    """_core's, by the operators' options."""
    if window is not None:
        window = (*window, alignment) if alignment else tuple(window)
    return {"dropout_p": dropout_p, "softcap": softcap, "window": window, "scale": scale,
            "causal": causal, "precision": precision, "deterministic": deterministic}


def _run_forward(q, k, v, mask, slopes, dropout_p, *options):
    state = dropout_state(q, q.shape[2]) if dropout_p else _no_state(q)
    o, lse = _core.forward(q, k, v, mask=mask, alibi_slopes=slopes,
                           dropout_seed=state if dropout_p else None,
                           **_keywords(dropout_p, *options))
    return o, lse, state


def _run_backward(d_o, q, k, v, o, lse, state, d_lse, mask, slopes, dropout_p, *options):
    return tuple(_core.backward(d_o, q, k, v, o, lse, d_lse=d_lse, mask=mask, alibi_slopes=slopes,
                                dropout_seed=state if dropout_p else None,
                                **_keywords(dropout_p, *options)))


def _no_state(q):
    return torch.empty(0, dtype=torch.int64, device=q.device)


def _fake_forward(q, k, v, mask, slopes, dropout_p, softcap, window, alignment, scale, causal,
                  precision, deterministic):
    _checks.forward(q, k, v, mask, causal, precision)
    batch, seqlen_q, heads, _ = q.shape
    return (q.new_empty((batch, seqlen_q, heads, v.shape[3])),
            q.new_empty((batch, heads, seqlen_q), dtype=_operators.lse_dtype(q.dtype)),
            q.new_empty((2 if dropout_p else 0,), dtype=torch.int64))


def _fake_backward(d_o, q, k, v, *_):
    return tuple(tensor.new_empty(tensor.shape) for tensor in (q, k, v))


def _save(ctx, inputs, output):
    q, k, v, mask, slopes, *options = inputs
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[2])
    ctx.save_for_backward(q, k, v, mask, slopes, *output)
    ctx.options = tuple(options)


def _gradients(ctx, d_o, d_lse, _):
    if d_o is None and d_lse is None:
        return (None,) * 13
    q, k, v, mask, slopes, o, lse, state = ctx.saved_tensors
    grads = _backward_operator(torch.zeros_like(o) if d_o is None else d_o, q, k, v, o, lse, state,
                               d_lse, mask, slopes, *ctx.options)
    return (*grads, *(None,) * 10)


def _refuse(ctx, *grads):
    raise NotImplementedError(_checks.ONCE)


for _device in ("CPU", "CUDA"):
    _operators.LIBRARY.impl("features_forward", _run_forward, _device)
    _operators.LIBRARY.impl("features_backward", _run_backward, _device)
for _name, _fake in (("forward", _fake_forward), ("backward", _fake_backward)):
    torch.library.register_fake(f"flashlab::features_{_name}", _fake, lib=_operators.LIBRARY)
torch.library.register_autograd("flashlab::features_forward", _gradients, setup_context=_save,
                                lib=_operators.LIBRARY)
torch.library.register_autograd("flashlab::features_backward", _refuse, lib=_operators.LIBRARY)


def _through_operator(q, k, v, mask, slopes, options, features, return_lse):
    scale, causal, precision, deterministic = options
    window, alignment = features.window, None
    if window is not None:
        window, alignment = list(window[:2]), window[2] if len(window) == 3 else None
    o, lse, _ = _forward_operator(q, k, v, mask, slopes, features.dropout_p, features.softcap,
                                  window, alignment, scale, causal, precision, deterministic)
    return (o, lse) if return_lse else o


def attend(q, k, v, mask, scale, causal, precision, deterministic, return_lse, heads_first,
           features: Features, seen: bool):
    """As _autograd.attend, with features. seen: somebody has to see an operator."""
    _checks.tensors(q=q, k=k, v=v)
    if not seen:
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
    options = (scale, causal, precision,
               bool(deterministic) or torch.are_deterministic_algorithms_enabled())
    if seen:
        outputs = _through_operator(q, k, v, mask, slopes, options, features, return_lse)
    else:
        seed = dropout_seed(q, q.shape[2]) if features.dropout_p else None
        outputs = FlashLabFeatures.apply(q, k, v, mask, slopes, options,
                                         features._replace(alibi_slopes=None), seed, return_lse)
    if not heads_first:
        return outputs
    return (outputs[0].transpose(1, 2), outputs[1]) if return_lse else outputs.transpose(1, 2)
