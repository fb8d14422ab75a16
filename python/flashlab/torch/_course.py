"""Stanford CS336's interface: one head, [batch, seqlen, dim], and the names of its adapters."""

from __future__ import annotations

import torch
from torch import Tensor

from . import _autograd, _checks, _operators
from ._call import Call


class FlashAttention(torch.autograd.Function):
    """FlashAttention.apply(q, k, v, is_causal=False) -> o, for tensors without heads.

    Shapes      q [batch, seqlen_q, dim], k [batch, seqlen_k, dim], v [batch, seqlen_k, dim_v] ->
                o [batch, seqlen_q, dim_v]
    Types       as flashlab.torch.attention: float32, bfloat16, float16, and float64 on a CPU
    is_causal   query i sees keys up to i (top-left)
    Saved       q, k, v, o and one log-sum-exp [batch, seqlen_q]: the only tensor of that shape in
                o.grad_fn.saved_tensors
    Errors      as flashlab.torch.attention; a second derivative raises NotImplementedError
    """

    @staticmethod
    def forward(ctx, q, k, v, is_causal=False):
        _checks.tensors(q=q, k=k, v=v)
        causal = "top-left" if _checks.flag("is_causal", is_causal) else None
        for name, tensor in (("q", q), ("k", k), ("v", v)):
            if tensor.dim() != 3:
                raise ValueError(f"{name}: got {tensor.dim()} dimensions, expected 3: [batch, "
                                 "seqlen, dim]; with heads use flashlab.torch.attention")
        ctx.dtypes = (q.dtype, k.dtype, v.dtype)
        if torch.is_autocast_enabled(q.device.type):
            dtype = torch.get_autocast_dtype(q.device.type)
            q, k, v = (_operators.autocast(tensor, dtype) for tensor in (q, k, v))
        call = _autograd.determined(Call(causal=causal))
        eager = not torch.compiler.is_compiling() and _autograd.direct(q, k, v)
        given = _with_head(q, k, v)
        o, lse = (_operators.run_forward(*given, call) if eager else
                  _operators.attention_forward(*given, *call))
        o, lse = o.squeeze(2), lse.squeeze(1)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.call = call
        return o

    @staticmethod
    def backward(ctx, d_o):
        q, k, v, o, lse = ctx.saved_tensors
        d_o, q, k, v, o = _with_head(d_o, q, k, v, o)
        grads = _autograd.gradients(d_o, q, k, v, o, lse.unsqueeze(1), None, ctx.call)
        return (*(grad.squeeze(2).to(dtype) for grad, dtype in zip(grads, ctx.dtypes)), None)


def _with_head(*tensors):
    return tuple(tensor.unsqueeze(2) for tensor in tensors)


def get_flashattention_autograd_function_pytorch() -> type[torch.autograd.Function]:
    """The course's adapter for an implementation in PyTorch. FlashLab has one implementation for
    every device, and this is it: FlashAttention, on a CPU or a GPU."""
    return FlashAttention


def get_flashattention_autograd_function_triton() -> type[torch.autograd.Function]:
    """The course's adapter for an implementation in Triton. No Triton runs: it is FlashAttention,
    whose kernels for a GPU are FlashLab's own."""
    return FlashAttention


def flash_attention_pytorch(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    """FlashAttention under the name of a PyTorch implementation.

    [batch, seqlen, dim] through FlashAttention.apply, or [batch, heads, seqlen, dim] with the
    layout of torch's scaled_dot_product_attention; causal is top-left. CPU or GPU.
    """
    _checks.tensors(q=q, k=k, v=v)
    causal = _checks.flag("causal", causal)
    if q.dim() == 4:
        call = Call(causal="top-left" if causal else None)
        return _autograd.attend(q, k, v, call, return_lse=False, heads_first=True)
    return FlashAttention.apply(q, k, v, causal)


def flash_attention_triton(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    """As flash_attention_pytorch, under the name of a Triton implementation: for CUDA tensors."""
    _checks.tensors(q=q, k=k, v=v)
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not tensor.is_cuda:
            raise ValueError(f"{name}: is on {tensor.device}, expected a CUDA device; "
                             "flash_attention_pytorch takes CPU tensors")
    return flash_attention_pytorch(q, k, v, causal)
