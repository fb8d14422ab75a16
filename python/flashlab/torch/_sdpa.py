"""A drop-in for torch.nn.functional.scaled_dot_product_attention."""

from __future__ import annotations

import re
import sys

import torch
from torch import Tensor

from . import _checks
from ._autograd import attend
from ._call import Call

_NAMES = {"q": "query", "k": "key", "v": "value", "mask": "attn_mask"}


def scaled_dot_product_attention(
        query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
        dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
        enable_gqa: bool = False) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention by FlashLab.

    Shapes      query [..., Hq, L, E], key [..., H, S, E], value [..., H, S, Ev] ->
                [..., Hq, L, Ev]; two dimensions or more, leading ones broadcast
    attn_mask   bool (True takes part) or additive (float32 or query's dtype), broadcastable to
                [..., Hq, L, S]; torch.nn.attention.bias's causal biases; not together with
                is_causal, as in torch. A mask that requires a gradient raises
    is_causal   top-left: query i sees keys up to i, whatever L and S
    enable_gqa  Hq may be a multiple of H; without it heads agree or are 1
    float32     multiplied in full ("ieee") unless torch's own switch for float32 products on CUDA
                allows tf32 (torch.set_float32_matmul_precision, torch.backends.cuda.matmul)
    dropout_p   below 1; seed and offset come from torch's generator of the device
    nested      three jagged nested tensors [B, heads, j, head_dim], j the ragged dimension, without
                a mask: each sequence by itself -> one of query's sequences
    A query that sees no key gives zeros, as in torch. Sparse tensors and nested ones of another
    layout raise NotImplementedError; other errors as flashlab.torch.attention.
    """
    if getattr(query, "is_nested", False):
        return _jagged(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    causal = "top-left" if _checks.flag("is_causal", is_causal) else None
    try:
        if attn_mask is not None:
            attn_mask, causal = _mask(attn_mask, is_causal, query, key)
        fold = not _agree(query.shape, key.shape, value.shape, enable_gqa)
        if fold:
            shape, query, key, value, attn_mask = _fold(query, key, value, attn_mask, enable_gqa)
        call = Call(attn_mask, scale, causal, _precision(query), dropout_p=dropout_p)
        o = attend(query, key, value, call, return_lse=False, heads_first=True)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise _renamed(error) from None
    except (AttributeError, RuntimeError):
        _checks.tensors(query=query, key=key, value=value)
        raise
    return o.reshape(shape) if fold else o


def _jagged(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa):
    """Jagged nested tensors: their values are the rows of a ragged batch."""
    if attn_mask is not None:
        raise NotImplementedError("attn_mask: masks beside nested tensors are not supported (nor "
                                  "in torch); pass padded tensors")
    rows = [_rows(name, tensor) for name, tensor in
            (("query", query), ("key", key), ("value", value))]
    if key.offsets() is not value.offsets():
        raise ValueError("value: its sequences are not key's; make it from them: torch.nested."
                         "nested_tensor_from_jagged(values, key.offsets())")
    if not enable_gqa and query.shape[1] != key.shape[1]:
        raise ValueError(f"key: got {key.shape[1]} heads, expected query's {query.shape[1]}; for "
                         "grouped-query attention pass enable_gqa=True")
    call = Call(None, scale, "top-left" if _checks.flag("is_causal", is_causal) else None,
                _precision(rows[0]), dropout_p=dropout_p, cu_seqlens_q=query.offsets(),
                cu_seqlens_k=key.offsets(), seqused_q=query.lengths(), seqused_k=key.lengths())
    try:
        o = attend(*rows, call, return_lse=False)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise _checks.renamed(error, _NAMES) from None
    return torch.nested.nested_tensor_from_jagged(
        o, query.offsets(), query.lengths()).transpose(1, 2)


def _rows(name, tensor):
    if not tensor.is_nested or tensor.layout is not torch.jagged:
        raise NotImplementedError(f"{name}: beside a nested query all three are jagged nested "
                                  "tensors (torch.nested, layout=torch.jagged)")
    if tensor.dim() != 4 or tensor._ragged_idx != 2:
        raise ValueError(f"{name}: got the nested shape {tuple(tensor.shape)}, expected [batch, "
                         "heads, j, head_dim] with the ragged dimension j: nested.unflatten(-1, "
                         "[heads, head_dim]).transpose(1, 2)")
    return tensor.transpose(1, 2).values()


def _agree(q, k, v, enable_gqa) -> bool:
    """Whether the shapes are [batch, heads, seqlen, head_dim] without anything to broadcast."""
    return (len(q) == len(k) == len(v) == 4 and q[0] == k[0] == v[0] and k[1] == v[1]
            and (q[1] == k[1] or (enable_gqa and k[1] > 0 and q[1] % k[1] == 0)))


_AXES = {"0": "-4", "1": "-2", "2": "-3", "3": "-1"}
_SHAPE = re.compile(r"\b(q|k|v) must be \[(.+?), (.+?), (.+?), (.+?)\] = \[(.+?), (.+?), (.+?), "
                    r"(.+?)\]")


def _renamed(error):
    """A kernel's message in the caller's words: its names of the arguments, and the axes of
    [..., heads, seqlen, head_dim] where the kernels count [batch, seqlen, heads, head_dim]."""
    text = re.sub(r"^(q|k|v)\.shape\[(\d)\]", lambda at: f"{at[1]}.shape[{_AXES[at[2]]}]",
                  str(error))
    text = _SHAPE.sub(lambda at: f"{_NAMES[at[1]]} must be [{at[2]}, {at[4]}, {at[3]}, {at[5]}] = "
                      f"[{at[6]}, {at[8]}, {at[7]}, {at[9]}]", text)
    return _checks.renamed(type(error)(text), _NAMES)


# ---------------------------------------------------------------------------------------------
# Masks
# ---------------------------------------------------------------------------------------------

def _mask(mask, is_causal, query, key):
    """The mask with at least four dimensions, or None, and the causal alignment."""
    if is_causal:
        raise ValueError("attn_mask: cannot be combined with is_causal=True (nor in torch); put "
                         "the causal part into the mask, or use flashlab.torch.attention, which "
                         "combines both")
    biases = sys.modules.get("torch.nn.attention.bias")
    if biases is not None and isinstance(mask, biases.CausalBias):
        lengths = (query.shape[-2], key.shape[-2])
        if lengths != (mask.seq_len_q, mask.seq_len_kv):
            raise ValueError(f"attn_mask: a causal bias for lengths {mask.seq_len_q} and "
                             f"{mask.seq_len_kv}, but query and key have {lengths}")
        upper_left = mask.variant == biases.CausalVariant.UPPER_LEFT
        return None, "top-left" if upper_left else "bottom-right"
    _checks.tensors(attn_mask=mask)
    if mask.dim() < 2:
        raise ValueError(f"attn_mask: got {mask.dim()} dimensions, expected at least 2: "
                         "[..., heads, L, S]")
    while mask.dim() < 4:
        mask = mask.unsqueeze(0)
    return mask, None


# ---------------------------------------------------------------------------------------------
# Any leading dimensions -> [batch, heads, seqlen, head_dim]
# ---------------------------------------------------------------------------------------------

def _broadcast(what, *shapes):
    try:
        return tuple(torch.broadcast_shapes(*shapes))
    except RuntimeError:
        listed = ", ".join(str(tuple(shape)) for shape in shapes)
        raise ValueError(f"query, key, value: {what} {listed} do not broadcast") from None


def _heads(query, key, value, enable_gqa):
    """The tensors with heads that the kernels take: query's a multiple of key's, key's value's."""
    counts = [t.shape[-3] for t in (query, key, value)]
    if enable_gqa:
        if 0 in counts[1:] or counts[0] % counts[1] or counts[0] % counts[2]:
            raise ValueError(f"query: {counts[0]} heads are not a multiple of key's {counts[1]} "
                             f"and value's {counts[2]} (enable_gqa=True)")
        if counts[1] != counts[2]:
            key, value = (t.repeat_interleave(counts[0] // count, -3)
                          for t, count in ((key, counts[1]), (value, counts[2])))
        return query, key, value
    most = max(counts) if 0 not in counts else 0
    if any(count not in (1, most) for count in counts):
        raise ValueError(f"key: heads of query, key and value are {counts}, which do not "
                         "broadcast; for grouped-query attention pass enable_gqa=True")
    if counts[0] == most and counts[1] == counts[2]:
        return query, key, value
    return tuple(t.expand(*t.shape[:-3], most, -1, -1) for t in (query, key, value))


def _fold(query, key, value, mask, enable_gqa):
    """The output's shape, and everything with four dimensions."""
    given = {"query": query, "key": key, "value": value}
    for name, tensor in given.items():
        if tensor.dim() < 2:
            raise ValueError(f"{name}: got {tensor.dim()} dimensions, expected at least 2: "
                             "[..., heads, seqlen, head_dim]")
    headless = all(tensor.dim() == 2 for tensor in given.values())
    query, key, value = _heads(
        *(t.unsqueeze(0) if t.dim() == 2 else t for t in given.values()), enable_gqa)
    batch = _broadcast("leading dimensions", *(t.shape[:-3] for t in (query, key, value)))
    shape = (*batch, *query.shape[-3:-1], value.shape[-1])
    if mask is not None:
        leading = mask.shape[:-3]
        if all(extent == 1 for extent in leading):
            mask = mask.reshape(1, *mask.shape[-3:])
        elif _broadcast("mask's leading dimensions", leading, batch) == batch:
            mask = mask.expand(*batch, *mask.shape[-3:]).reshape(-1, *mask.shape[-3:])
        else:
            raise ValueError(f"attn_mask: leading dimensions {tuple(leading)} do not broadcast to "
                             f"{batch}")
    count = 1
    for extent in batch:
        count *= extent
    query, key, value = (t.expand(*batch, *t.shape[-3:]).reshape(count, *t.shape[-3:])
                         for t in (query, key, value))
    return shape[1:] if headless else shape, query, key, value, mask


# ---------------------------------------------------------------------------------------------
# torch's switch
# ---------------------------------------------------------------------------------------------

def _precision(query) -> str:
    if query.dtype is not torch.float32 or not query.is_cuda:
        return "ieee"
    return "tf32" if _tf32_allowed() else "ieee"


def _tf32_allowed() -> bool:
    matmul = torch.backends.cuda.matmul
    try:
        return matmul.fp32_precision == "tf32"
    except AttributeError:  # before torch 2.9
        return matmul.allow_tf32


# What torch.compiler.assume_constant_result does. The decorator itself imports torch._dynamo,
# 3.4 s that a program which compiles nothing need not wait (torch 2.11, 2026-11-21).
_tf32_allowed._dynamo_marked_constant = True
