"""The eager way past the dispatcher, and the choice between it and the operators.

An eager call on plain tensors goes from an autograd function straight to the kernels. Whatever has
to see operators (torch.compile, export, dispatch modes such as FakeTensorMode or selective
checkpointing, tensor subclasses, torch.func, jit.trace) gets the registered ones instead. Both
ways run the same kernels with the same call.
"""

from __future__ import annotations

import torch

from . import _checks, _functorch, _operators
from ._call import Call, draw_seed, entries, save, saved, stored_seed

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, type(None)})
# Bound once: an eager call asks all of these, and a look-up costs as much as the answer.
_modes = torch._C._len_torch_dispatch_stack
_transforms = torch._C._functorch.peek_interpreter_stack
_tracing = torch._C._get_tracing_state
_is_compiling = torch.compiler.is_compiling
_is_deterministic = torch.are_deterministic_algorithms_enabled
_is_grad_enabled = torch.is_grad_enabled


def direct(q, k, v, mask=None, slopes=None, sinks=None) -> str | None:
    """"cpu" or "cuda" where nobody has to see an operator (plain tensors, no mode, no transform),
    else None."""
    if (type(q) in _PLAIN and type(k) in _PLAIN and type(v) in _PLAIN and type(mask) in _PLAIN
            and type(slopes) in _PLAIN and type(sinks) in _PLAIN and not _modes()
            and _transforms() is None and _tracing() is None and q is not None):
        return "cuda" if q.is_cuda else "cpu" if q.is_cpu else None
    return None


class FlashLabAttention(torch.autograd.Function):
    """The eager autograd function; use flashlab.torch.attention."""

    @staticmethod
    def forward(ctx, q, k, v, sinks, call, return_lse, heads_first):
        o, lse = _operators.run_forward(q, k, v, call, heads_first)
        ctx.set_materialize_grads(False)
        save(ctx, call, q, k, v, o, lse)
        ctx.heads_first = heads_first
        return (o, lse) if return_lse else o

    @staticmethod
    def backward(ctx, d_o, d_lse=None):
        if d_o is None and d_lse is None:
            return (None,) * 7
        call, (q, k, v, o, lse) = saved(ctx)
        if d_o is None:
            d_o = torch.zeros_like(o)
        dq, dk, dv, *d_sinks = gradients(d_o, q, k, v, o, lse, d_lse, call, ctx.heads_first)
        return (dq, dk, dv, *(d_sinks or (None,)), None, None, None)


def determined(call: Call) -> Call:
    """The call of this moment: torch's switch may have been thrown since it was made."""
    if call.deterministic or not _is_deterministic():
        return call
    return call._replace(deterministic=True)


def direct_gradients(d_o, q, k, v) -> bool:
    """As direct, for a backward call. With create_graph the operator has to see it: its formula
    is what says that there is no second derivative."""
    return (not _is_compiling() and not _is_grad_enabled() and type(d_o) in _PLAIN
            and direct(q, k, v) is not None)


def gradients(d_o, q, k, v, o, lse, d_lse, call, heads_first=False):
    """dq, dk, dv, and d_sinks where there are sinks; through the operator where somebody has to see
    it."""
    call = determined(call)
    if direct_gradients(d_o, q, k, v):
        return _operators.run_backward(d_o, q, k, v, o, lse, d_lse, call, heads_first)
    if heads_first:
        d_o, q, k, v, o = (tensor.transpose(1, 2) for tensor in (d_o, q, k, v, o))
    call = call._replace(dropout_seed=stored_seed(call.dropout_seed, q.device))
    *grads, d_sinks = _operators.attention_backward(d_o, q, k, v, o, lse, d_lse, *call)
    if heads_first:
        grads = [grad.transpose(1, 2) for grad in grads]
    return grads if call.sinks is None else (*grads, d_sinks)


def with_seed(call: Call, q, heads_first=False) -> Call:
    """The call with dropout's seed, drawn where the caller gave none."""
    if type(call.dropout_p) is float and call.dropout_p == 0.0:
        return call if call.dropout_seed is None else call._replace(dropout_seed=None)
    dropout_p, seed = _checks.probability("dropout_p", call.dropout_p), call.dropout_seed
    if dropout_p == 0.0:
        seed = None
    elif seed is None:
        seed = draw_seed(q, entries(q, call, 1 if heads_first else 2))
    return call._replace(dropout_p=dropout_p, dropout_seed=seed)


def attend(q, k, v, call, return_lse, heads_first=False):
    """The one door: every function of flashlab.torch ends here.

    call.causal is None or an alignment; heads_first means [batch, heads, seqlen, head_dim].
    """
    call = determined(call)
    device = None if _is_compiling() else direct(q, k, v, call.mask, call.alibi_slopes, call.sinks)
    if device is None:
        return _through_operator(q, k, v, call, return_lse, heads_first)
    if k is None or v is None:
        _checks.tensors(q=q, k=k, v=v)
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        q, k, v = (_operators.autocast(tensor, dtype) for tensor in (q, k, v))
        call = _operators.autocast_call(call, q)
    call = with_seed(call, q, heads_first)
    if _is_grad_enabled():
        _checks.no_gradients(call)
        sinks = call.sinks
        if (q.requires_grad or k.requires_grad or v.requires_grad
                or (sinks is not None and sinks.requires_grad)):
            return FlashLabAttention.apply(q, k, v, sinks, call, return_lse, heads_first)
    o, lse = _operators.run_forward(q, k, v, call, heads_first)
    return (o, lse) if return_lse else o


def _through_operator(q, k, v, call, return_lse, heads_first):
    _checks.tensors(q=q, k=k, v=v)
    call = _checks.options(call)
    named = {name: tensor for name, tensor in (("mask", call.mask),
                                               ("alibi_slopes", call.alibi_slopes),
                                               ("cu_seqlens_q", call.cu_seqlens_q),
                                               ("cu_seqlens_k", call.cu_seqlens_k),
                                               ("seqused_q", call.seqused_q),
                                               ("seqused_k", call.seqused_k),
                                               ("sinks", call.sinks),
                                               ("schedule", call.schedule))
             if tensor is not None}
    _checks.tensors(**named)
    _checks.devices(q.device, k=k, v=v, **named)
    if torch.is_grad_enabled():
        _checks.no_gradients(call)
    if heads_first:
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    if call.dropout_p:
        call = call._replace(dropout_seed=_operators.dropout_seed(q) if call.dropout_seed is None
                             else stored_seed(_checks.seed(call.dropout_seed), q.device))
    elif call.dropout_seed is not None:
        call = call._replace(dropout_seed=None)
    # torch.func differentiates functions, not operators.
    transformed = not _is_compiling() and _functorch.active()
    run = _functorch.attention_forward if transformed else _operators.attention_forward
    o, lse = run(q, k, v, *call)
    if heads_first:
        o = o.transpose(1, 2)
    return (o, lse) if return_lse else o
