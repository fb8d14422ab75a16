"""FlashAttention-3's functions (its module flash_attn_interface) by FlashLab.

Its argument order, defaults and meaning; causal, windows and chunks are aligned bottom-right, and a
negative side of window_size is no bound. num_splits, pack_gqa and sm_margin choose among its
kernels and change no result: ours are chosen by the planner. Beyond it: every dtype, head_dim and
device of flashlab.torch, gradients with attention_chunk and through softmax_lse.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from . import _checks
from ._autograd import attend
from ._flash_attn import _attend, _call_of, _refuse
from ._kvcache import SCALES as _SCALES
from ._kvcache import flash_attn_3_with_kvcache as flash_attn_with_kvcache
from ._kvcache import flash_attn_combine, get_scheduler_metadata
from ._packed import attend_packed
from ._varlen import _cut

__all__ = ["flash_attn_combine", "flash_attn_func", "flash_attn_qkvpacked_func",
           "flash_attn_varlen_func", "flash_attn_with_kvcache", "get_scheduler_metadata"]


def flash_attn_func(
        q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None = None, causal: bool = False,
        qv: Tensor | None = None, q_descale: Tensor | None = None, k_descale: Tensor | None = None,
        v_descale: Tensor | None = None, window_size: tuple[int, int] = (-1, -1),
        attention_chunk: int = 0, softcap: float = 0.0, num_splits: int = 1,
        pack_gqa: bool | None = None, deterministic: bool = False, sm_margin: int = 0,
        return_attn_probs: bool = False) -> Tensor | tuple[Tensor, Tensor]:
    """flash_attn_interface.flash_attn_func by FlashLab.

    q [B, Sq, Hq, D], k [B, Sk, Hk, D], v [B, Sk, Hk, Dv] -> out [B, Sq, Hq, Dv], or (out,
    softmax_lse [B, Hq, Sq]) with return_attn_probs. attention_chunk c > 0: and only keys of the
    chunk [n c, n c + c) that key i + Sk - Sq lies in. The rest as flashlab.torch.flash_attn_func.
    """
    _refuse_others(qv, q_descale, k_descale, v_descale)
    call = _call_of(softmax_scale, causal, 0.0, window_size, softcap, None, deterministic,
                    attention_chunk)
    return _attend(attend, q, k, v, call, return_attn_probs)


def flash_attn_qkvpacked_func(
        qkv: Tensor, softmax_scale: float | None = None, causal: bool = False,
        q_descale: Tensor | None = None, k_descale: Tensor | None = None,
        v_descale: Tensor | None = None, window_size: tuple[int, int] = (-1, -1),
        attention_chunk: int = 0, softcap: float = 0.0, deterministic: bool = False,
        num_heads_q: int | None = None, sm_margin: int = 0, return_attn_probs: bool = False
        ) -> Tensor | tuple[Tensor, Tensor]:
    """flash_attn_interface.flash_attn_qkvpacked_func by FlashLab.

    qkv [B, S, 3, H, D], or with num_heads_q [B, S, Hq + 2 Hk, D] -> as flash_attn_func.
    """
    _refuse_others(None, q_descale, k_descale, v_descale)
    call = _call_of(softmax_scale, causal, 0.0, window_size, softcap, None, deterministic,
                    attention_chunk)
    if num_heads_q is None:
        _checks.packed("qkv", qkv, 3)
        return _attend(attend_packed, None, qkv, call, return_attn_probs)
    _checks.tensors(qkv=qkv)
    rest = qkv.shape[2] - num_heads_q if qkv.dim() == 4 else -1
    if rest <= 0 or rest % 2 != 0 or num_heads_q <= 0:
        raise ValueError(f"qkv: got shape {tuple(qkv.shape)} with num_heads_q {num_heads_q}, "
                         "expected [batch, seqlen, num_heads_q + 2 heads_k, head_dim]")
    return _attend(attend, *qkv.split([num_heads_q, rest // 2, rest // 2], 2), call,
                   return_attn_probs)


def flash_attn_varlen_func(
        q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
        max_seqlen_q: int | None = None, max_seqlen_k: int | None = None,
        seqused_q: Tensor | None = None, seqused_k: Tensor | None = None,
        softmax_scale: float | None = None, causal: bool = False, qv: Tensor | None = None,
        q_descale: Tensor | None = None, k_descale: Tensor | None = None,
        v_descale: Tensor | None = None, window_size: tuple[int, int] = (-1, -1),
        attention_chunk: int = 0, softcap: float = 0.0, num_splits: int = 1,
        pack_gqa: bool | None = None, deterministic: bool = False, sm_margin: int = 0,
        return_attn_probs: bool = False) -> Tensor | tuple[Tensor, Tensor]:
    """flash_attn_interface.flash_attn_varlen_func by FlashLab.

    q [rows_q, Hq, D], k [rows_k, Hk, D], v [rows_k, Hk, Dv] -> out [rows_q, Hq, Dv], or (out,
    softmax_lse [Hq, rows_q]). seqused_q, seqused_k [B]: how many rows of each sequence count; the
    others get zeros. max_seqlen_q and max_seqlen_k are hints, which change no result.
    """
    _refuse_others(qv, q_descale, k_descale, v_descale)
    call = _call_of(softmax_scale, causal, 0.0, window_size, softcap, None, deterministic,
                    attention_chunk)
    call = _cut(call, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    call = call._replace(seqused_q=seqused_q, seqused_k=seqused_k)
    return _attend(attend, q, k, v, call, return_attn_probs)


def _refuse_others(qv: Any, q_descale: Any, k_descale: Any, v_descale: Any) -> None:
    _refuse(qv=(qv, "a second product of queries and values is not supported yet; concatenate qv "
                    "to q and v to k"),
            q_descale=(q_descale, _SCALES), k_descale=(k_descale, _SCALES),
            v_descale=(v_descale, _SCALES))
