"""Drop-ins for flash-attn's functions: its layout, argument order, defaults and meaning.

[batch, seqlen, heads, head_dim], causal aligned bottom-right. Beyond flash-attn: float32 and
float64, CPU tensors, any head_dim, and softmax_lse has a gradient. Different: a row that sees no
key has softmax_lse = -inf (flash-attn 2: +inf). What is not supported yet raises
NotImplementedError.
"""

from __future__ import annotations

import operator

import torch
from torch import Tensor

from . import _checks
from ._autograd import attend
from ._call import Call
from ._packed import attend_packed


_NAMES = {"scale": "softmax_scale", "window": "window_size", "sinks": "learnable_sink",
          "schedule": "scheduler_metadata"}


def _refuse(**given) -> None:
    """NotImplementedError for the first argument that is there: name=(value, why and what else)."""
    for name, (value, why) in given.items():
        if value is not None:
            raise NotImplementedError(f"{name}: {why}")


def _call_of(softmax_scale, causal, dropout_p, window_size, softcap, alibi_slopes,
             deterministic, attention_chunk=0) -> Call:
    """flash-attn's arguments: a negative side of the window, softcap 0, p 0 and chunk 0 are none.
    """
    causal = _checks.flag("causal", causal)
    try:
        left, right = (_checks.NO_BOUND if operator.index(side) < 0 else operator.index(side)
                       for side in window_size)
    except (TypeError, ValueError) as error:
        raise type(error)(f"window_size: got {window_size!r}, expected (left, right), two "
                          "integers; (-1, -1) is no window") from None
    chunk = _checks.chunk(attention_chunk or None)
    window = None if left == right == _checks.NO_BOUND and chunk is None else (left, right)
    if softcap is not None:
        softcap = _checks.number("softcap", softcap, "a finite number; 0 is no cap")
        softcap = None if softcap <= 0.0 else _checks.softcap(softcap)
    return Call(None, softmax_scale, "bottom-right" if causal else None, "ieee", deterministic,
                window, window and "bottom-right", softcap, dropout_p, alibi_slopes,
                attention_chunk=chunk)


def _attend(function, *arguments):
    """The results, or an error in flash-attn's words."""
    try:
        return function(*arguments)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise _checks.renamed(error, _NAMES) from None


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
    call = _call_of(softmax_scale, causal, dropout_p, window_size, softcap, alibi_slopes,
                    deterministic)
    outputs = _attend(attend, q, k, v, call, return_attn_probs)
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
    call = _call_of(softmax_scale, causal, dropout_p, window_size, softcap, alibi_slopes,
                    deterministic)
    outputs = _attend(attend_packed, None, qkv, call, return_attn_probs)
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
    call = _call_of(softmax_scale, causal, dropout_p, window_size, softcap, alibi_slopes,
                    deterministic)
    outputs = _attend(attend_packed, q, kv, call, return_attn_probs)
    return _results(outputs, return_attn_probs)
