"""The eager way past the dispatcher, and the choice between it and the operators.

An eager call on plain tensors goes from an autograd function straight to the kernels. Whatever has
to see operators (torch.compile, export, dispatch modes such as FakeTensorMode or selective
checkpointing, tensor subclasses, torch.func, jit.trace) gets the registered ones instead. Both
ways run the same kernels with the same options.
"""

from __future__ import annotations

import torch

from . import _checks, _features, _functorch, _operators

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, type(None)})
# Bound once: an eager call asks all of these, and a look-up costs as much as the answer.
_modes = torch._C._len_torch_dispatch_stack
_transforms = torch._C._functorch.peek_interpreter_stack
_tracing = torch._C._get_tracing_state
_is_compiling = torch.compiler.is_compiling
_is_deterministic = torch.are_deterministic_algorithms_enabled
_is_grad_enabled = torch.is_grad_enabled


def direct(q, k, v, mask=None) -> str | None:
    """"cpu" or "cuda" where nobody has to see an operator (plain tensors, no mode, no transform),
    else None."""
    if (type(q) in _PLAIN and type(k) in _PLAIN and type(v) in _PLAIN and type(mask) in _PLAIN
            and not _modes() and _transforms() is None and _tracing() is None and q is not None):
        return "cuda" if q.is_cuda else "cpu" if q.is_cpu else None
    return None


class FlashLabAttention(torch.autograd.Function):
    """The eager autograd function; use flashlab.torch.attention."""

    @staticmethod
    def forward(ctx, q, k, v, mask, options, return_lse, heads_first):
        o, lse = _operators.run_forward(q, k, v, mask, *options, heads_first)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, mask, o, lse)
        ctx.options = options
        ctx.heads_first = heads_first
        return (o, lse) if return_lse else o

    @staticmethod
    def backward(ctx, d_o, d_lse=None):
        if d_o is None and d_lse is None:
            return (None,) * 7
        q, k, v, mask, o, lse = ctx.saved_tensors
        if d_o is None:
            d_o = torch.zeros_like(o)
        dq, dk, dv = gradients(d_o, q, k, v, o, lse, d_lse, mask, ctx.options, ctx.heads_first)
        return dq, dk, dv, None, None, None, None


def determined(options):
    """The options of a backward call: torch's switch may have been thrown since forward."""
    scale, causal, precision, deterministic = options
    return scale, causal, precision, deterministic or _is_deterministic()


def direct_gradients(d_o, q, k, v) -> bool:
    """As direct, for a backward call. With create_graph the operator has to see it: its formula
    is what says that there is no second derivative."""
    return (not _is_compiling() and not _is_grad_enabled() and type(d_o) in _PLAIN
            and direct(q, k, v) is not None)


def gradients(d_o, q, k, v, o, lse, d_lse, mask, options, heads_first=False):
    """dq, dk, dv; through the operator where somebody has to see it."""
    if direct_gradients(d_o, q, k, v):
        return _operators.run_backward(d_o, q, k, v, o, lse, d_lse, mask, *determined(options),
                                       heads_first)
    if heads_first:
        d_o, q, k, v, o = (tensor.transpose(1, 2) for tensor in (d_o, q, k, v, o))
    grads = _operators.attention_backward(d_o, q, k, v, o, lse, d_lse, mask, *determined(options))
    return (grad.transpose(1, 2) for grad in grads) if heads_first else grads


def attend(q, k, v, mask, scale, causal, precision, deterministic, return_lse, heads_first=False,
           features=None):
    """The one door: every function of flashlab.torch ends here.

    causal is None or an alignment; heads_first means [batch, heads, seqlen, head_dim]; features
    is None or _features.Features.
    """
    if features:
        seen = _is_compiling() or (direct(q, k, v, mask) is None and _transforms() is None)
        return _features.attend(q, k, v, mask, scale, causal, precision, deterministic, return_lse,
                                heads_first, features, seen)
    options = (scale, causal, precision, deterministic or _is_deterministic())
    device = None if _is_compiling() else direct(q, k, v, mask)
    if device is None:
        return _through_operator(q, k, v, mask, options, return_lse, heads_first)
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        _checks.tensors(q=q, k=k, v=v)
        q, k, v = (_operators.autocast(tensor, dtype) for tensor in (q, k, v))
        mask = _operators.autocast_mask(mask, q)
        options = (scale, causal, _operators.autocast_precision(precision, q), options[3])
    if _is_grad_enabled():
        if mask is not None and mask.requires_grad:
            raise NotImplementedError(_checks.MASK_GRADIENT)
        if k is None or v is None:
            _checks.tensors(q=q, k=k, v=v)
        if q.requires_grad or k.requires_grad or v.requires_grad:
            return FlashLabAttention.apply(q, k, v, mask, options, return_lse, heads_first)
    o, lse = _operators.run_forward(q, k, v, mask, *options, heads_first)
    return (o, lse) if return_lse else o


def _through_operator(q, k, v, mask, options, return_lse, heads_first):
    _checks.tensors(q=q, k=k, v=v)
    if mask is not None:
        _checks.tensors(mask=mask)
    _checks.devices(q.device, k=k, v=v, mask=mask)
    if mask is not None and mask.requires_grad and torch.is_grad_enabled():
        raise NotImplementedError(_checks.MASK_GRADIENT)
    if heads_first:
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    # torch.func differentiates functions, not operators.
    transformed = not _is_compiling() and _functorch.active()
    run = _functorch.attention_forward if transformed else _operators.attention_forward
    o, lse = run(q, k, v, mask, *options)
    if heads_first:
        o = o.transpose(1, 2)
    return (o, lse) if return_lse else o
