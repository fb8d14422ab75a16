"""torch.vmap, torch.func.grad and their combinations."""

from __future__ import annotations

import torch

from . import _checks, _operators
from ._call import Call, save, saved


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


def _fold_broadcast(tensor, axis, size, batch, rank):
    """The same for a tensor that broadcasts against `rank` dimensions, the first of them batch."""
    if tensor is None or (axis is None and (tensor.dim() < rank or tensor.shape[0] == 1)):
        return tensor
    tensor = tensor.unsqueeze(0) if axis is None else tensor.movedim(axis, 0)
    own = (1,) * (rank + 1 - tensor.dim()) + tuple(tensor.shape[1:])
    tensor = tensor.reshape(tensor.shape[0], *own)
    return tensor.expand(size, batch, *own[1:]).reshape(size * batch, *own[1:])


def _mapped(run, own, results, info, in_dims, given):
    """An operator with `own` tensors before the call, mapped over the batch."""
    size, tensors, call = info.batch_size, given[:own], Call(*given[own:])
    in_dims = (*in_dims, *(None,) * (own + len(call) - len(in_dims)))
    axes = Call(*in_dims[own:])
    apart = (call.dropout_p or call.has_lengths() or axes.sinks is not None
             or (results > 2 and call.sinks is not None))
    if apart:
        # Each entry is a call of its own: dropout's pattern depends on the place in the batch,
        # lists of sequences do not join into one, and d_sinks is a sum over the batch.
        each = [run(*(value if axis is None else value.select(axis, i)
                      for value, axis in zip((*tensors, *call), in_dims))) for i in range(size)]
        return tuple(torch.stack(parts) for parts in zip(*each)), (0,) * results
    tensors = [_fold(tensor, axis, size) for tensor, axis in zip(tensors, in_dims)]
    batch = tensors[0].shape[0] // size
    call = call._replace(
        mask=_fold_broadcast(call.mask, axes.mask, size, batch, 4),
        alibi_slopes=_fold_broadcast(call.alibi_slopes, axes.alibi_slopes, size, batch, 2))
    outputs = run(*tensors, *call)
    # The last of backward's, of the sinks that there are none of, has no batch.
    return (tuple(t.reshape(size, batch, *t.shape[1:]) if n < 3 else t.expand(size, 0)
                  for n, t in enumerate(outputs)), (0,) * results)


def _vmap_forward(info, in_dims, *given):
    return _mapped(_operators.attention_forward, 3, 2, info, in_dims, given)


def _vmap_backward(info, in_dims, *given):
    given = given if len(given) > 6 else (*given, None)  # d_lse
    return _mapped(_operators.attention_backward, 7, 4, info, in_dims, given)


def _vmap_seed(info, in_dims, q):
    """As torch's own random operators: vmap's `randomness` says what entries share."""
    if info.randomness == "error":
        raise RuntimeError("vmap: attention with dropout draws random numbers; say by vmap's "
                           'randomness= whether entries drop "different" or the "same" pairs')
    draws = [_operators.dropout_seed(q.select(in_dims[0], i))
             for i in range(info.batch_size if info.randomness == "different" else 1)]
    return (draws[0], None) if info.randomness == "same" else (torch.stack(draws), 0)


if hasattr(torch.library, "register_vmap"):  # torch 2.5
    for _name, _rule in (("attention_forward", _vmap_forward),
                         ("attention_backward", _vmap_backward), ("dropout_seed", _vmap_seed)):
        torch.library.register_vmap(f"flashlab::{_name}", _rule, lib=_operators.LIBRARY)


# ---------------------------------------------------------------------------------------------
# torch.func.grad, vjp: an operator's registered formula does not serve them, a function in this
# form does.
# ---------------------------------------------------------------------------------------------

class FlashLabAttentionTransformed(torch.autograd.Function):
    """The operator with its gradient, for torch.func."""

    @staticmethod
    def forward(q, k, v, *call):
        return _operators.attention_forward(q, k, v, *call)

    @staticmethod
    def setup_context(ctx, inputs, output):
        q, k, v, *call = inputs
        save(ctx, Call(*call), q, k, v, *output)

    @staticmethod
    def backward(ctx, d_o, d_lse):
        call, (q, k, v, o, lse) = saved(ctx)
        *grads, d_sinks = _GradientsTransformed.apply(d_o, q, k, v, o, lse, d_lse, *call)
        return (*grads, *_operators.beside(call, d_sinks))

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
