"""Attention on packed tensors: the gradients are written where they belong, without a copy.

Taking a packed tensor apart with torch's own operations would have autograd put the gradients
together again: one more pass over all of them.
"""

from __future__ import annotations

import torch

from . import _autograd, _checks, _operators
from ._call import save, saved


class FlashLabPackedAttention(torch.autograd.Function):
    """The eager autograd function of packed [.., 3, ..] (q is None) or [.., 2, ..] tensors."""

    @staticmethod
    def forward(ctx, q, packed, call, return_lse):
        o, lse = _operators.run_forward(*_apart(q, packed), call)
        ctx.set_materialize_grads(False)
        save(ctx, call, q, packed, o, lse)
        return (o, lse) if return_lse else o

    @staticmethod
    def backward(ctx, d_o, d_lse=None):
        if d_o is None and d_lse is None:
            return None, None, None, None
        call, (q, packed, o, lse) = saved(ctx)
        if d_o is None:
            d_o = torch.zeros_like(o)
        if not _autograd.direct_gradients(d_o, packed, q, None):
            grads = _autograd.gradients(d_o, *_apart(q, packed), o, lse, d_lse, call)
            return (*_together(q, grads), None, None)
        d_q = None if q is None else _gradient_of(q)
        d_packed = _gradient_of(packed)
        _operators.run_backward(d_o, *_apart(q, packed), o, lse, d_lse,
                                _autograd.determined(call), False, *_apart(d_q, d_packed))
        return d_q, d_packed, None, None


def _gradient_of(tensor):
    """Memory for a gradient: laid out as the tensor where kernels can write so."""
    gradient = torch.empty_like(tensor)
    if gradient.stride(-1) == 1:
        return gradient
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _apart(q, packed):
    return packed.unbind(-3) if q is None else (q, *packed.unbind(-3))


def _together(q, grads):
    return (None, torch.stack(grads, -3)) if q is None else (grads[0], torch.stack(grads[1:], -3))


def attend_packed(q, packed, call, return_lse):
    """As _autograd.attend, for packed tensors."""
    device = (None if torch.compiler.is_compiling() else
              _autograd.direct(packed, q, None, call.alibi_slopes))
    if (device is None or not torch.is_grad_enabled() or torch.is_autocast_enabled(device)
            or not (packed.requires_grad or (q is not None and q.requires_grad))):
        return _autograd.attend(*_apart(q, packed), call, return_lse)
    _checks.no_gradients(call)
    call = _autograd.with_seed(_autograd.determined(call), packed.select(-3, 0) if q is None else q)
    return FlashLabPackedAttention.apply(q, packed, call, return_lse)
