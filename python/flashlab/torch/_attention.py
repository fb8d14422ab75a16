"""flashlab.torch.attention: every option that FlashLab has."""

from __future__ import annotations

from typing import Any, Literal, overload

from torch import Tensor

from . import _checks
from ._autograd import attend
from ._call import Call


@overload
def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool | str | None = ...,
              scale: float | None = ..., mask: Tensor | None = ...,
              return_lse: Literal[False] = ..., precision: str = ...,
              deterministic: bool = ..., window: tuple[Any, ...] | None = ...,
              softcap: float | None = ..., alibi_slopes: Tensor | None = ...,
              dropout_p: float = ..., dropout_seed: tuple[int, int] | Tensor | None = ...,
              cu_seqlens_q: Tensor | None = ..., cu_seqlens_k: Tensor | None = ...,
              seqused_q: Tensor | None = ..., seqused_k: Tensor | None = ...,
              max_seqlen_q: int | None = ..., max_seqlen_k: int | None = ...,
              sinks: Tensor | None = ...,
              attention_chunk: int | None = ...) -> Tensor: ...
@overload
def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool | str | None = ...,
              scale: float | None = ..., mask: Tensor | None = ...,
              return_lse: Literal[True], precision: str = ...,
              deterministic: bool = ..., window: tuple[Any, ...] | None = ...,
              softcap: float | None = ..., alibi_slopes: Tensor | None = ...,
              dropout_p: float = ..., dropout_seed: tuple[int, int] | Tensor | None = ...,
              cu_seqlens_q: Tensor | None = ..., cu_seqlens_k: Tensor | None = ...,
              seqused_q: Tensor | None = ..., seqused_k: Tensor | None = ...,
              max_seqlen_q: int | None = ..., max_seqlen_k: int | None = ...,
              sinks: Tensor | None = ...,
              attention_chunk: int | None = ...) -> tuple[Tensor, Tensor]: ...
@overload
def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool | str | None = ...,
              scale: float | None = ..., mask: Tensor | None = ...,
              return_lse: bool = ..., precision: str = ...,
              deterministic: bool = ..., window: tuple[Any, ...] | None = ...,
              softcap: float | None = ..., alibi_slopes: Tensor | None = ...,
              dropout_p: float = ..., dropout_seed: tuple[int, int] | Tensor | None = ...,
              cu_seqlens_q: Tensor | None = ..., cu_seqlens_k: Tensor | None = ...,
              seqused_q: Tensor | None = ..., seqused_k: Tensor | None = ...,
              max_seqlen_q: int | None = ..., max_seqlen_k: int | None = ...,
              sinks: Tensor | None = ...,
              attention_chunk: int | None = ...) -> Tensor | tuple[Tensor, Tensor]: ...
def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool | str | None = False,
              scale: float | None = None, mask: Tensor | None = None, return_lse: bool = False,
              precision: str = "ieee", deterministic: bool = False,
              window: tuple[Any, ...] | None = None, softcap: float | None = None,
              alibi_slopes: Tensor | None = None, dropout_p: float = 0.0,
              dropout_seed: tuple[int, int] | Tensor | None = None,
              cu_seqlens_q: Tensor | None = None, cu_seqlens_k: Tensor | None = None,
              seqused_q: Tensor | None = None, seqused_k: Tensor | None = None,
              max_seqlen_q: int | None = None, max_seqlen_k: int | None = None,
              sinks: Tensor | None = None, attention_chunk: int | None = None
              ) -> Tensor | tuple[Tensor, Tensor]:
    """Exact softmax attention with gradients: o = softmax(scale q k^T + mask) v.

    Shapes      q [B, Sq, Hq, D], k [B, Sk, Hk, D], v [B, Sk, Hk, Dv] -> o [B, Sq, Hq, Dv] and, with
                return_lse, lse [B, Hq, Sq]; Hq is a multiple of Hk (grouped-query attention:
                query head h reads key head h // (Hq // Hk))
    Types       float16, bfloat16, float32, float64 on a CPU; the first three on a CUDA GPU; one
                dtype for all. lse is float32 (float64 for float64). Under autocast q, k and v are
                cast to its dtype, as torch's scaled_dot_product_attention is
    causal      False; True (only where Sq == Sk); "top-left" (query i sees keys up to i, torch's
                is_causal); "bottom-right" (the last query sees all keys, flash-attn's causal)
    scale       default 1 / sqrt(D)
    mask        bool (True is visible) or additive (float32 or q's dtype; at or below half of the
                dtype's lowest finite number, -inf included, it hides), broadcastable to
                [B, Hq, Sq, Sk]; combines with causal. It gets no gradient: requires_grad raises
    window      (left, right): query i sees keys i + d - left to i + d + right; None is no bound, a
                negative side leaves the diagonal out; d is 0 top-left, Sk - Sq bottom-right:
                causal's alignment, or the third element, "top-left" or "bottom-right", which is
                needed where Sq != Sk without causal
    attention_chunk  c: query i sees the keys of the chunk [n c, n c + c) that key i + d lies in,
                d as a window's; where Sq != Sk, causal or window says the alignment
    softcap     scores become softcap tanh(score / softcap)
    alibi_slopes  [Hq] or [B, Hq] float32: adds -slope |i + Sk - Sq - j|; gets no gradient
    dropout_p, dropout_seed  probability, below 1, of dropping a probability. The pattern is a
                function of (seed, offset), batch, head, query and key; None takes both from torch's
                generator of the device, which moves on; an int64 tensor of both on q's device is
                read when the call runs
    cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, max_seqlen_q, max_seqlen_k
                ragged batches, as flashlab.attention describes them: q [rows, Hq, D], k and v
                [rows, Hk, D], lse [Hq, rows]
    sinks       [Hq] float32: one more score of every row, to a key whose value is 0; with gradient
    precision   "ieee", or "tf32" for float32 tensors on a GPU with tensor cores for it
    deterministic  bitwise equal gradients at every call; also switched on by
                torch.use_deterministic_algorithms(True)
    Gradients   of q, k, v, also through lse. A second derivative raises NotImplementedError
    Rows that see no key give o = 0, lse = -inf and no gradient
    Errors      ValueError (shapes, values, devices), TypeError (dtypes, not a tensor),
                NotImplementedError (not supported yet), RuntimeError (device): each names the
                argument
    Source      FlashAttention-2 (Dao 2023)
    """
    call = Call(mask, scale, None, precision, deterministic,
                *_checks.window(window, attention_chunk is not None), softcap,
                dropout_p, alibi_slopes, dropout_seed, cu_seqlens_q, cu_seqlens_k, seqused_q,
                seqused_k, sinks, max_seqlen_q, max_seqlen_k,
                _checks.chunk(attention_chunk))
    if causal is not False and causal is not None:
        _checks.tensors(q=q, k=k)
        if causal is True and call.has_lengths():
            raise ValueError(_checks.RAGGED_CAUSAL)
        call = call._replace(causal=_checks.resolve_causal(causal, *_lengths(q, k)))
    return attend(q, k, v, call, return_lse)


def _lengths(q, k):
    """Sequence lengths where there are some; a wrong rank is reported with the other shapes."""
    return (q.shape[1], k.shape[1]) if q.dim() == 4 and k.dim() == 4 else (0, 0)
