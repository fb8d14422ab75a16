"""Drop-ins for flash-attn's functions: its layout, argument order, defaults and meaning.

[batch, seqlen, heads, head_dim], causal aligned bottom-right. Beyond flash-attn: float32 and
float64, CPU tensors, any head_dim, and softmax_lse has a gradient. Different: a row that sees no
key has softmax_lse = -inf (flash-attn 2: +inf). What is not supported yet raises
NotImplementedError.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import _checks
from ._autograd import attend
from ._packed import attend_packed

_SDPA = "use torch.nn.functional.scaled_dot_product_attention"


def _alignment(dropout_p, causal, window_size, softcap, alibi_slopes) -> str | None:
    """The alignment that causal and window_size ask for; raises for what is to come."""
    if dropout_p:
        if not 0.0 <= dropout_p <= 1.0:
            raise ValueError(f"dropout_p: got {dropout_p}, expected a probability from 0 to 1")
        raise _checks.unsupported("dropout_p", dropout_p, f"pass 0.0, or {_SDPA}")
    if softcap and softcap > 0.0:
        raise _checks.unsupported("softcap", softcap, "pass 0.0, or use torch's flex_attention")
    if alibi_slopes is not None:
        raise _checks.unsupported(
            "alibi_slopes", "a tensor of slopes",
            "pass None, or flashlab.torch.attention with the biases as an additive mask")
    if tuple(window_size) == (-1, -1):
        return "bottom-right" if causal else None
    if tuple(window_size) == (-1, 0):  # what flash-attn itself makes of causal
        return "bottom-right"
    raise _checks.unsupported("window_size", tuple(window_size),
                              "pass (-1, -1), or flashlab.torch.attention with a boolean mask")


def _results(outputs, return_attn_probs):
    """flash-attn's third result is the dropout pattern, which is empty without dropout."""
    if not return_attn_probs:
        return outputs
    o, lse = outputs
    return o, lse, torch.empty(0, dtype=o.dtype, device=o.device)


def flash_attn_func(
        q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0,
        softmax_scale: float | None = None, causal: bool = False,
        window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
        alibi_slopes: Tensor | None = None, deterministic: bool = False,
        return_attn_probs: bool = False) -> Tensor | tuple[Tensor, Tensor, Tensor]:
    """flash_attn.flash_attn_func by FlashLab.

    q [B, Sq, Hq, D], k and v [B, Sk, Hk, D] -> out [B, Sq, Hq, D], or (out, softmax_lse
    [B, Hq, Sq], empty tensor) with return_attn_probs. causal: query i sees keys up to
    i + Sk - Sq. Raises NotImplementedError for dropout_p > 0, softcap > 0, alibi_slopes and a
    window_size other than (-1, -1) and (-1, 0); other errors as flashlab.torch.attention.
    """
    alignment = _alignment(dropout_p, causal, window_size, softcap, alibi_slopes)
    outputs = attend(q, k, v, None, softmax_scale, alignment, "ieee", deterministic,
                     return_attn_probs)
    return _results(outputs, return_attn_probs)


def flash_attn_qkvpacked_func(
        qkv: Tensor, dropout_p: float = 0.0,
        softmax_scale: float | None = None, causal: bool = False,
        window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
        alibi_slopes: Tensor | None = None, deterministic: bool = False,
        return_attn_probs: bool = False) -> Tensor | tuple[Tensor, Tensor, Tensor]:
    """flash_attn.flash_attn_qkvpacked_func by FlashLab.

    qkv [B, S, 3, H, D] -> as flash_attn_func. The gradient is written into one tensor like qkv.
    """
    _checks.packed("qkv", qkv, 3)
    alignment = _alignment(dropout_p, causal, window_size, softcap, alibi_slopes)
    outputs = attend_packed(None, qkv, softmax_scale, alignment, deterministic, return_attn_probs)
    return _results(outputs, return_attn_probs)


def flash_attn_kvpacked_func(
        q: Tensor, kv: Tensor, dropout_p: float = 0.0,
        softmax_scale: float | None = None, causal: bool = False,
        window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
        alibi_slopes: Tensor | None = None, deterministic: bool = False,
        return_attn_probs: bool = False) -> Tensor | tuple[Tensor, Tensor, Tensor]:
    """flash_attn.flash_attn_kvpacked_func by FlashLab.

    q [B, Sq, Hq, D], kv [B, Sk, 2, Hk, D] -> as flash_attn_func. The gradient of kv is written
    into one tensor like kv.
    """
    _checks.packed("kv", kv, 2)
    alignment = _alignment(dropout_p, causal, window_size, softcap, alibi_slopes)
    outputs = attend_packed(q, kv, softmax_scale, alignment, deterministic, return_attn_probs)
    return _results(outputs, return_attn_probs)
