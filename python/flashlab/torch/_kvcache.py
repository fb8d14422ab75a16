"""Drop-ins for flash-attn's and FlashAttention-3's functions on caches of keys and values.

What only concerns speed there (num_splits, pack_gqa, sm_margin, maxima of lengths) is accepted and
changes no result; of scheduler_metadata only our own is. Results have no gradient, as theirs.
"""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

import flashlab

from . import _cache_operators, _checks
from ._call import Call
from ._flash_attn import _NAMES, _call_of, _refuse

SCALES = "keys and values in 8 bits are not supported yet"

_CACHE_NAMES = {**_NAMES, "seqused_k": "cache_seqlens", "leftpad_k": "cache_leftpad",
                "k": "k_cache", "v": "v_cache", "k_new": "k", "v_new": "v"}


def flash_attn_with_kvcache(
        q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Optional[Tensor] = None,
        v: Optional[Tensor] = None, rotary_cos: Optional[Tensor] = None,
        rotary_sin: Optional[Tensor] = None, cache_seqlens: int | Tensor | None = None,
        cache_batch_idx: Optional[Tensor] = None, cache_leftpad: Optional[Tensor] = None,
        block_table: Optional[Tensor] = None, softmax_scale: float | None = None,
        causal: bool = False, window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
        rotary_interleaved: bool = True, alibi_slopes: Optional[Tensor] = None,
        num_splits: int = 0, return_softmax_lse: bool = False
        ) -> Tensor | tuple[Tensor, Tensor]:
    """flash_attn.flash_attn_with_kvcache by FlashLab.

    q [B, Sq, Hq, D]; k_cache and v_cache [entries, capacity, Hk, D], or with block_table [B, pages
    of a sequence] int32 [pages, page_size, Hk, D], any page size -> out [B, Sq, Hq, D], or (out,
    softmax_lse [B, Hq, Sq]). k and v [B, new, Hk, D] are written behind the cache_seqlens (an
    integer or [B]) rows of each sequence, in place, before attention; cache_seqlens itself stays.
    rotary_cos and rotary_sin [positions, rotary_dim / 2] turn k by its row of the cache, and q from
    cache_seqlens on, with causal or a window each query by its own position, else all by the first.
    cache_leftpad [B]: rows before a sequence's first key; here it goes with block_table, too.
    """
    return _attend_cache(
        q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx,
        cache_leftpad, block_table, softmax_scale, causal, window_size, softcap,
        rotary_interleaved, return_softmax_lse, alibi_slopes=alibi_slopes)


def flash_attn_3_with_kvcache(
        q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Optional[Tensor] = None,
        v: Optional[Tensor] = None, qv: Optional[Tensor] = None,
        rotary_cos: Optional[Tensor] = None, rotary_sin: Optional[Tensor] = None,
        cache_seqlens: int | Tensor | None = None, cache_batch_idx: Optional[Tensor] = None,
        cache_leftpad: Optional[Tensor] = None, page_table: Optional[Tensor] = None,
        cu_seqlens_q: Optional[Tensor] = None, cu_seqlens_k_new: Optional[Tensor] = None,
        max_seqlen_q: int | None = None, rotary_seqlens: Optional[Tensor] = None,
        q_descale: Optional[Tensor] = None, k_descale: Optional[Tensor] = None,
        v_descale: Optional[Tensor] = None, softmax_scale: float | None = None,
        causal: bool = False, window_size: tuple[int, int] = (-1, -1), attention_chunk: int = 0,
        softcap: float = 0.0, rotary_interleaved: bool = True,
        scheduler_metadata: Optional[Tensor] = None, num_splits: int = 0,
        pack_gqa: bool | None = None, sm_margin: int = 0, return_softmax_lse: bool = False
        ) -> Tensor | tuple[Tensor, Tensor]:
    """FlashAttention-3's flash_attn_with_kvcache by FlashLab; flash_attn_interface has its name.

    As flash_attn_with_kvcache, and: page_table is block_table; with cu_seqlens_q [B + 1] q and out
    are [rows, Hq, D], softmax_lse [Hq, rows]; with cu_seqlens_k_new [B + 1] k and v are [rows, Hk,
    D]; rotary_seqlens [B] are the positions of the first new rows in place of cache_seqlens.
    """
    _refuse(qv=(qv, "a second product of queries is not supported yet; concatenate q with qv and k "
                    "with v along the head dim"),
            q_descale=(q_descale, SCALES), k_descale=(k_descale, SCALES),
            v_descale=(v_descale, SCALES))
    _checks.scheduler_metadata(scheduler_metadata)
    return _attend_cache(
        q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx,
        cache_leftpad, page_table, softmax_scale, causal, window_size, softcap,
        rotary_interleaved, return_softmax_lse, cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k_new=cu_seqlens_k_new, rotary_seqlens=rotary_seqlens,
        attention_chunk=attention_chunk, table_name="page_table")


def flash_attn_combine(out_partial: Tensor, lse_partial: Tensor, out: Optional[Tensor] = None,
                       out_dtype: Optional[torch.dtype] = None) -> tuple[Tensor, Tensor]:
    """FlashAttention-3's flash_attn_combine by FlashLab: merges attention over parts of the keys.

    out_partial [parts, B, S, H, D] float32 and lse_partial [parts, B, S, H] float32 (or [parts,
    rows, H, D] and [parts, rows, H]) -> out [B, S, H, D] of out_dtype (default float32), written
    into `out` where it is given, and lse [B, S, H]. A part with lse = -inf contributes nothing.
    """
    _checks.tensors(out_partial=out_partial, lse_partial=lse_partial)
    if out_partial.dim() not in (4, 5) or lse_partial.shape != out_partial.shape[:-1]:
        raise ValueError(f"lse_partial: got {tuple(lse_partial.shape)} beside out_partial "
                         f"{tuple(out_partial.shape)}, expected [parts, batch, seqlen, heads] and "
                         "[parts, batch, seqlen, heads, head_dim], or [parts, rows, heads] and "
                         "[parts, rows, heads, head_dim]")
    dtype = out_dtype or (out.dtype if out is not None else out_partial.dtype)
    names = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
    if dtype not in names:
        raise TypeError(f"out_dtype: got {dtype}, expected float32, float16 or bfloat16")
    rows = out_partial.dim() == 4
    parts = [(o.unsqueeze(0) if rows else o, (lse.unsqueeze(0) if rows else lse).transpose(1, 2))
             for o, lse in zip(out_partial, lse_partial)]
    merged, lse = flashlab.merge(parts, dtype=names[dtype], return_lse=True)
    lse = lse.transpose(1, 2)
    if rows:
        merged, lse = merged.squeeze(0), lse.squeeze(0)
    if out is not None:
        merged = out.copy_(merged)
    return merged, lse


def get_scheduler_metadata(
        batch_size: int, max_seqlen_q: int, max_seqlen_k: int, num_heads_q: int, num_heads_kv: int,
        headdim: int, cache_seqlens: Tensor, qkv_dtype: torch.dtype = torch.bfloat16,
        headdim_v: int | None = None, cu_seqlens_q: Optional[Tensor] = None,
        cu_seqlens_k_new: Optional[Tensor] = None, cache_leftpad: Optional[Tensor] = None,
        page_size: int | None = None, max_seqlen_k_new: int = 0, causal: bool = False,
        window_size: tuple[int, int] = (-1, -1), attention_chunk: int = 0,
        has_softcap: bool = False, num_splits: int = 0, pack_gqa: bool | None = None,
        sm_margin: int = 0) -> Tensor:
    """FlashAttention-3's get_scheduler_metadata: an int32 tensor to hand to the calls.

    FlashLab's kernels find their work from the lengths themselves, whenever they run, so there is
    nothing to work out ahead: the tensor is empty, one serves every call, and lengths may change.
    """
    _checks.tensors(cache_seqlens=cache_seqlens)
    return torch.empty(0, dtype=torch.int32, device=cache_seqlens.device)


def serve(q: Tensor, k: Tensor, v: Tensor, call: Call, block_table: Optional[Tensor],
          out: Optional[Tensor], with_lse: bool):
    """A call whose keys are in pages, or whose output the caller brings: without gradients."""
    if block_table is not None and call.seqused_k is None and call.cu_seqlens_k is not None:
        call = call._replace(seqused_k=call.cu_seqlens_k.diff(), cu_seqlens_k=None)
    if call.dropout_p:
        raise NotImplementedError("dropout_p: not with block_table or out=; pass 0")
    with torch.no_grad():
        o, lse = _cache_operators.forward(q, k, v, call, with_lse, block_table=block_table, out=out)
    return (o, lse) if with_lse else o


def _lengths_of(cache_seqlens: int | Tensor | None, batch: int, device) -> Optional[Tensor]:
    if cache_seqlens is None or isinstance(cache_seqlens, Tensor):
        return cache_seqlens
    return torch.full((batch,), cache_seqlens, dtype=torch.int32, device=device)


def _attend_cache(q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens,
                  cache_batch_idx, cache_leftpad, block_table, softmax_scale, causal, window_size,
                  softcap, interleaved, return_softmax_lse, *, alibi_slopes=None, cu_seqlens_q=None,
                  cu_seqlens_k_new=None, rotary_seqlens=None, attention_chunk=0,
                  table_name="block_table"):
    _checks.tensors(q=q, k_cache=k_cache, v_cache=v_cache)
    if (k is None) != (v is None):
        raise ValueError(f"{'k' if k is None else 'v'}: got None, expected new keys and new values "
                         "together; pass both, or neither")
    if k is None and rotary_cos is not None:
        raise ValueError("rotary_cos: got a table without new keys, expected k and v; turn q "
                         "yourself where nothing is appended")
    batch = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
    lengths = _lengths_of(cache_seqlens, batch, q.device)
    call = _call_of(softmax_scale, causal, 0.0, window_size, softcap, alibi_slopes, False,
                    attention_chunk)
    try:
        with torch.no_grad():
            if k is not None:
                if lengths is None:
                    raise ValueError("cache_seqlens: got None beside k, expected the rows that the "
                                     "cache has before the new ones; pass them, or 0")
                # Written by the append itself: no kernel stands between it and attention.
                after = torch.empty_like(lengths)
                turned = _append(k_cache, v_cache, k, v, lengths, after, q, rotary_cos, rotary_sin,
                                 rotary_seqlens, cache_batch_idx, block_table, cu_seqlens_q,
                                 cu_seqlens_k_new, interleaved,
                                 causal or call.window is not None)
                q = q if turned is None else turned
                lengths = after
            o, lse = _cache_operators.forward(
                q, k_cache, v_cache, call._replace(cu_seqlens_q=cu_seqlens_q, seqused_k=lengths),
                return_softmax_lse, block_table=block_table, cache_batch_idx=cache_batch_idx,
                leftpad_k=cache_leftpad)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise _checks.renamed(error, {**_CACHE_NAMES, "block_table": table_name}) from None
    return (o, lse) if return_softmax_lse else o


def _append(k_cache, v_cache, k, v, lengths, after, q, rotary_cos, rotary_sin, rotary_seqlens,
            cache_batch_idx, block_table, cu_seqlens_q, cu_seqlens_k_new, interleaved,
            consecutive):
    """q, turned, or None where nothing turns."""
    turns = rotary_cos is not None or rotary_sin is not None
    return _cache_operators.append(
        k_cache, v_cache, k, v, lengths, block_table=block_table,
        cache_batch_idx=cache_batch_idx, cu_seqlens_new=cu_seqlens_k_new, seqused_after=after,
        rotary_cos=rotary_cos, rotary_sin=rotary_sin,
        rotary_positions=rotary_seqlens if turns else None, q=q if turns else None,
        cu_seqlens_q=cu_seqlens_q if turns else None,
        interleaved=interleaved, consecutive=consecutive)
