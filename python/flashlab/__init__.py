"""FlashLab: exact attention for arrays of any framework, on CPUs and NVIDIA GPUs.

    attention, attention_backward, merge     numpy.ndarray, torch.Tensor, jax.Array, cupy.ndarray,
                                             and whatever else speaks DLPack and the array API
    attention_with_cache, append_to_cache    the same arrays: keys and values that lie in a cache
    Communicator                             NumPy arrays, CPU tensors: sums and gathers of ranks
    info, check, bench                       the instruments of the command line, as data
    flashlab.torch                           PyTorch: gradients, custom operators, drop-in names
    flashlab.transformers                    Hugging Face: attn_implementation="flashlab"
    python -m flashlab                       the command line itself

An array is [batch, seqlen, heads, head_dim] by its strides: another order of the dimensions is a
transposed view, not a copy. Results are arrays of the caller's framework on the same device, made
by its allocator; on a GPU the work is enqueued on its current stream (JAX, which shows none: the
results are complete on return).
"""

from __future__ import annotations

import sys
from typing import Any, Iterable, Literal, Optional, Tuple, TypeVar, Union, overload

from flashlab import _core
from flashlab._cache import append_to_cache, attention_with_cache
from flashlab._command import CheckFailed, bench, check, info
from flashlab._ranks import Communicator

__version__: str = _core.version
__all__ = ["CheckFailed", "Communicator", "__version__", "append_to_cache", "attention",
           "attention_backward", "attention_with_cache", "bench", "check", "info", "merge"]

Array = TypeVar("Array")


@overload
def attention(q: Array, k: Array, v: Array, *, causal: Union[bool, str, None] = ...,
              scale: Optional[float] = ..., mask: Optional[Any] = ...,
              return_lse: Literal[False] = ..., precision: str = ..., deterministic: bool = ...,
              out: Optional[Any] = ..., window: Optional[Tuple[Any, ...]] = ...,
              softcap: Optional[float] = ..., alibi_slopes: Optional[Any] = ...,
              dropout_p: float = ..., dropout_seed: Union[Tuple[int, int], Any, None] = ...,
              cu_seqlens_q: Optional[Any] = ..., cu_seqlens_k: Optional[Any] = ...,
              seqused_q: Optional[Any] = ..., seqused_k: Optional[Any] = ...,
              max_seqlen_q: Optional[int] = ..., max_seqlen_k: Optional[int] = ...,
              sinks: Optional[Any] = ...,
              attention_chunk: Optional[int] = ...) -> Array: ...
@overload
def attention(q: Array, k: Array, v: Array, *, causal: Union[bool, str, None] = ...,
              scale: Optional[float] = ..., mask: Optional[Any] = ...,
              return_lse: Literal[True], precision: str = ..., deterministic: bool = ...,
              out: Optional[Any] = ..., window: Optional[Tuple[Any, ...]] = ...,
              softcap: Optional[float] = ..., alibi_slopes: Optional[Any] = ...,
              dropout_p: float = ..., dropout_seed: Union[Tuple[int, int], Any, None] = ...,
              cu_seqlens_q: Optional[Any] = ..., cu_seqlens_k: Optional[Any] = ...,
              seqused_q: Optional[Any] = ..., seqused_k: Optional[Any] = ...,
              max_seqlen_q: Optional[int] = ..., max_seqlen_k: Optional[int] = ...,
              sinks: Optional[Any] = ...,
              attention_chunk: Optional[int] = ...) -> Tuple[Array, Array]: ...
@overload
def attention(q: Array, k: Array, v: Array, *, causal: Union[bool, str, None] = ...,
              scale: Optional[float] = ..., mask: Optional[Any] = ...,
              return_lse: bool = ..., precision: str = ..., deterministic: bool = ...,
              out: Optional[Any] = ..., window: Optional[Tuple[Any, ...]] = ...,
              softcap: Optional[float] = ..., alibi_slopes: Optional[Any] = ...,
              dropout_p: float = ..., dropout_seed: Union[Tuple[int, int], Any, None] = ...,
              cu_seqlens_q: Optional[Any] = ..., cu_seqlens_k: Optional[Any] = ...,
              seqused_q: Optional[Any] = ..., seqused_k: Optional[Any] = ...,
              max_seqlen_q: Optional[int] = ..., max_seqlen_k: Optional[int] = ...,
              sinks: Optional[Any] = ...,
              attention_chunk: Optional[int] = ...) -> Union[Array, Tuple[Array, Array]]: ...
def attention(q: Array, k: Array, v: Array, *, causal: Union[bool, str, None] = False,
              scale: Optional[float] = None, mask: Optional[Any] = None,
              return_lse: bool = False, precision: str = "ieee", deterministic: bool = False,
              out: Optional[Any] = None, window: Optional[Tuple[Any, ...]] = None,
              softcap: Optional[float] = None, alibi_slopes: Optional[Any] = None,
              dropout_p: float = 0.0,
              dropout_seed: Union[Tuple[int, int], Any, None] = None,
              cu_seqlens_q: Optional[Any] = None, cu_seqlens_k: Optional[Any] = None,
              seqused_q: Optional[Any] = None, seqused_k: Optional[Any] = None,
              max_seqlen_q: Optional[int] = None, max_seqlen_k: Optional[int] = None,
              sinks: Optional[Any] = None,
              attention_chunk: Optional[int] = None) -> Union[Array, Tuple[Array, Array]]:
    """Exact softmax attention: o = softmax(scale q k^T + mask) v.

    Shapes      q [B, Sq, Hq, D], k [B, Sk, Hk, D], v [B, Sk, Hk, Dv] -> o [B, Sq, Hq, Dv] and, with
                return_lse, lse [B, Hq, Sq], the natural logarithm of the sum over visible keys of
                exp(score). Hq is a multiple of Hk: query head h reads key head h // (Hq // Hk)
    Types       float64 (on a CPU), float32, float16, bfloat16, one for q, k and v; o has it too;
                lse is float32 (float64 for float64). Sums are taken in lse's type
    Strides     any; an input whose innermost stride is not 1, or with a negative stride, is copied
    causal      False; True (only where Sq == Sk); "top-left" (query i sees keys up to i, PyTorch's
                is_causal); "bottom-right" (the last query sees all keys, flash-attn's causal)
    scale       default 1 / sqrt(D)
    mask        bool (True is visible) or floating (float32 or q's dtype; added to the scores; at
                or below half of the dtype's lowest finite number, -inf included, it hides),
                broadcastable to [B, Hq, Sq, Sk]; combines with causal
    window      (left, right): query i sees keys i + d - left to i + d + right; None is no bound, a
                negative side leaves the diagonal out; d is 0 top-left, Sk - Sq bottom-right:
                causal's alignment, or the third element, "top-left" or "bottom-right", which is
                needed where Sq != Sk without causal
    attention_chunk  c: query i sees the keys of the chunk [n c, n c + c) that key i + d lies in,
                d as a window's; where Sq != Sk, causal or window says the alignment
    softcap     scores become softcap tanh(score / softcap)
    alibi_slopes  [Hq] or [B, Hq] float32: adds -slope |i + Sk - Sq - j|
    dropout_p, dropout_seed  probability, below 1, of dropping a probability; the pattern is a
                function of (seed, offset), batch, head, query and key; an int64 array of both on
                q's device is read when the call runs. lse is that without dropout
    cu_seqlens_q, cu_seqlens_k  [B + 1] int32 or int64: sequence b has the rows from cu_seqlens[b]
                up to cu_seqlens[b + 1] of q [rows, Hq, D], o and lse [Hq, rows], or of k and v
                [rows, Hk, D]. Each is a call of its own: Sq and Sk are its lengths, a mask lies at
                its own positions, slopes and dropout's pattern are those of batch entry b. causal
                and windows need an alignment. Rows of no sequence get o = 0, lse = -inf, gradient
                0. On a GPU they lie there, are not checked, and float16 and bfloat16 have them
    seqused_q, seqused_k  [B] int32 or int64: how many rows of each sequence count, from its first
                on; dense arrays may have them, too
    max_seqlen_q, max_seqlen_k  about the longest sequence: hints, which change no result
    sinks       [Hq] float32: one more score of every row, to a key whose value is 0; lse has it in.
    precision   of float32: "ieee", or "tf32" on a GPU with tensor cores for it
    deterministic  bitwise equal on any number of threads or multiprocessors
    out         a writable array for o: its shape, q's dtype or float32; then o is this array
    Empty rows  a query that sees no key gives o = 0, lse = -inf
    PyTorch     tensors go through flashlab.torch.attention: gradients, autocast, torch.compile;
                with `out`, which has no gradient, they do not
    Errors      ValueError (shapes, values), TypeError (dtypes, array types), RuntimeError (devices,
                drivers), NotImplementedError (well-formed, but not supported yet), MemoryError.
                Each names the argument, what was found, what was expected
    Cost        2 B Hq pairs (D + Dv) FLOPs, pairs = visible (query, key) pairs of a head
    Source      FlashAttention-2 (Dao 2023), algorithm 1
    """
    run = _by_torch if _is_compiling() else _core.attention
    return run(q, k, v, causal, scale, mask, return_lse, precision, deterministic, out, window,
               softcap, alibi_slopes, dropout_p, dropout_seed, cu_seqlens_q, cu_seqlens_k,
               seqused_q, seqused_k, max_seqlen_q, max_seqlen_k, sinks, attention_chunk)


def _is_compiling() -> bool:
    """torch.compiler.is_compiling, which takes this place when the first eager tensor has come."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_compiling()


def _by_torch(q: Any, k: Any, v: Any, causal: Any, scale: Any, mask: Any, return_lse: bool,
              precision: str, deterministic: bool, out: Any, window: Any, softcap: Any,
              alibi_slopes: Any, dropout_p: Any, dropout_seed: Any, cu_seqlens_q: Any,
              cu_seqlens_k: Any, seqused_q: Any, seqused_k: Any, max_seqlen_q: Any,
              max_seqlen_k: Any, sinks: Any, attention_chunk: Any) -> Any:
    """A call on tensors that need more than kernels: gradients, autocast, an operator to see, a
    seed of dropout."""
    options = {"causal": causal, "scale": scale, "mask": mask, "return_lse": return_lse,
               "precision": precision, "deterministic": deterministic, "window": window,
               "softcap": softcap, "alibi_slopes": alibi_slopes, "dropout_p": dropout_p,
               "dropout_seed": dropout_seed, "cu_seqlens_q": cu_seqlens_q,
               "cu_seqlens_k": cu_seqlens_k, "seqused_q": seqused_q, "seqused_k": seqused_k,
               "max_seqlen_q": max_seqlen_q, "max_seqlen_k": max_seqlen_k, "sinks": sinks,
               "attention_chunk": attention_chunk}
    import flashlab.torch
    if out is None:
        return flashlab.torch.attention(q, k, v, **options)
    import torch
    for name, tensor in (("q", q), ("k", k), ("v", v), ("mask", mask),
                         ("alibi_slopes", alibi_slopes), ("sinks", sinks)):
        if torch.is_grad_enabled() and getattr(tensor, "requires_grad", False):
            raise ValueError(f"out: got an output beside {name} with requires_grad, expected no "
                             "gradient; leave out= away, or call under torch.no_grad()")
    o, lse = _core.forward(q, k, v, out=out, **options)
    return (o, lse) if return_lse else o


def attention_backward(d_o: Array, q: Array, k: Array, v: Array, o: Array, lse: Array, *,
                       d_lse: Optional[Array] = None, causal: Union[bool, str, None] = False,
                       scale: Optional[float] = None, mask: Optional[Array] = None,
                       precision: str = "ieee", deterministic: bool = False,
                       window: Optional[Tuple[Any, ...]] = None, softcap: Optional[float] = None,
                       alibi_slopes: Optional[Array] = None, dropout_p: float = 0.0,
                       dropout_seed: Union[Tuple[int, int], Array, None] = None,
                       cu_seqlens_q: Optional[Array] = None, cu_seqlens_k: Optional[Array] = None,
                       seqused_q: Optional[Array] = None, seqused_k: Optional[Array] = None,
                       max_seqlen_q: Optional[int] = None, max_seqlen_k: Optional[int] = None,
                       sinks: Optional[Array] = None,
                       attention_chunk: Optional[int] = None) -> Tuple[Array, ...]:
    """Gradients of `attention` for frameworks that have no autograd of their own.

    Computes    P = exp(S - lse), delta = rowsum(d_o * o) - d_lse, dS = P * (d_o v^T - delta);
                dv = P^T d_o, dq = scale dS k, dk = scale dS^T q
    Shapes      d_o and o as attention's o, lse and d_lse as its lse; o and lse are what attention
                gave for the same arguments. Returns dq, dk, dv, of the shapes and types of q, k, v,
                and with sinks d_sinks
    d_lse       gradient of lse; None is zero
    deterministic  without it a GPU adds dq up in an order that varies
    window, softcap, alibi_slopes, dropout_p, dropout_seed, cu_seqlens_q, cu_seqlens_k, seqused_q,
    seqused_k, sinks, attention_chunk  those of the forward call
    Others, errors, strides: as attention
    Cost        2 B Hq pairs (3 D + 2 Dv) FLOPs
    Source      FlashAttention-2 (Dao 2023), algorithm 2
    """
    return _core.backward(d_o, q, k, v, o, lse, d_lse=d_lse, causal=causal, scale=scale, mask=mask,
                          precision=precision, deterministic=deterministic, window=window,
                          softcap=softcap, alibi_slopes=alibi_slopes, dropout_p=dropout_p,
                          dropout_seed=dropout_seed, cu_seqlens_q=cu_seqlens_q,
                          cu_seqlens_k=cu_seqlens_k, seqused_q=seqused_q, seqused_k=seqused_k,
                          max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k, sinks=sinks,
                          attention_chunk=attention_chunk)


@overload
def merge(parts: Iterable[Tuple[Array, Array]], *, dtype: str = ...,
          return_lse: Literal[False] = ...) -> Array: ...
@overload
def merge(parts: Iterable[Tuple[Array, Array]], *, dtype: str = ...,
          return_lse: Literal[True]) -> Tuple[Array, Array]: ...
@overload
def merge(parts: Iterable[Tuple[Array, Array]], *, dtype: str = ...,
          return_lse: bool = ...) -> Union[Array, Tuple[Array, Array]]: ...
def merge(parts: Iterable[Tuple[Array, Array]], *, dtype: str = "fp32",
          return_lse: bool = False) -> Union[Array, Tuple[Array, Array]]:
    """Attention over the union of disjoint sets of keys, from attention over each.

    Computes    lse = log(sum_i exp(lse_i)), o = sum_i exp(lse_i - lse) o_i, in the order given
    parts       pairs (o, lse) of one framework and device: o float32 [B, Sq, Hq, Dv] (attention's
                out= may be float32 beside half-precision inputs), lse float32 [B, Hq, Sq]
    dtype       of o: "fp32", "fp16" or "bf16"; lse is float32
    Empty rows  a part with lse = -inf contributes nothing; all empty: o = 0, lse = -inf
    Errors      as attention
    Source      FlashAttention (Dao et al. 2022), section 3.1
    """
    o, lse = _core.merge(parts, dtype=dtype, return_lse=return_lse)
    return (o, lse) if return_lse else o
