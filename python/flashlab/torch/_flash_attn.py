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
from ._features import Features, probability
from ._packed import attend_packed


def _features_of(dropout_p, window_size, softcap, alibi_slopes) -> Features:
    """flash-attn's arguments: a negative side of the window, softcap 0 and p 0 are none."""
    left, right = (max(int(side), -1) for side in window_size)
    window = None if (left, right) == (-1, -1) else (left, right, "bottom-right")
    return Features(window, float(softcap) if softcap and softcap > 0.0 else None, alibi_slopes,
                    probability("dropout_p", dropout_p))


def _results(outputs, return_attn_probs):
    """flash-attn's third result, the dropout pattern that its tests read, stays empty."""
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
    i + Sk - Sq. window_size (left, right): and keys from i + Sk - Sq - left to i + Sk - Sq + right.
    softcap: scores become softcap tanh(score / softcap). alibi_slopes [Hq] or [B, Hq] float32 add
    -slope |i + Sk - Sq - j|. dropout_p: which pairs are dropped comes from torch's generator,
    which moves on as with flash-attn; the pairs themselves differ from flash-attn's. Errors as
    flashlab.torch.attention.
    """
    alignment = "bottom-right" if causal else None
    features = _features_of(dropout_p, window_size, softcap, alibi_slopes)
    outputs = attend(q, k, v, None, softmax_scale, alignment, "ieee", deterministic,
                     return_attn_probs, features=features)
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
    alignment = "bottom-right" if causal else None
    features = _features_of(dropout_p, window_size, softcap, alibi_slopes)
    outputs = attend_packed(None, qkv, softmax_scale, alignment, deterministic, return_attn_probs,
                            features)
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
    alignment = "bottom-right" if causal else None
    features = _features_of(dropout_p, window_size, softcap, alibi_slopes)
    outputs = attend_packed(q, kv, softmax_scale, alignment, deterministic, return_attn_probs,
                            features)
    return _results(outputs, return_attn_probs)
