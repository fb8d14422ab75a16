"""flash-attn's flash_attn.bert_padding: padded batches to rows and back, with gradients.

    hidden, indices, cu_seqlens, max_seqlen, used = unpad_input(hidden, attention_mask)
    ... flash_attn_varlen_func ...
    padded = pad_input(hidden, indices, batch, seqlen)
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["index_first_axis", "index_put_first_axis", "pad_input", "unpad_input"]


def index_first_axis(input: Tensor, indices: Tensor) -> Tensor:
    """input[indices] along the first dimension: [rows, ...] -> [len(indices), ...]."""
    return input.index_select(0, indices)


def index_put_first_axis(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    """Zeros [first_axis_dim, ...] with `values` [len(indices), ...] at `indices`, which differ."""
    out = values.new_zeros((first_axis_dim, *values.shape[1:]))
    return out.index_copy(0, indices, values)


def unpad_input(hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None
                ) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """The rows of a padded batch that are tokens.

    hidden_states   [batch, seqlen, ...]
    attention_mask  [batch, seqlen], 1 or True for a token
    unused_mask     [batch, seqlen], 1 or True for a place that is kept, but not used

    -> rows [total, ...], their indices in [batch * seqlen], cu_seqlens [batch + 1] int32 of tokens
    and kept places, the longest sequence, and how many tokens each has [batch] int32. Reads the
    longest sequence back from a GPU, as flash-attn does.
    """
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = kept.sum(dim=-1, dtype=torch.int32)
    used = attention_mask.sum(dim=-1, dtype=torch.int32)
    indices = torch.nonzero(kept.flatten(), as_tuple=False).flatten()
    longest = int(lengths.max()) if lengths.numel() > 0 else 0
    cu_seqlens = torch.nn.functional.pad(torch.cumsum(lengths, dim=0, dtype=torch.int32), (1, 0))
    return (index_first_axis(hidden_states.flatten(0, 1), indices), indices, cu_seqlens, longest,
            used)


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """The inverse of unpad_input: rows [total, ...] -> [batch, seqlen, ...], zeros elsewhere."""
    rows = index_put_first_axis(hidden_states, indices, batch * seqlen)
    return rows.unflatten(0, (batch, seqlen))
