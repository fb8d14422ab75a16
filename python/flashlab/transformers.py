"""FlashLab for Hugging Face's transformers: attn_implementation="flashlab".

    import flashlab.transformers
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="flashlab")

Importing registers the name for every model that takes "sdpa": training and generate, on CPUs and
GPUs, dynamic and static caches, grouped heads as they are, dropout, softcap, attention sinks.

    padded batches    attention_mask [batch, seqlen]: one column of a mask for each key, nothing of
                      queries x keys, whichever side is padded. Rows that are padding themselves
                      have other values than with "eager", which nobody reads
    packed batches    position_ids that begin again, or cu_seq_lens_q and cu_seq_lens_k, as
                      DataCollatorWithFlattening gives them: a ragged call, without a mask. The
                      offsets of position_ids are read back from a GPU, once for all layers
    other masks       sliding windows, chunks, prefill into a static cache behind other tokens and
                      whatever a model makes of its own: a bool mask of queries x keys, as "sdpa"

What it cannot serve raises and names it: output_attentions, head_mask, position_bias with a
gradient, paged caches of continuous batching.
"""

from __future__ import annotations

import inspect
from typing import Any

try:
    import torch
    import transformers
    from transformers import (AttentionInterface, AttentionMaskInterface, masking_utils,
                              modeling_utils)
except ImportError as error:
    raise ImportError("flashlab.transformers needs PyTorch and transformers 5: pip install torch "
                      "transformers") from error

from flashlab.torch import _sdpa, attention

__all__ = ["NAME", "attention_forward", "attention_mask"]

NAME = "flashlab"

if "q_offset" not in inspect.signature(masking_utils.sdpa_mask).parameters:
    raise ImportError(f"flashlab.transformers needs transformers 5, found "
                      f"{transformers.__version__}: pip install -U transformers")


# ---------------------------------------------------------------------------------------------
# Masks: what a model asks for, in the smallest form
# ---------------------------------------------------------------------------------------------

def attention_mask(batch_size: int, q_length: int, kv_length: int, q_offset: Any = 0,
                   kv_offset: int = 0, mask_function: Any = masking_utils.causal_mask_function,
                   attention_mask: torch.Tensor | None = None, **more: Any
                   ) -> torch.Tensor | None:
    """transformers' mask of a forward pass for attention_forward.

    None: no padding; causal or not is the layer's word. [batch, keys]: keys that are tokens; the
    last query is aligned with the last key. [sequences + 1] int32: where packed sequences begin.
    [batch, 1, queries, keys]: anything else, complete.
    """
    tracing = torch.compiler.is_compiling() or isinstance(q_offset, torch.Tensor)
    if not tracing:
        offsets = _packed(mask_function, more) if attention_mask is None else None
        if offsets is not None:
            return offsets
        if _is_plain(mask_function, more) and q_length > 1 and (
                q_offset + q_length == kv_offset + kv_length):
            return _padding(batch_size, q_length, kv_length, kv_offset, attention_mask, more)
    return masking_utils.sdpa_mask(
        batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset,
        kv_offset=kv_offset, mask_function=mask_function, attention_mask=attention_mask, **more)


def _is_plain(mask_function, more) -> bool:
    """Causal or complete, and nobody wants to see the matrix."""
    if mask_function is masking_utils.causal_mask_function:
        return more.get("allow_is_causal_skip", True)
    return (mask_function is masking_utils.bidirectional_mask_function
            and more.get("allow_is_bidirectional_skip", False))


def _padding(batch_size, q_length, kv_length, kv_offset, given, more):
    if given is None:
        if q_length == kv_length:
            return None
        return torch.ones(batch_size, kv_length, dtype=torch.bool, device=more.get("device", "cpu"))
    padding = masking_utils.prepare_padding_mask(given, kv_length, kv_offset)
    padding = padding[:, kv_offset:kv_offset + kv_length]
    # A GPU is not asked: the answer would be waited for.
    if padding.device.type == "cpu" and q_length == kv_length and padding.all():
        return None
    return padding


def _packed(mask_function, more):
    """Where packed sequences begin, from the functions that transformers makes of position_ids that
    begin again; None for any other function."""
    both = _inside(mask_function, "and_masks", "mask_functions") or ()
    if len(both) != 2:
        return None
    causal = _inside(both[0], "remap_positions_for_packed_sequence", "mask_function")
    numbers = _inside(both[1], "packed_sequence_mask_function", "packed_sequence_mask")
    if causal is not masking_utils.causal_mask_function or numbers is None:
        return None
    begins = torch.ones_like(numbers, dtype=torch.bool)
    begins[:, 1:] = numbers[:, 1:] != numbers[:, :-1]
    begins = begins.flatten().nonzero().flatten()
    return torch.nn.functional.pad(begins, (0, 1), value=numbers.numel()).to(torch.int32)


def _inside(function, maker, name):
    """What masking_utils' `maker` keeps as `name` in a function that it made, else None."""
    if (getattr(function, "__module__", "") != masking_utils.__name__
            or not function.__qualname__.startswith(f"{maker}.<locals>.")):
        return None
    return inspect.getclosurevars(function).nonlocals.get(name)


# ---------------------------------------------------------------------------------------------
# Attention
# ---------------------------------------------------------------------------------------------

_REFUSED = {
    "output_attentions": "the probabilities are never in memory; use attn_implementation=\"eager\"",
    "head_mask": "is not supported; use attn_implementation=\"eager\"",
    "block_table": "paged caches are not supported yet; use a dynamic or a static cache",
}


def attention_forward(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor,
                      value: torch.Tensor, attention_mask: torch.Tensor | None,
                      dropout: float = 0.0, scaling: float | None = None,
                      is_causal: bool | None = None, sliding_window: int | None = None,
                      softcap: float | None = None, s_aux: torch.Tensor | None = None,
                      position_bias: torch.Tensor | None = None,
                      cu_seq_lens_q: torch.Tensor | None = None,
                      cu_seq_lens_k: torch.Tensor | None = None, **more: Any
                      ) -> tuple[torch.Tensor, None]:
    """Attention as transformers calls it: [batch, heads, seqlen, head_dim] in, [batch, seqlen,
    heads, head_dim] out, no probabilities. `attention_mask` as flashlab's mask function makes it,
    or a mask of queries x keys."""
    for name, why in _REFUSED.items():
        if more.get(name) is not None and more[name] is not False:
            raise NotImplementedError(f"{name}: attention by flashlab: {why}")
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    q, k, v = (tensor.transpose(1, 2) for tensor in (query, key, value))
    options = {"scale": scaling, "dropout_p": dropout, "softcap": softcap or None,
               "precision": _sdpa._precision(query),
               "sinks": None if s_aux is None else s_aux.float()}
    ragged = _offsets(attention_mask, cu_seq_lens_q, cu_seq_lens_k)
    if ragged is not None:
        if position_bias is not None:
            raise NotImplementedError("position_bias: is not supported with packed sequences")
        o = attention(*(tensor.flatten(0, 1) for tensor in (q, k, v)), **ragged, **options,
                      **_visible(causal, "bottom-right", sliding_window))
        return o.unflatten(0, q.shape[:2]), None
    queries, keys = q.shape[1], k.shape[1]
    mask, visible = attention_mask, {}
    if sliding_window is not None and (queries == 1 or (not causal and keys < sliding_window)):
        sliding_window = None  # one query of a sliding cache, or a window of everything
    if mask is None:
        # More keys than queries and no mask: a static cache whose first tokens these are.
        visible = _visible(causal and queries > 1, "top-left", sliding_window)
    elif mask.dim() == 2:
        mask = mask[:, None, None, :]
        visible = _visible(causal and queries > 1, "bottom-right", sliding_window)
    if position_bias is not None:
        mask = _biased(position_bias, mask)
    return attention(q, k, v, mask=mask, **options, **visible), None


def _offsets(mask, cu_seq_lens_q, cu_seq_lens_k):
    """The arguments of a ragged call, or None."""
    if mask is not None and mask.dim() == 1:
        cu_seq_lens_q = mask if cu_seq_lens_q is None else cu_seq_lens_q
        cu_seq_lens_k = mask if cu_seq_lens_k is None else cu_seq_lens_k
    if cu_seq_lens_q is None and cu_seq_lens_k is None:
        return None
    if cu_seq_lens_q is None or cu_seq_lens_k is None:
        raise ValueError("cu_seq_lens_q, cu_seq_lens_k: got one of them, expected both or none")
    if mask is not None and mask.dim() == 2:
        raise ValueError("attention_mask: got one of padding beside cu_seq_lens_q, expected none: "
                         "packed rows are all tokens")
    return {"cu_seqlens_q": cu_seq_lens_q, "cu_seqlens_k": cu_seq_lens_k}


def _visible(causal, alignment, sliding_window):
    """causal and window of flashlab; a window of n keys is the query's own and n - 1 before it."""
    if not causal and sliding_window:
        raise NotImplementedError("sliding_window: attention by flashlab: windows of layers that "
                                  "are not causal are not supported without a mask")
    return {"causal": alignment if causal else None,
            "window": (sliding_window - 1, 0) if sliding_window else None}


def _biased(position_bias, mask):
    if torch.is_grad_enabled() and position_bias.requires_grad:
        raise NotImplementedError("position_bias: attention by flashlab: a gradient of it is not "
                                  "supported yet; use attn_implementation=\"sdpa\"")
    if mask is None:
        return position_bias
    if mask.dtype == torch.bool:
        return position_bias.masked_fill(~mask, torch.finfo(position_bias.dtype).min)
    return position_bias + mask


# ---------------------------------------------------------------------------------------------
# The name
# ---------------------------------------------------------------------------------------------

def _register() -> None:
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, attention_mask)
    # A name with "flash" in it is one of flash-attn's to transformers: it would look for a package,
    # or take another in its place, and refuse chunks, which a mask serves here.
    for module in (modeling_utils, masking_utils):
        asked = getattr(module, "is_flash_attention_requested", None)
        if asked is not None and not hasattr(asked, "before_flashlab"):
            module.is_flash_attention_requested = _without_flashlab(asked)


def _without_flashlab(asked):
    def is_flash_attention_requested(config=None, requested_attention_implementation=None, **more):
        name = requested_attention_implementation
        if (name or getattr(config, "_attn_implementation", None)) == NAME:
            return False
        return asked(config, requested_attention_implementation=name, **more)

    is_flash_attention_requested.before_flashlab = asked
    return is_flash_attention_requested


_register()
