"""Attention on packed tensors: the gradients are written where they belong, without a copy.

Taking a packed tensor apart with torch's own operations would have autograd put the gradients
together again: one more pass over all of them.
"""

from __future__ import annotations

import torch

from . import _autograd, _operators


class FlashLabPackedAttention(torch.autograd.Function):
    """The eager autograd function of packed [.., 3, ..] (q is None) or [.., 2, ..] tensors."""

    @staticmethod
    def forward(ctx, q, packed, options, return_lse):
        o, lse = _operators.run_forward(*_apart(q, packed), None, *options)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, packed, o, lse)
        ctx.options = options
        return (o, lse) if return_lse else o

    @staticmethod
    def backward(ctx, d_o, d_lse=None):
        if d_o is None and d_lse is None:
            return None, None, None, None
        q, packed, o, lse = ctx.saved_tensors
        if d_o is None:
            d_o = torch.zeros_like(o)
        if not _autograd.direct_gradients(d_o, packed, q, None):
            grads = _autograd.gradients(d_o, *_apart(q, packed), o, lse, d_lse, None, ctx.options)
            return (*_together(q, grads), None, None)
        d_q = None if q is None else torch.empty_like(q)
        d_packed = torch.empty_like(packed)
        _operators.run_backward_into(*_apart(d_q, d_packed), d_o, *_apart(q, packed), o, lse, d_lse,
                                     *_autograd.determined(ctx.options))
        return d_q, d_packed, None, None


def _apart(q, packed):
    return packed.unbind(2) if q is None else (q, *packed.unbind(2))


def _together(q, grads):
    return (None, torch.stack(grads, 2)) if q is None else (grads[0], torch.stack(grads[1:], 2))


def attend_packed(q, packed, scale, causal, deterministic, return_lse, features=None):
    """As _autograd.attend, for packed tensors."""
    if features:
        return _autograd.attend(*_apart(q, packed), None, scale, causal, "ieee", deterministic,
                                return_lse, features=features)
    device = None if torch.compiler.is_compiling() else _autograd.direct(packed, q, None)
    needed = packed.requires_grad or (q is not None and q.requires_grad)
    if (device is None or not needed or not torch.is_grad_enabled()
            or torch.is_autocast_enabled(device)):
        return _autograd.attend(*_apart(q, packed), None, scale, causal, "ieee", deterministic,
                                return_lse)
    options = (scale, causal, "ieee",
               bool(deterministic) or torch.are_deterministic_algorithms_enabled())
    return FlashLabPackedAttention.apply(q, packed, options, return_lse)
