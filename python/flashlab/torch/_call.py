"""What a call brings beside q, k and v: one list, for every path and both passes.

The seed and offset of dropout are drawn once, in forward, and backward draws the same pattern from
them again. An eager call hands both to the kernels as numbers; inside a CUDA graph, and where
operators are seen, they lie in a tensor that the kernels read when they run.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor


class Call(NamedTuple):
    """The options and the tensors of a call. The extension takes it as it is; the operators and
    torch.func's functions take its members in their order, `*call`, behind the pass's tensors."""

    mask: Optional[Tensor] = None
    scale: Optional[float] = None
    causal: Optional[str] = None           # "top-left" or "bottom-right"
    precision: str = "ieee"
    deterministic: bool = False
    window: Optional[tuple] = None         # keys to the left and to the right
    alignment: Optional[str] = None        # of a window; None is causal's
    softcap: Optional[float] = None
    dropout_p: float = 0.0
    alibi_slopes: Optional[Tensor] = None  # [heads] or [batch, heads] float32
    dropout_seed: Any = None               # (seed, offset), or a tensor of both; None without p
    cu_seqlens_q: Optional[Tensor] = None  # [batch + 1]: q is [rows, heads, head_dim]
    cu_seqlens_k: Optional[Tensor] = None
    seqused_q: Optional[Tensor] = None     # [batch]
    seqused_k: Optional[Tensor] = None
    sinks: Optional[Tensor] = None         # [heads] float32
    max_seqlen_q: Optional[int] = None     # hints
    max_seqlen_k: Optional[int] = None
    attention_chunk: Optional[int] = None  # keys; its alignment is the window's or causal's
    schedule: Optional[Tensor] = None      # of forward: what flashlab.torch.schedule gave

    def has_lengths(self) -> bool:
        return not (self.cu_seqlens_q is None and self.cu_seqlens_k is None
                    and self.seqused_q is None and self.seqused_k is None)


SCHEMA = ("Tensor? mask=None, float? scale=None, str? causal=None, str precision='ieee', "
          "bool deterministic=False, int[]? window=None, str? alignment=None, "
          "float? softcap=None, float dropout_p=0.0, Tensor? alibi_slopes=None, "
          "Tensor? dropout_seed=None, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, "
          "Tensor? seqused_q=None, Tensor? seqused_k=None, Tensor? sinks=None, "
          "SymInt? max_seqlen_q=None, SymInt? max_seqlen_k=None, "
          "int? attention_chunk=None, Tensor? schedule=None")

_SEQUENCES = ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "sinks")
_FIRST = Call._fields.index("cu_seqlens_q")
_LAST = _FIRST + len(_SEQUENCES)


def save(ctx, call: Call, *tensors) -> None:
    """Keeps a call for its backward pass: tensors where autograd and its hooks look after them."""
    seed = call.dropout_seed
    stored = seed if isinstance(seed, Tensor) else None
    sequences = call[_FIRST:_LAST]
    ctx.save_for_backward(call.mask, call.alibi_slopes, stored, *sequences, *tensors)
    if any(tensor is not None for tensor in sequences):
        call = call._replace(**dict.fromkeys(_SEQUENCES), schedule=None)
    if call.mask is not None or call.alibi_slopes is not None or stored is not None:
        call = call._replace(mask=None, alibi_slopes=None,
                             dropout_seed=seed if stored is None else None)
    ctx.call = call


def saved(ctx):
    """The call that `save` kept, and its tensors."""
    mask, slopes, stored, *tensors = ctx.saved_tensors
    sequences, tensors = tensors[:len(_SEQUENCES)], tensors[len(_SEQUENCES):]
    call = ctx.call
    if any(tensor is not None for tensor in sequences):
        call = call._replace(**dict(zip(_SEQUENCES, sequences)))
    if mask is not None or slopes is not None or stored is not None:
        call = call._replace(mask=mask, alibi_slopes=slopes,
                             dropout_seed=call.dropout_seed if stored is None else stored)
    return call, tensors


# ---------------------------------------------------------------------------------------------
# Dropout's seed and offset
# ---------------------------------------------------------------------------------------------

# What torch's own dropout kernels take from the generator for one head: its offset grows so.
_NUMBERS_PER_HEAD = 32


def entries(q: Tensor, call: Call | None = None, heads_axis: int = 2) -> int:
    """Batch entries times heads; of ragged queries, sequences times heads."""
    if q.dim() == 3:
        lengths = None if call is None else call.cu_seqlens_q
        return q.shape[1] * (1 if lengths is None else max(lengths.shape[0] - 1, 1))
    return q.shape[0] * q.shape[heads_axis]


def draw_seed(q: Tensor, count: int) -> tuple[int, int] | Tensor:
    """(seed, offset) from torch's generator of q's device, which moves on as torch moves it.

    On a CUDA device the generator's own seed and offset; the offset grows by 32 for each of
    `count` heads of all entries, as torch's flash attention lets it grow. On a CPU two numbers of
    its stream. While a CUDA graph is captured: a tensor that every replay draws anew.
    """
    if q.is_cuda:
        if torch.cuda.is_current_stream_capturing():
            return torch.empty(2, dtype=torch.int64, device=q.device).random_()
        generator = torch.cuda.default_generators[q.device.index]
        seed, offset = generator.initial_seed(), generator.get_offset()
        generator.set_offset(offset + _NUMBERS_PER_HEAD * count)
        return seed, offset
    drawn = torch.randint(-2**63, 2**63 - 1, (2,), dtype=torch.int64).tolist()
    return drawn[0], drawn[1]


def stored_seed(seed: tuple[int, int] | Tensor | None, device) -> Tensor | None:
    """The seed as a tensor on the device, without waiting for the device."""
    if seed is None or isinstance(seed, Tensor):
        return seed
    stored = torch.empty(2, dtype=torch.int64, device=device)
    for at, number in enumerate(seed):
        stored[at].fill_((number + 2**63) % 2**64 - 2**63)
    return stored
