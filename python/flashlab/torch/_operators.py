"""The custom operators flashlab::attention_forward and flashlab::attention_backward.

Both know [batch, seqlen, heads, head_dim] only and are what torch.compile, torch.export, dispatch
modes and tensor subclasses see. They are registered on the dispatcher directly: one call costs the
host 15.8 us so, and 16.8 us by torch.library.custom_op, whose Python layers come on top (without
gradients; H200, torch 2.11, November 2026).
"""

from __future__ import annotations

import torch
from torch.library import Library

from .. import _core
from . import _checks

LIBRARY = Library("flashlab", "FRAGMENT")
TAGS = tuple(tag for tag in (
    torch.Tag.pt2_compliant_tag,
    getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)))

LIBRARY.define(
    "attention_forward(Tensor q, Tensor k, Tensor v, Tensor? mask=None, float? scale=None, "
    "str? causal=None, str precision='ieee', bool deterministic=False) -> (Tensor o, Tensor lse)",
    tags=TAGS)
LIBRARY.define(
    "attention_backward(Tensor d_o, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, "
    "Tensor? d_lse=None, Tensor? mask=None, float? scale=None, str? causal=None, "
    "str precision='ieee', bool deterministic=False) -> (Tensor dq, Tensor dk, Tensor dv)",
    tags=TAGS)

attention_forward = torch.ops.flashlab.attention_forward.default
attention_backward = torch.ops.flashlab.attention_backward.default


# ---------------------------------------------------------------------------------------------
# Kernels
# ---------------------------------------------------------------------------------------------

def run_forward(q, k, v, mask=None, scale=None, causal=None, precision="ieee",
                deterministic=False, heads_first=False):
    """o [B, Sq, Hq, Dv] and lse [B, Hq, Sq], below autograd and the dispatcher.

    heads_first: q, k, v and o are [batch, heads, seqlen, head_dim], in the layout of torch's own
    scaled_dot_product_attention; cheaper than four transposes.
    """
    _checks.no_tangents(q, k, v, mask)
    try:
        return _core.torch_forward(q, k, v, mask, scale, causal, precision, deterministic,
                                   heads_first)
    except (RuntimeError, ValueError):
        # What has no address fails in the exchange; say better why, and look only then.
        _checks.tensors(q=q, k=k, v=v, mask=q if mask is None else mask)
        _checks.devices(q.device, k=k, v=v, mask=mask)
        raise


def run_backward(d_o, q, k, v, o, lse, d_lse=None, mask=None, scale=None, causal=None,
                 precision="ieee", deterministic=False, heads_first=False):
    """dq, dk, dv, below autograd and the dispatcher; heads_first as in run_forward."""
    _checks.no_tangents(d_o, q, k, v, o, lse, d_lse, mask)
    return _core.torch_backward(d_o, q, k, v, o, lse, d_lse, mask, scale, causal, precision,
                                deterministic, heads_first)


def run_backward_into(dq, dk, dv, d_o, q, k, v, o, lse, d_lse, scale, causal, precision,
                      deterministic):
    """As run_backward, with the tensors that the gradients are written into."""
    _checks.no_tangents(d_o, q, k, v, o, lse, d_lse)
    _core.backward(d_o, q, k, v, o, lse, d_lse=d_lse, causal=causal, scale=scale,
                   precision=precision, deterministic=deterministic, dq=dq, dk=dk, dv=dv)


for _device in ("CPU", "CUDA"):
    LIBRARY.impl("attention_forward", run_forward, _device)
    LIBRARY.impl("attention_backward", run_backward, _device)


# ---------------------------------------------------------------------------------------------
# Shapes without memory
# ---------------------------------------------------------------------------------------------

def lse_dtype(dtype: torch.dtype) -> torch.dtype:
    """The log-sum-exp is fp32, and fp64 for fp64 tensors."""
    return torch.float64 if dtype == torch.float64 else torch.float32


@torch.library.register_fake("flashlab::attention_forward", lib=LIBRARY)
def _fake_forward(q, k, v, mask=None, scale=None, causal=None, precision="ieee",
                  deterministic=False):
    _checks.forward(q, k, v, mask, causal, precision)
    batch, seqlen_q, heads, _ = q.shape
    return (q.new_empty((batch, seqlen_q, heads, v.shape[3])),
            q.new_empty((batch, heads, seqlen_q), dtype=lse_dtype(q.dtype)))


@torch.library.register_fake("flashlab::attention_backward", lib=LIBRARY)
def _fake_backward(d_o, q, k, v, o, lse, d_lse=None, mask=None, scale=None, causal=None,
                   precision="ieee", deterministic=False):
    _checks.forward(q, k, v, mask, causal, precision)
    return tuple(tensor.new_empty(tensor.shape) for tensor in (q, k, v))


# ---------------------------------------------------------------------------------------------
# Autograd
# ---------------------------------------------------------------------------------------------

def _save(ctx, inputs, output) -> None:
    q, k, v, mask, *options = inputs
    if mask is not None and ctx.needs_input_grad[3]:
        raise NotImplementedError(_checks.MASK_GRADIENT)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, mask, *output)
    ctx.options = tuple(options)


def _gradients(ctx, d_o, d_lse):
    if d_o is None and d_lse is None:
        return (None,) * 8
    q, k, v, mask, o, lse = ctx.saved_tensors
    if d_o is None:
        d_o = torch.zeros_like(o)
    scale, causal, precision, deterministic = ctx.options
    grads = attention_backward(d_o, q, k, v, o, lse, d_lse, mask, scale, causal, precision,
                               deterministic)
    return (*grads, None, None, None, None, None)


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


def autocast_mask(mask, q):
    """An additive mask is read in fp32 or in q's dtype: only others are cast."""
    return mask if mask is None or mask.dtype == torch.float32 else autocast(mask, q.dtype)


def autocast_precision(precision, q):
    """tf32 is for float32 tensors, which a region of 16 bits leaves none of."""
    return precision if q.dtype == torch.float32 else "ieee"


def _register_autocast(device: str, key: str) -> None:
    below = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

    def kernel(_, q, k, v, mask=None, scale=None, causal=None, precision="ieee",
               deterministic=False):
        dtype = torch.get_autocast_dtype(device)
        with torch._C._ExcludeDispatchKeyGuard(below):
            q, k, v = (autocast(tensor, dtype) for tensor in (q, k, v))
            return attention_forward(q, k, v, autocast_mask(mask, q), scale, causal,
                                     autocast_precision(precision, q), deterministic)

    LIBRARY.impl("attention_forward", kernel, key, with_keyset=True)


_register_autocast("cpu", "AutocastCPU")
_register_autocast("cuda", "AutocastCUDA")
