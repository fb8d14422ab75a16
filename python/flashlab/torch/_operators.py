"""The custom operators flashlab::attention_forward, attention_backward and dropout_seed.

They know [batch, seqlen, heads, head_dim] only and are what torch.compile, torch.export, dispatch
modes and tensor subclasses see. They are registered on the dispatcher directly: one call costs the
host 15.8 us so, and 16.8 us by torch.library.custom_op, whose Python layers come on top (without
gradients; H200, torch 2.11, November 2026).
"""

from __future__ import annotations

import torch
from torch.library import Library

from .. import _core
from . import _checks
from ._call import SCHEMA, Call, draw_seed, entries, save, saved, stored_seed

LIBRARY = Library("flashlab", "FRAGMENT")
TAGS = tuple(tag for tag in (
    torch.Tag.pt2_compliant_tag,
    getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)))

LIBRARY.define(f"attention_forward(Tensor q, Tensor k, Tensor v, {SCHEMA}) -> "
               "(Tensor o, Tensor lse)", tags=TAGS)
LIBRARY.define("attention_backward(Tensor d_o, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, "
               f"Tensor? d_lse=None, {SCHEMA}) -> "
               "(Tensor dq, Tensor dk, Tensor dv, Tensor d_sinks)", tags=TAGS)
LIBRARY.define("dropout_seed(Tensor q) -> Tensor", tags=(*TAGS, torch.Tag.nondeterministic_seeded))

if torch.__version__ < (2, 15):
    # A compiled graph merges equal calls. Newer versions leave out what is tagged as random (and
    # load the compiler with this module); older ones (2.11 among them) only what is on this list:
    # two draws for the same q would be one pattern.
    from torch._functorch import compile_utils

    getattr(compile_utils, "rand_ops", []).append(torch.ops.flashlab.dropout_seed)

attention_forward = torch.ops.flashlab.attention_forward.default
attention_backward = torch.ops.flashlab.attention_backward.default
# [2] int64 on q's device: draw_seed's numbers for a call with these queries.
dropout_seed = torch.ops.flashlab.dropout_seed.default


# ---------------------------------------------------------------------------------------------
# Kernels
# ---------------------------------------------------------------------------------------------

def run_forward(q, k, v, call, heads_first=False):
    """o [B, Sq, Hq, Dv] and lse [B, Hq, Sq], below autograd and the dispatcher.

    heads_first: q, k, v and o are [batch, heads, seqlen, head_dim], in the layout of torch's own
    scaled_dot_product_attention; cheaper than four transposes.
    """
    _checks.no_tangents(q, k, v, call.mask, call.alibi_slopes, call.sinks)
    try:
        return _core.torch_forward(q, k, v, call, heads_first)
    except (RuntimeError, ValueError):
        # What has no address fails in the exchange; say better why, and look only then.
        named = {"mask": call.mask, "alibi_slopes": call.alibi_slopes, "sinks": call.sinks,
                 "cu_seqlens_q": call.cu_seqlens_q, "cu_seqlens_k": call.cu_seqlens_k,
                 "seqused_q": call.seqused_q, "seqused_k": call.seqused_k}
        named = {name: tensor for name, tensor in named.items() if tensor is not None}
        _checks.tensors(q=q, k=k, v=v, **named)
        _checks.devices(q.device, k=k, v=v, **named)
        raise


def run_backward(d_o, q, k, v, o, lse, d_lse, call, heads_first=False, dq=None, dk=None,
                 dv=None):
    """dq, dk, dv, and d_sinks where there are sinks, below autograd and the dispatcher; heads_first
    as in run_forward. Those that are given are written into."""
    _checks.no_tangents(d_o, q, k, v, o, lse, d_lse, call.mask, call.alibi_slopes)
    return _core.torch_backward(d_o, q, k, v, o, lse, d_lse, call, heads_first, dq, dk,
                                dv)


def _forward_kernel(q, k, v, *call):
    return run_forward(q, k, v, Call(*call))


def _backward_kernel(d_o, q, k, v, o, lse, d_lse=None, *call):
    grads = run_backward(d_o, q, k, v, o, lse, d_lse, Call(*call))
    return grads if len(grads) == 4 else (*grads, _no_sinks(q))


def _no_sinks(q):
    """An operator has as many results at every call: d_sinks where there are none."""
    return q.new_empty((0,), dtype=torch.float32)


def _seed_kernel(q):
    return stored_seed(draw_seed(q, entries(q)), q.device)


for _device in ("CPU", "CUDA"):
    LIBRARY.impl("attention_forward", _forward_kernel, _device)
    LIBRARY.impl("attention_backward", _backward_kernel, _device)
    LIBRARY.impl("dropout_seed", _seed_kernel, _device)


# ---------------------------------------------------------------------------------------------
# Shapes without memory
# ---------------------------------------------------------------------------------------------

def lse_dtype(dtype: torch.dtype) -> torch.dtype:
    """The log-sum-exp is fp32, and fp64 for fp64 tensors."""
    return torch.float64 if dtype == torch.float64 else torch.float32


@torch.library.register_fake("flashlab::attention_forward", lib=LIBRARY)
def _fake_forward(q, k, v, *call):
    _checks.forward(q, k, v, Call(*call))
    *tokens, heads, _ = q.shape
    return (q.new_empty((*tokens, heads, v.shape[-1])),
            q.new_empty((*tokens[:-1], heads, tokens[-1]), dtype=lse_dtype(q.dtype)))


@torch.library.register_fake("flashlab::attention_backward", lib=LIBRARY)
def _fake_backward(d_o, q, k, v, o, lse, d_lse=None, *call):
    call = Call(*call)
    _checks.forward(q, k, v, call)
    d_sinks = _no_sinks(q) if call.sinks is None else torch.empty_like(call.sinks)
    return (*(tensor.new_empty(tensor.shape) for tensor in (q, k, v)), d_sinks)


@torch.library.register_fake("flashlab::dropout_seed", lib=LIBRARY)
def _fake_seed(q):
    return q.new_empty((2,), dtype=torch.int64)


# ---------------------------------------------------------------------------------------------
# Autograd
# ---------------------------------------------------------------------------------------------

def _save(ctx, inputs, output) -> None:
    q, k, v, *given = inputs
    call = Call(*given)
    _checks.no_gradients(call)
    ctx.set_materialize_grads(False)
    save(ctx, call, q, k, v, *output)


def _gradients(ctx, d_o, d_lse):
    if d_o is None and d_lse is None:
        return (None,) * (3 + len(Call._fields))
    call, (q, k, v, o, lse) = saved(ctx)
    if d_o is None:
        d_o = torch.zeros_like(o)
    *grads, d_sinks = attention_backward(d_o, q, k, v, o, lse, d_lse, *call)
    return (*grads, *beside(call, d_sinks))


def beside(call, d_sinks):
    """The gradients of what a call brings beside q, k and v."""
    return Call(*(None,) * len(call))._replace(
        sinks=None if call.sinks is None else d_sinks)


def _refuse(ctx, *grads):
    raise NotImplementedError(_checks.ONCE)


torch.library.register_autograd("flashlab::attention_forward", _gradients, setup_context=_save,
                                lib=LIBRARY)
torch.library.register_autograd("flashlab::attention_backward", _refuse, lib=LIBRARY)


# ---------------------------------------------------------------------------------------------
# Autocast: as torch does for its own scaled_dot_product_attention, to the region's dtype.
# ---------------------------------------------------------------------------------------------

def autocast(tensor, dtype):
    """The tensor in the autocast dtype; fp64, integers and booleans stay as they are."""
    if tensor is None or tensor.dtype == dtype or tensor.dtype not in (
            torch.float32, torch.float16, torch.bfloat16):
        return tensor
    return tensor.to(dtype)


def autocast_call(call, q):
    """What changes beside q, k and v, which have their dtype already. An additive mask is read in
    fp32 or in q's dtype: only others are cast. tf32 is for fp32 tensors, which a region of 16 bits
    leaves none of."""
    mask = call.mask
    if mask is not None and mask.dtype != torch.float32:
        mask = autocast(mask, q.dtype)
    return call._replace(mask=mask, precision=call.precision if q.dtype == torch.float32
                         else "ieee")


def _register_autocast(device: str, key: str) -> None:
    below = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

    def kernel(_, q, k, v, *call):
        dtype = torch.get_autocast_dtype(device)
        with torch._C._ExcludeDispatchKeyGuard(below):
            q, k, v = (autocast(tensor, dtype) for tensor in (q, k, v))
            return attention_forward(q, k, v, *autocast_call(Call(*call), q))

    LIBRARY.impl("attention_forward", kernel, key, with_keyset=True)


_register_autocast("cpu", "AutocastCPU")
_register_autocast("cuda", "AutocastCUDA")
