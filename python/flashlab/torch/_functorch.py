"""torch.vmap, torch.func.grad and their combinations."""

from __future__ import annotations

import torch

from . import _checks, _operators


def active() -> bool:
    """Whether a torch.func transform is running: its tensors look plain from outside."""
    return _peek() is not None


_peek = torch._C._functorch.peek_interpreter_stack


# ---------------------------------------------------------------------------------------------
# torch.vmap: the mapped dimension joins the batch.
# ---------------------------------------------------------------------------------------------

def _fold(tensor, axis, size):
    """[size * batch, ...] from a tensor that is mapped over `axis`, or over nothing."""
    if tensor is None:
        return None
    tensor = tensor.expand(size, *tensor.shape) if axis is None else tensor.movedim(axis, 0)
    return tensor.reshape(size * tensor.shape[1], *tensor.shape[2:])


def _fold_mask(mask, axis, size, q):
    """The same for a mask that broadcasts against [batch, heads, seqlen_q, seqlen_k]."""
    if mask is None or (axis is None and (mask.dim() < 4 or mask.shape[0] == 1)):
        return mask
    mask = mask.unsqueeze(0) if axis is None else mask.movedim(axis, 0)
    own = (1,) * (5 - mask.dim()) + tuple(mask.shape[1:])
    mask = mask.reshape(mask.shape[0], *own)
    return mask.expand(size, q.shape[0] // size, *own[1:]).reshape(q.shape[0], *own[1:])


def _unfold(outputs, size):
    return tuple(t.reshape(size, t.shape[0] // size, *t.shape[1:]) for t in outputs)


def _vmap_forward(info, in_dims, q, k, v, mask=None, *options):
    size = info.batch_size
    q, k, v = (_fold(t, axis, size) for t, axis in zip((q, k, v), in_dims))
    mask = _fold_mask(mask, in_dims[3] if len(in_dims) > 3 else None, size, q)
    return _unfold(_operators.attention_forward(q, k, v, mask, *options), size), (0, 0)


def _vmap_backward(info, in_dims, d_o, q, k, v, o, lse, d_lse=None, mask=None, *options):
    size = info.batch_size
    given = (d_o, q, k, v, o, lse, d_lse)
    d_o, q, k, v, o, lse, d_lse = (
        _fold(t, axis, size) for t, axis in zip(given, (*in_dims, None)[:7]))
    mask = _fold_mask(mask, in_dims[7] if len(in_dims) > 7 else None, size, q)
    grads = _operators.attention_backward(d_o, q, k, v, o, lse, d_lse, mask, *options)
    return _unfold(grads, size), (0, 0, 0)


if hasattr(torch.library, "register_vmap"):  # torch 2.5
    torch.library.register_vmap("flashlab::attention_forward", _vmap_forward,
                                lib=_operators.LIBRARY)
    torch.library.register_vmap("flashlab::attention_backward", _vmap_backward,
                                lib=_operators.LIBRARY)


# ---------------------------------------------------------------------------------------------
# torch.func.grad, vjp: an operator's registered formula does not serve them, a function in this
# form does.
# ---------------------------------------------------------------------------------------------

class FlashLabAttentionTransformed(torch.autograd.Function):
    """The operator with its gradient, for torch.func."""

    @staticmethod
    def forward(q, k, v, mask, *options):
        return _operators.attention_forward(q, k, v, mask, *options)

    @staticmethod
    def setup_context(ctx, inputs, output):
        q, k, v, mask, *ctx.options = inputs
        ctx.save_for_backward(q, k, v, mask, *output)

    @staticmethod
    def backward(ctx, d_o, d_lse):
        q, k, v, mask, o, lse = ctx.saved_tensors
        grads = _GradientsTransformed.apply(d_o, q, k, v, o, lse, d_lse, mask, *ctx.options)
        return (*grads, None, None, None, None, None)

    vmap = staticmethod(_vmap_forward)


class _GradientsTransformed(torch.autograd.Function):
    """The gradients, which have none themselves."""

    @staticmethod
    def forward(*inputs):
        return _operators.attention_backward(*inputs)

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Nothing to keep."""

    @staticmethod
    def backward(ctx, *grads):
        raise NotImplementedError(_checks.ONCE)

    vmap = staticmethod(_vmap_backward)


attention_forward = FlashLabAttentionTransformed.apply
