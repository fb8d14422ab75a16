"""flash-attn's functions that FlashLab does not compute yet.

They exist so that a program which swaps the import learns what is missing and what to use instead,
rather than failing on a name.
"""

from __future__ import annotations

_PADDED = ("call flash_attn_func on each sequence, or flashlab.torch.attention on padded sequences "
           "with a boolean mask")


def _refuse(name: str, what: str, remedy: str):
    def refused(*arguments, **options):
        raise NotImplementedError(f"{name}: {what} is not supported yet; {remedy}")

    refused.__name__ = refused.__qualname__ = name
    refused.__doc__ = f"Raises NotImplementedError: {what} is not supported yet."
    return refused


flash_attn_varlen_func = _refuse(
    "flash_attn_varlen_func", "a batch of packed sequences (cu_seqlens)", _PADDED)
flash_attn_varlen_qkvpacked_func = _refuse(
    "flash_attn_varlen_qkvpacked_func", "a batch of packed sequences (cu_seqlens)", _PADDED)
flash_attn_varlen_kvpacked_func = _refuse(
    "flash_attn_varlen_kvpacked_func", "a batch of packed sequences (cu_seqlens)", _PADDED)
flash_attn_with_kvcache = _refuse(
    "flash_attn_with_kvcache", "a cache of keys and values",
    'append the new keys yourself and call flashlab.torch.attention with causal="bottom-right"; '
    "few queries over many keys run split")
flash_attn_combine = _refuse(
    "flash_attn_combine", "flash-attn's layout of partial results",
    "pass the pairs (o, lse) to flashlab.merge")
