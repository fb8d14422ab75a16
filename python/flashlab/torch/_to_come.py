"""flash-attn's functions that FlashLab does not compute yet, under flash-attn's signatures.

They exist so that a program which swaps the import learns what is missing and what to use instead,
rather than failing on a name.
"""

from __future__ import annotations

from typing import Any, NoReturn

def _refuse(message: str) -> NoReturn:
    raise NotImplementedError(message)


def flash_attn_with_kvcache(
        q: Any, k_cache: Any, v_cache: Any, k: Any = None, v: Any = None, rotary_cos: Any = None,
        rotary_sin: Any = None, cache_seqlens: Any = None, cache_batch_idx: Any = None,
        cache_leftpad: Any = None, block_table: Any = None, softmax_scale: float | None = None,
        causal: bool = False, window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
        rotary_interleaved: bool = True, alibi_slopes: Any = None, num_splits: int = 0,
        return_softmax_lse: bool = False) -> NoReturn:
    """Raises NotImplementedError: a cache of keys and values is not supported yet."""
    _refuse('flash_attn_with_kvcache: a cache of keys and values is not supported yet; append the '
            'new keys yourself and call flashlab.torch.attention with causal="bottom-right"; few '
            'queries over many keys run split')


def flash_attn_combine(out_partial: Any, lse_partial: Any, out: Any = None,
                       out_dtype: Any = None) -> NoReturn:
    """Raises NotImplementedError: flash-attn's layout of partial results is not supported yet."""
    _refuse("flash_attn_combine: flash-attn's layout of partial results is not supported yet; pass "
            "the pairs (o, lse) to flashlab.merge")
