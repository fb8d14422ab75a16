"""Drop-ins for flash-attn's and torch's functions on ragged batches: all sequences' rows together.

Sequence b has the rows from cu_seqlens[b] up to cu_seqlens[b + 1]; causal and windows are aligned
bottom-right in each. As flash-attn's, but: int64 offsets are taken, too; max_seqlen is a hint that
changes no result; lse is [heads, rows] and has a gradient; rows of no sequence get zeros.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import _core
from . import _checks
from ._autograd import attend
from ._flash_attn import _attend, _call_of, _refuse, _results
from ._kvcache import SCALES, serve
from ._packed import attend_packed


def flash_attn_varlen_func(
        q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor | None = None,
        max_seqlen_q: int | None = None, max_seqlen_k: int | None = None, dropout_p: float = 0.0,
        softmax_scale: float | None = None, causal: bool = False,
        window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
        alibi_slopes: Tensor | None = None, deterministic: bool = False,
        return_attn_probs: bool = False, block_table: Tensor | None = None, *,
        return_softmax_lse: bool = False, out: Tensor | None = None,
        seqused_k: Tensor | None = None, s_aux: Tensor | None = None, num_splits: int = 0,
        scheduler_metadata: Tensor | None = None, q_descale: Tensor | None = None,
        k_descale: Tensor | None = None, v_descale: Tensor | None = None
        ) -> Tensor | tuple[Tensor, ...]:
    """flash_attn.flash_attn_varlen_func by FlashLab, and the call that servers make of it.

    q [rows_q, Hq, D], k and v [rows_k, Hk, D], cu_seqlens_q and cu_seqlens_k [B + 1] -> out
    [rows_q, Hq, D], or (out, softmax_lse [Hq, rows_q], empty tensor) with return_attn_probs. The
    rest as flash_attn_func, in each sequence by itself.

    With block_table [B, pages of a sequence] int32 k and v are [pages, page_size, Hk, D], of which
    sequence b has seqused_k[b] rows (or cu_seqlens_k[b + 1] - cu_seqlens_k[b]); there is no
    gradient then. `out` is written and returned, and has none either. s_aux [Hq]: attention sinks,
    one more score of every row. return_softmax_lse: (out, softmax_lse). num_splits only concerns
    speed; scheduler_metadata is what our get_scheduler_metadata or schedule gives, or None.
    """
    _refuse(q_descale=(q_descale, SCALES), k_descale=(k_descale, SCALES),
            v_descale=(v_descale, SCALES))
    order = _checks.scheduler_metadata(scheduler_metadata, ragged=True)
    call = _call_of(softmax_scale, causal, dropout_p, window_size or (-1, -1), softcap,
                    alibi_slopes, deterministic)
    call = call._replace(cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, seqused_k=seqused_k,
                         max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k,
                         sinks=None if s_aux is None else s_aux.float(), schedule=order)
    with_lse = return_attn_probs or return_softmax_lse
    if block_table is not None or out is not None:
        outputs = _attend(serve, q, k, v, call, block_table, out, with_lse)
    else:
        _checks.tensors(cu_seqlens_q=cu_seqlens_q)
        if seqused_k is None:
            _checks.tensors(cu_seqlens_k=cu_seqlens_k)
        outputs = _attend(attend, q, k, v, call, with_lse)
    return outputs if return_softmax_lse else _results(outputs, return_attn_probs)


def schedule(
        q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor | None = None,
        max_seqlen_q: int | None = None, max_seqlen_k: int | None = None, causal: bool = False,
        window_size: tuple[int, int] = (-1, -1), deterministic: bool = False, *,
        seqused_k: Tensor | None = None) -> Tensor:
    """The order of work of a ragged call, made once for all layers of a model.

    Hand it to flash_attn_varlen_func as scheduler_metadata, with tensors of these shapes and these
    lengths: each forward call then leaves out one small kernel that puts its tiles in order. It is
    for many short sequences (2,000 of 34: 539 us, by a schedule 454; H200). Results are the same
    bits. int32 [queries of a tile, n], a schedule that belongs to calls of these sizes alone:
    another call refuses it. Empty where nothing is put in order, as on a CPU, and then of no
    effect. Of lengths that have changed since, results are wrong. Calls by one schedule must not
    run side by side.
    """
    _checks.tensors(q=q, k=k, v=v, cu_seqlens_q=cu_seqlens_q)
    call = _call_of(None, causal, 0.0, window_size or (-1, -1), 0.0, None, deterministic)
    window = None if call.window is None else (*call.window, call.alignment)
    given = {"causal": call.causal, "window": window, "deterministic": call.deterministic,
             "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k, "seqused_k": seqused_k,
             "max_seqlen_q": max_seqlen_q, "max_seqlen_k": max_seqlen_k}
    with torch.no_grad():
        q, k, v = q.detach(), k.detach(), v.detach()
        shape = _attend(lambda: _core.schedule(q, k, v, **given))
        out = torch.empty(shape or (0,), dtype=torch.int32, device=q.device)
        if shape:
            _attend(lambda: _core.schedule(q, k, v, **given, out=out))
    return out


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


def varlen_attn(
        query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor | None,
        max_q: int | None = None, max_k: int | None = None, is_causal: bool = False, *,
        return_aux: Any = None, scale: float | None = None,
        window_size: tuple[int, int] = (-1, -1), enable_gqa: bool = False,
        seqused_k: Tensor | None = None, block_table: Tensor | None = None,
        num_splits: int | None = None) -> Tensor | tuple[Tensor, Tensor]:
    """torch.nn.attention.varlen.varlen_attn by FlashLab.

    query [rows_q, Hq, D], key and value [rows_k, Hk, D], or without cu_seq_k [B, Sk, Hk, D] ->
    [rows_q, Hq, D], and lse [Hq, rows_q] where return_aux.lse (torch's AuxRequest) is set.
    window_size (left, right) is aligned bottom-right, (-1, 0) is causal, and so is is_causal, which
    torch had before 2.12. enable_gqa: Hq may be a multiple of Hk. seqused_k [B]: how many keys of
    each sequence count; here with gradients, too. max_q and max_k are hints that change no result.
    With block_table [B, pages of a sequence] int32 key and value are [pages, page_size, Hk, D] and
    there is no gradient. num_splits=1 asks for a sequence's bits whatever its batch:
    deterministic=True here.
    """
    _checks.tensors(query=query, key=key, value=value, cu_seq_q=cu_seq_q)
    if not enable_gqa and query.shape[-2] != key.shape[-2]:
        raise ValueError(f"key: got {key.shape[-2]} heads, expected query's {query.shape[-2]}; for "
                         "grouped-query attention pass enable_gqa=True")
    left, right = window_size
    causal = is_causal or (left < 0 and right == 0)
    call = _call_of(scale, causal, 0.0, (left, -1) if causal else window_size, 0.0, None,
                    num_splits == 1)
    has_k = cu_seq_k is not None or seqused_k is not None
    call = call._replace(cu_seqlens_q=cu_seq_q, cu_seqlens_k=cu_seq_k, seqused_k=seqused_k,
                         max_seqlen_q=max_q, max_seqlen_k=max_k if has_k else None)
    return_lse = bool(getattr(return_aux, "lse", False))
    try:
        if block_table is not None:
            return serve(query, key, value, call, block_table, None, return_lse)
        return attend(query, key, value, call, return_lse)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise _checks.renamed(error, _NAMES_OF_TORCH) from None


_NAMES_OF_TORCH = {"q": "query", "k": "key", "v": "value", "window": "window_size",
                   "cu_seqlens_q": "cu_seq_q", "cu_seqlens_k": "cu_seq_k", "max_seqlen_q": "max_q",
                   "max_seqlen_k": "max_k"}


def _cut(call, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k):
    _checks.tensors(cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    return call._replace(cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
                         max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k)
