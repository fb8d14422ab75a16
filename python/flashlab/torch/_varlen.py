"""Drop-ins for flash-attn's functions on ragged batches: the rows of all sequences in one tensor.

Sequence b has the rows from cu_seqlens[b] up to cu_seqlens[b + 1]; causal and windows are aligned
bottom-right in each. As flash-attn's, but: int64 offsets are taken, too; max_seqlen is a hint that
changes no result; lse is [heads, rows] and has a gradient; rows of no sequence get zeros.
"""

from __future__ import annotations

from torch import Tensor

from . import _checks
from ._autograd import attend
from ._flash_attn import _attend, _call_of, _results
from ._packed import attend_packed


def flash_attn_varlen_func(
        q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
        max_seqlen_q: int | None = None, max_seqlen_k: int | None = None, dropout_p: float = 0.0,
        softmax_scale: float | None = None, causal: bool = False,
        window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
        alibi_slopes: Tensor | None = None, deterministic: bool = False,
        return_attn_probs: bool = False, block_table: Tensor | None = None
        ) -> Tensor | tuple[Tensor, Tensor, Tensor]:
    """flash_attn.flash_attn_varlen_func by FlashLab.

    q [rows_q, Hq, D], k and v [rows_k, Hk, D], cu_seqlens_q and cu_seqlens_k [B + 1] -> out
    [rows_q, Hq, D], or (out, softmax_lse [Hq, rows_q], empty tensor) with return_attn_probs. The
    rest as flash_attn_func, in each sequence by itself.
    """
    if block_table is not None:
        raise NotImplementedError("block_table: pages of keys and values are not supported yet; "
                                  "pass k and v of all rows")
    call = _call_of(softmax_scale, causal, dropout_p, window_size, softcap, alibi_slopes,
                    deterministic)
    call = _cut(call, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    outputs = _attend(attend, q, k, v, call, return_attn_probs)
    return _results(outputs, return_attn_probs)


def flash_attn_varlen_qkvpacked_func(
        qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int | None = None, dropout_p: float = 0.0,
        softmax_scale: float | None = None, causal: bool = False,
        window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
        alibi_slopes: Tensor | None = None, deterministic: bool = False,
        return_attn_probs: bool = False) -> Tensor | tuple[Tensor, Tensor, Tensor]:
    """flash_attn.flash_attn_varlen_qkvpacked_func by FlashLab.

    qkv [rows, 3, H, D], cu_seqlens [B + 1] -> as flash_attn_varlen_func. The gradient is written
    into one tensor like qkv.
    """
    _checks.packed("qkv", qkv, 3, "rows")
    call = _call_of(softmax_scale, causal, dropout_p, window_size, softcap, alibi_slopes,
                    deterministic)
    call = _cut(call, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
    outputs = _attend(attend_packed, None, qkv, call, return_attn_probs)
    return _results(outputs, return_attn_probs)


def flash_attn_varlen_kvpacked_func(
        q: Tensor, kv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
        max_seqlen_q: int | None = None, max_seqlen_k: int | None = None, dropout_p: float = 0.0,
        softmax_scale: float | None = None, causal: bool = False,
        window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
        alibi_slopes: Tensor | None = None, deterministic: bool = False,
        return_attn_probs: bool = False) -> Tensor | tuple[Tensor, Tensor, Tensor]:
    """flash_attn.flash_attn_varlen_kvpacked_func by FlashLab.

    q [rows_q, Hq, D], kv [rows_k, 2, Hk, D] -> as flash_attn_varlen_func. The gradient of kv is
    written into one tensor like kv.
    """
    _checks.packed("kv", kv, 2, "rows")
    call = _call_of(softmax_scale, causal, dropout_p, window_size, softcap, alibi_slopes,
                    deterministic)
    call = _cut(call, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    outputs = _attend(attend_packed, q, kv, call, return_attn_probs)
    return _results(outputs, return_attn_probs)


def _cut(call, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k):
    _checks.tensors(cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    return call._replace(cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
                         max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k)
