"""The custom operators flashlab::cache_forward and cache_append: caches under torch.compile.

They have no gradient, as the functions on caches have none. What torch.compile, torch.export and
modes see are these; a plain eager call goes to the kernels past the dispatcher.
"""

from __future__ import annotations

import torch

from .. import _core
from . import _autograd, _checks
from ._call import SCHEMA, Call
from ._operators import LIBRARY, TAGS, lse_dtype

LIBRARY.define("cache_forward(Tensor q, Tensor k, Tensor v, Tensor? block_table, "
               f"Tensor? cache_batch_idx, Tensor? leftpad_k, bool return_lse, {SCHEMA}) -> "
               "(Tensor o, Tensor lse)", tags=TAGS)
LIBRARY.define("cache_append(Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor k, Tensor v, "
               "Tensor cache_seqlens, Tensor? block_table=None, Tensor? cache_batch_idx=None, "
               "Tensor? cu_seqlens_new=None, Tensor? rotary_cos=None, Tensor? rotary_sin=None, "
               "Tensor? rotary_positions=None, Tensor? q=None, Tensor? cu_seqlens_q=None, "
               "bool interleaved=False, bool consecutive=True, Tensor(c!)? seqused_after=None) -> "
               "Tensor", tags=TAGS)

_cache_forward = torch.ops.flashlab.cache_forward.default
_cache_append = torch.ops.flashlab.cache_append.default


def _nothing(q: torch.Tensor, dtype=None) -> torch.Tensor:
    """An operator has as many results at every call."""
    return q.new_empty((0,), dtype=dtype or q.dtype)


def _forward_kernel(q, k, v, block_table, cache_batch_idx, leftpad_k, return_lse, *given, out=None):
    call = Call(*given)
    window = None if call.window is None else (*call.window, call.alignment)
    o, lse = _core.forward(
        q, k, v, causal=call.causal, scale=call.scale, mask=call.mask, precision=call.precision,
        window=window, softcap=call.softcap, alibi_slopes=call.alibi_slopes,
        dropout_p=call.dropout_p, dropout_seed=call.dropout_seed, deterministic=call.deterministic,
        attention_chunk=call.attention_chunk, cu_seqlens_q=call.cu_seqlens_q,
        cu_seqlens_k=call.cu_seqlens_k, seqused_q=call.seqused_q, seqused_k=call.seqused_k,
        sinks=call.sinks, return_lse=return_lse, out=out, block_table=block_table,
        cache_batch_idx=cache_batch_idx, leftpad_k=leftpad_k, schedule=call.schedule)
    return o, lse if return_lse else _nothing(q, lse_dtype(q.dtype))


def _append_kernel(k_cache, v_cache, k, v, cache_seqlens, block_table=None, cache_batch_idx=None,
                   cu_seqlens_new=None, rotary_cos=None, rotary_sin=None, rotary_positions=None,
                   q=None, cu_seqlens_q=None, interleaved=False, consecutive=True,
                   seqused_after=None):
    turned = _core.append(
        k_cache, v_cache, k, v, cache_seqlens, block_table=block_table,
        cache_batch_idx=cache_batch_idx, cu_seqlens_new=cu_seqlens_new, rotary_cos=rotary_cos,
        rotary_sin=rotary_sin, rotary_positions=rotary_positions, q=q, cu_seqlens_q=cu_seqlens_q,
        interleaved=interleaved, consecutive=consecutive, seqused_after=seqused_after)
    return _nothing(k) if turned is None else turned


for _device in ("CPU", "CUDA"):
    LIBRARY.impl("cache_forward", _forward_kernel, _device)
    LIBRARY.impl("cache_append", _append_kernel, _device)


@torch.library.register_fake("flashlab::cache_forward", lib=LIBRARY)
def _fake_forward(q, k, v, block_table, cache_batch_idx, leftpad_k, return_lse, *given):
    _check_cache(q, k, v, block_table, cache_batch_idx, Call(*given))
    *tokens, heads, _ = q.shape
    lse = q.new_empty((*tokens[:-1], heads, tokens[-1]) if return_lse else (0,),
                      dtype=lse_dtype(q.dtype))
    return q.new_empty((*tokens, heads, v.shape[-1])), lse


@torch.library.register_fake("flashlab::cache_append", lib=LIBRARY)
def _fake_append(k_cache, v_cache, k, v, cache_seqlens, block_table=None, cache_batch_idx=None,
                 cu_seqlens_new=None, rotary_cos=None, rotary_sin=None, rotary_positions=None,
                 q=None, cu_seqlens_q=None, interleaved=False, consecutive=True,
                 seqused_after=None):
    torch._check_value(k.shape[-1] == k_cache.shape[-1],
                       lambda: f"k_new: got head_dim {k.shape[-1]}, expected k_cache's "
                               f"{k_cache.shape[-1]}")
    torch._check_value(k.shape[-2] == k_cache.shape[-2],
                       lambda: f"k_new: got {k.shape[-2]} heads, expected k_cache's "
                               f"{k_cache.shape[-2]}")
    return _nothing(k) if q is None else q.new_empty(q.shape)


def _check_cache(q, k, v, block_table, cache_batch_idx, call) -> None:
    """What the kernels would raise for these shapes; others speak when the call runs."""
    check = torch._check_value
    heads_q, heads_k = q.shape[-2], k.shape[-2]
    check(k.shape[-1] == q.shape[-1],
          lambda: f"k: got head_dim {k.shape[-1]}, expected q's {q.shape[-1]}")
    check(heads_q == 0 or (heads_k > 0 and heads_q % heads_k == 0),
          lambda: f"k: got {heads_k} heads, expected a number that divides q's {heads_q}")
    check(v.shape[-2] == heads_k, lambda: f"v: got {v.shape[-2]} heads, expected k's {heads_k}")
    if block_table is None:
        return
    check(cache_batch_idx is None,
          lambda: "cache_batch_idx: got given beside block_table, expected entries of a cache, or "
                  "pages; choose the rows of block_table instead")
    check(call.seqused_k is not None,
          lambda: "seqused_k: got nothing, expected the number of keys of each sequence; a table "
                  "of pages does not say where a sequence ends")


def _is_direct(q, k, v, call: Call) -> bool:
    """Whether nobody has to see an operator."""
    return not torch.compiler.is_compiling() and _autograd.direct(
        q, k, v, call.alibi_slopes, call.sinks, call.seqused_k) is not None


def forward(q, k, v, call: Call, return_lse: bool, *, block_table=None, cache_batch_idx=None,
            leftpad_k=None, out=None):
    """o and lse, or o and None, without gradients; o is `out` where that is given."""
    arguments = (q, k, v, block_table, cache_batch_idx, leftpad_k, return_lse, *call)
    if _is_direct(q, k, v, call):
        o, lse = _forward_kernel(*arguments, out=out)
    else:
        o, lse = _cache_forward(*arguments)
        if out is not None:
            o = out.copy_(o)
    return o, lse if return_lse else None


def append(k_cache, v_cache, k, v, cache_seqlens, q=None, **more):
    """q, turned, or None where no q is given; the caches and seqused_after are written in place."""
    run = _append_kernel if _is_direct(k_cache, k, v, Call(seqused_k=cache_seqlens)) else (
        _cache_append)
    turned = run(k_cache, v_cache, k, v, cache_seqlens, q=q, **more)
    return None if q is None else turned
