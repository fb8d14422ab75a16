"""Attention over a cache of keys and values, and appending to one: arrays of any framework."""

from __future__ import annotations

from typing import Any, Optional, Tuple, TypeVar, Union

from flashlab import _core

Array = TypeVar("Array")


def attention_with_cache(q: Array, k_cache: Array, v_cache: Array, *,
                         cache_seqlens: Optional[Any] = None, block_table: Optional[Any] = None,
                         cache_batch_idx: Optional[Any] = None,
                         cache_leftpad: Optional[Any] = None, cu_seqlens_q: Optional[Any] = None,
                         seqused_q: Optional[Any] = None, causal: Union[str, None] = None,
                         scale: Optional[float] = None, mask: Optional[Any] = None,
                         return_lse: bool = False, precision: str = "ieee",
                         deterministic: bool = False, out: Optional[Any] = None,
                         window: Optional[Tuple[Any, ...]] = None,
                         softcap: Optional[float] = None, alibi_slopes: Optional[Any] = None,
                         sinks: Optional[Any] = None) -> Union[Array, Tuple[Array, Array]]:
    """Attention of a few queries, or of a chunk of prefill, over keys that lie in a cache.

    Shapes      q [B, Sq, Hq, D], or [rows, Hq, D] with cu_seqlens_q [B + 1]; o like q. The cache of
                sequence b is entry b of k_cache [B, capacity, Hk, D] and v_cache [..., Dv], or
                  cache_batch_idx [B]: that entry of [entries, capacity, Hk, D];
                  block_table [B, pages of a sequence] int32: row r is row r % page_size of page
                  block_table[b, r // page_size] of [pages, page_size, Hk, D]; any page size and
                  strides; pages may be shared. Entries that no key lies in are not read
    cache_seqlens  [B] int32 or int64: rows of each sequence's cache that count; needed with
                block_table, else default is all of them
    cache_leftpad  [B] int32 or int64: rows before a sequence's first key, which do not count
    causal      None, "top-left" or "bottom-right" (the last query sees all keys of its sequence)
    Results     have no gradient. On a CPU a length, an entry or a page that is not there is an
                error; on a GPU that sequence gets NaN
    Others, errors: as flashlab.attention
    """
    o, lse = _core.forward(q, k_cache, v_cache, causal=causal, scale=scale, mask=mask,
                           precision=precision, deterministic=deterministic, return_lse=return_lse,
                           out=out, window=window, softcap=softcap, alibi_slopes=alibi_slopes,
                           cu_seqlens_q=cu_seqlens_q, seqused_q=seqused_q,
                           seqused_k=cache_seqlens, sinks=sinks, block_table=block_table,
                           cache_batch_idx=cache_batch_idx, leftpad_k=cache_leftpad)
    return (o, lse) if return_lse else o


def append_to_cache(k_cache: Array, v_cache: Array, k: Array, v: Array, cache_seqlens: Any, *,
                    block_table: Optional[Any] = None, cache_batch_idx: Optional[Any] = None,
                    cu_seqlens_new: Optional[Any] = None, rotary_cos: Optional[Array] = None,
                    rotary_sin: Optional[Array] = None, rotary_interleaved: bool = False,
                    rotary_positions: Optional[Any] = None, q: Optional[Array] = None,
                    cu_seqlens_q: Optional[Any] = None,
                    q_positions: str = "consecutive") -> Optional[Array]:
    """Writes rows behind those of each sequence's cache: row i of k and v becomes row
    cache_seqlens[b] + i of it. The caller adds the number of new rows to cache_seqlens.

    Shapes      the cache as in attention_with_cache, and it is written; k and v [B, new, Hk, D], or
                [rows, Hk, D] with cu_seqlens_new [B + 1]
    rotary_cos, rotary_sin  [positions, width / 2], k's dtype or float32: the first `width` elements
                of k turn by row p, p = cache_seqlens[b] + i, or rotary_positions[b] + i: elements d
                and d + width / 2 together, or with rotary_interleaved 2 d and 2 d + 1. Tables are
                as long as the cache
    q           turns likewise, and the result is returned, else None: query i by the position of
                new row i, or with q_positions="first" all by that of new row 0
    Aliasing    sequences that share an entry or a page must not write the same rows
    Errors      ValueError with sequence and value: no room, a page or an entry that is not there;
                nothing was written. On a GPU such a sequence is written nothing of; the lengths
                that the caller adds up then lie beyond its cache, and attention gives NaN
    """
    if q_positions not in ("consecutive", "first"):
        raise ValueError(f'q_positions: got {q_positions!r}, expected "consecutive" or "first"')
    return _core.append(k_cache, v_cache, k, v, cache_seqlens, block_table=block_table,
                        cache_batch_idx=cache_batch_idx, cu_seqlens_new=cu_seqlens_new,
                        rotary_cos=rotary_cos, rotary_sin=rotary_sin,
                        rotary_positions=rotary_positions, q=q, cu_seqlens_q=cu_seqlens_q,
                        interleaved=rotary_interleaved, consecutive=q_positions == "consecutive")
