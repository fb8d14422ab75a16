"""FlashAttention-4's functions (its module flash_attn.cute) by FlashLab.

Its argument order, defaults and meaning. A side of window_size is None or has a sign: -3 on the
left begins three keys behind the query's own, -3 on the right ends three keys before it; two sides
with nothing between them are no window, as in the original. num_splits, pack_gqa and what belongs
to its schedulers choose among its kernels and change no result: ours are chosen by the planner.
Beyond it: every dtype, head_dim and device of flashlab.torch. Always two results, (out, lse); lse
is None without return_lse.
"""

from __future__ import annotations

import operator
from typing import Any

from torch import Tensor

from . import _checks
from ._autograd import attend
from ._flash_attn import _attend, _call_of, _refuse
from ._kvcache import serve

__all__ = ["flash_attn_func", "flash_attn_varlen_func"]


def flash_attn_func(
        q: Tensor, k: Tensor, v: Tensor, qv: Tensor | None = None,
        gather_kv_indices: Tensor | None = None, softmax_scale: float | None = None,
        causal: bool = False, window_size: tuple[int | None, int | None] = (None, None),
        learnable_sink: Tensor | None = None, softcap: float = 0.0, num_splits: int = 1,
        pack_gqa: bool | None = None, deterministic: bool = False, score_mod: Any = None,
        score_mod_bwd: Any = None, mask_mod: Any = None, aux_tensors: Any = None,
        aux_scalars: Any = None, block_sparse_tensors: Any = None,
        block_sparse_tensors_bwd: Any = None, return_lse: bool = False
        ) -> tuple[Tensor, Tensor | None]:
    """flash_attn.cute.flash_attn_func by FlashLab.

    q [B, Sq, Hq, D], k [B, Sk, Hk, D], v [B, Sk, Hk, Dv] -> (out [B, Sq, Hq, Dv], lse [B, Hq, Sq]
    or None). learnable_sink [Hq]: one more score of every row, with gradient. causal and windows
    are aligned bottom-right.
    """
    _refuse_code(score_mod, score_mod_bwd, mask_mod, aux_tensors, aux_scalars,
                 block_sparse_tensors, block_sparse_tensors_bwd)
    _refuse_gathering(qv, gather_kv_indices)
    call = _call(softmax_scale, causal, window_size, learnable_sink, softcap, deterministic)
    return _results(_attend(attend, q, k, v, call, return_lse), return_lse)


def flash_attn_varlen_func(
        q: Tensor, k: Tensor, v: Tensor, qv: Tensor | None = None,
        cu_seqlens_q: Tensor | None = None, cu_seqlens_k: Tensor | None = None,
        max_seqlen_q: int | None = None, max_seqlen_k: int | None = None,
        min_seqlen_k: int | None = None, seqused_q: Tensor | None = None,
        seqused_k: Tensor | None = None, gather_kv_indices: Tensor | None = None,
        page_table: Tensor | None = None, softmax_scale: float | None = None,
        causal: bool = False, window_size: tuple[int | None, int | None] = (None, None),
        learnable_sink: Tensor | None = None, softcap: float = 0.0, num_splits: int = 1,
        pack_gqa: bool | None = None, deterministic: bool = False, score_mod: Any = None,
        score_mod_bwd: Any = None, mask_mod: Any = None, block_sparse_tensors: Any = None,
        aux_tensors: Any = None, aux_scalars: Any = None, return_lse: bool = False,
        scheduler_metadata: Any = None, seqlen_k_per_split: int | None = None,
        disable_scheduler_metadata: bool = False) -> tuple[Tensor, Tensor | None]:
    """flash_attn.cute.flash_attn_varlen_func by FlashLab.

    q [rows_q, Hq, D] with cu_seqlens_q, else [B, Sq, Hq, D]; k and v likewise by themselves;
    seqused_q and seqused_k [B] shorten sequences of either kind -> (out as q, lse [Hq, rows_q] or
    [B, Hq, Sq], or None). With page_table [B, pages of a sequence] int32 k and v are [pages,
    page_size, Hk, D], any page size, and there is no gradient. Rows that do not count get zeros.
    max_seqlen_* and min_seqlen_k are hints, which change no result.
    """
    _refuse_code(score_mod, score_mod_bwd, mask_mod, aux_tensors, aux_scalars,
                 block_sparse_tensors, None)
    _refuse_gathering(qv, gather_kv_indices)
    _checks.scheduler_metadata(scheduler_metadata)
    call = _call(softmax_scale, causal, window_size, learnable_sink, softcap, deterministic)
    has_q = cu_seqlens_q is not None or seqused_q is not None
    has_k = cu_seqlens_k is not None or seqused_k is not None
    call = call._replace(
        cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, seqused_q=seqused_q,
        seqused_k=seqused_k, max_seqlen_q=max_seqlen_q if has_q else None,
        max_seqlen_k=max_seqlen_k if has_k else None)
    if page_table is not None:
        return _results(_attend(serve, q, k, v, call, page_table, None, return_lse), return_lse)
    return _results(_attend(attend, q, k, v, call, return_lse), return_lse)


def _call(softmax_scale, causal, window_size, learnable_sink, softcap, deterministic):
    try:
        left, right = (None if side is None else operator.index(side) for side in window_size)
    except (TypeError, ValueError) as error:
        raise type(error)(f"window_size: got {window_size!r}, expected (left, right), two integers "
                          "or None") from None
    if _checks.flag("causal", causal):
        right = 0
    if left is not None and right is not None and left + right < 0:
        left = right = None
    call = _call_of(softmax_scale, left is None and right == 0, 0.0, (-1, -1), softcap, None,
                    deterministic)
    if (left, right) not in ((None, None), (None, 0)):
        sides = (_checks.NO_BOUND if side is None else side for side in (left, right))
        call = call._replace(window=tuple(sides), alignment="bottom-right")
    if learnable_sink is not None:
        _checks.tensors(learnable_sink=learnable_sink)
        call = call._replace(sinks=learnable_sink.float())
    return call


def _results(outputs, return_lse):
    return outputs if return_lse else (outputs, None)


def _refuse_code(score_mod, score_mod_bwd, mask_mod, aux_tensors, aux_scalars, sparse, sparse_bwd):
    code = "user code on scores is not supported yet"
    blocks = "block-sparse masks are not supported yet; pass a mask to flashlab.torch.attention"
    _refuse(score_mod=(score_mod, code), score_mod_bwd=(score_mod_bwd, code),
            mask_mod=(mask_mod, code), aux_tensors=(aux_tensors or None, code),
            aux_scalars=(aux_scalars or None, code), block_sparse_tensors=(sparse, blocks),
            block_sparse_tensors_bwd=(sparse_bwd, blocks))


def _refuse_gathering(qv, gather_kv_indices) -> None:
    _refuse(qv=(qv, "a second product of queries and values is not supported yet; concatenate qv "
                    "to q and v to k"),
            gather_kv_indices=(gather_kv_indices, "keys chosen for each query are not supported "
                                                  "yet; pass a mask to flashlab.torch.attention"))
