"""What can be said about arguments without looking at memory.

The kernels check everything again; these functions speak where no kernel runs (fake and meta
tensors, tracing) and for arguments that the kernels never see.
"""

from __future__ import annotations

import math
import operator
import re

import torch
from torch.autograd import forward_ad

ALIGNMENTS = ("top-left", "bottom-right")
PRECISIONS = ("ieee", "tf32")
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_NARROW = tuple(getattr(torch, name) for name in dir(torch)
                if name.startswith(("float8_", "float4_")))

ONCE = ("flashlab attention is differentiable once: a second derivative (create_graph=True, "
        "gradgradcheck) is not supported; for that compute attention by plain torch operations, "
        "for example under torch.nn.attention.sdpa_kernel(SDPBackend.MATH)")
FORWARD_MODE = ("flashlab attention has no forward-mode derivative (torch.autograd.forward_ad, "
                "torch.func.jvp): take the gradient by backward(), or compute attention by plain "
                "torch operations, for example under "
                "torch.nn.attention.sdpa_kernel(SDPBackend.MATH)")
MASK_GRADIENT = ("mask: a gradient of the mask is not supported yet (mask.requires_grad is set); "
                 "pass mask.detach() if it is a constant, else use "
                 "torch.nn.functional.scaled_dot_product_attention")
SLOPES_GRADIENT = ("alibi_slopes: a gradient of the slopes is not supported "
                   "(alibi_slopes.requires_grad is set); pass alibi_slopes.detach()")
RAGGED_CAUSAL = ('causal: True with sequences of any lengths is ambiguous; say "top-left" (query i '
                 'sees keys up to i) or "bottom-right" (the last query sees all keys)')
WINDOW = '(left, right) or (left, right, "top-left" or "bottom-right"), keys, None for no bound'
# No key is so far: what a side of a window without a bound is to the operators.
NO_BOUND = 2**62


def resolve_causal(causal, seqlen_q, seqlen_k) -> str | None:
    """None, "top-left" or "bottom-right" from what a caller may say; True needs equal lengths."""
    if causal is None or causal is False:
        return None
    if causal is True:
        if seqlen_q != seqlen_k:
            raise ValueError(
                f"causal: True with {seqlen_q} queries and {seqlen_k} keys is ambiguous; say "
                '"top-left" (query i sees keys up to i) or "bottom-right" (the last query sees '
                "all keys)")
        return "top-left"
    if causal in ALIGNMENTS:
        return causal
    raise ValueError(f'causal: got {causal!r}, expected False, True, "top-left" or "bottom-right"')


# ---------------------------------------------------------------------------------------------
# Numbers
# ---------------------------------------------------------------------------------------------

def number(name: str, value, expected: str) -> float:
    """The value as a float; TypeError for what is none."""
    if isinstance(value, (int, float)):
        return float(value)
    if not isinstance(value, (str, bytes)):
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError):
            pass
    raise TypeError(f"{name}: got {_shown(value)}, expected {expected}")


def probability(name: str, value) -> float:
    """A probability of dropping that can be computed with."""
    expected = "a probability from 0 to below 1; 0 drops nothing"
    p = number(name, value, expected)
    if not 0.0 <= p < 1.0:
        raise ValueError(f"{name}: got {p}, expected {expected}")
    return p


def softcap(value) -> float | None:
    """A cap that can be computed with; None is none."""
    if value is None:
        return None
    expected = "a finite number > 0; None leaves the scores as they are"
    cap = number("softcap", value, expected)
    if not 0.0 < cap < math.inf:
        raise ValueError(f"softcap: got {cap}, expected {expected}")
    return cap


def window(value, aligns=False) -> tuple:
    """((left, right), alignment) of a window, or (None, None); where it aligns something else, the
    alignment of one without bounds stays."""
    if value is None:
        return None, None
    try:
        left, right, *rest = value
        sides = tuple(NO_BOUND if side is None else operator.index(side)
                      for side in (left, right))
    except (TypeError, ValueError):
        sides, rest = None, ()
    if (sides is None or min(sides) < -NO_BOUND or max(sides) > NO_BOUND or len(rest) > 1
            or (rest and rest[0] not in ALIGNMENTS)):
        raise ValueError(f"window: got {_shown(value)}, expected {WINDOW}")
    if sides == (NO_BOUND, NO_BOUND) and not (aligns and rest):
        return None, None
    return sides, rest[0] if rest else None


def chunk(value):
    """A number of keys that can be computed with; None is none."""
    if value is None:
        return None
    try:
        keys = operator.index(value)
    except TypeError:
        keys = 0
    if not 0 < keys <= NO_BOUND:
        raise ValueError(f"attention_chunk: got {_shown(value)}, expected a number of keys > 0, or "
                         "None")
    return keys


def scheduler_metadata(value, ragged: bool = False):
    """None, or what get_scheduler_metadata gave, or for a ragged call schedule: another library's
    says nothing to these kernels. What is to be handed on, None where there is nothing."""
    if value is None or (isinstance(value, torch.Tensor) and value.numel() == 0):
        return None
    if ragged and isinstance(value, torch.Tensor) and value.dtype == torch.int32 and (
            value.dim() == 2):
        return value
    raise ValueError(f"scheduler_metadata: got {_shown(value)}, the schedule of another library or "
                     "plan, expected what flashlab's get_scheduler_metadata gives; call it "
                     "(flash_attn_interface has its name), or pass None")


def seed(value):
    """A seed of dropout: a tensor, which is read when the call runs, or two integers."""
    if isinstance(value, torch.Tensor):
        return value
    try:
        first, second = value
        return operator.index(first), operator.index(second)
    except (TypeError, ValueError):
        raise ValueError(f"dropout_seed: got {_shown(value)}, expected (seed, offset), two "
                         "integers, or an int64 tensor of both on q's device") from None


def flag(name: str, value) -> bool:
    """A switch; TypeError for a word, which would be true whatever it says."""
    if isinstance(value, (str, bytes)):
        raise TypeError(f"{name}: got {value!r}, expected True or False; flashlab.torch.attention "
                        "takes words")
    return bool(value)


def _shown(value) -> str:
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else f"a {type(value).__name__}"


def renamed(error: Exception, names: dict) -> Exception:
    """The error in the caller's words: its names of the arguments."""
    text = re.sub(r"^\w+", lambda at: names.get(at[0], at[0]), str(error))
    return type(error)(text)


# ---------------------------------------------------------------------------------------------
# Tensors
# ---------------------------------------------------------------------------------------------

def tensors(**named) -> None:
    """TypeError for the first argument that is not a strided torch.Tensor."""
    for name, value in named.items():
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{name}: got {type(value).__module__}.{type(value).__qualname__}, "
                            "expected a torch.Tensor; flashlab.attention takes other arrays")
        if value.is_nested or value.layout is not torch.strided:
            raise NotImplementedError(f"{name}: nested and sparse tensors are not supported yet; "
                                      "pass a padded tensor and a mask")


def in_dual_level() -> bool:
    """Whether tensors may carry a tangent of forward-mode differentiation."""
    return forward_ad._current_level >= 0


def no_tangents(*given) -> None:
    """NotImplementedError where a tensor carries a tangent: kernels would drop it."""
    if not in_dual_level():
        return
    for tensor in given:
        if tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None:
            raise NotImplementedError(FORWARD_MODE)


def no_gradients(call) -> None:
    """NotImplementedError where a tensor beside q, k and v waits for a gradient."""
    if call.mask is not None and call.mask.requires_grad:
        raise NotImplementedError(MASK_GRADIENT)
    if call.alibi_slopes is not None and call.alibi_slopes.requires_grad:
        raise NotImplementedError(SLOPES_GRADIENT)


def packed(name, tensor, parts, tokens="batch, seqlen") -> None:
    """The shape of flash-attn's packed tensors."""
    tensors(**{name: tensor})
    rank = 5 if tokens == "batch, seqlen" else 4
    if tensor.dim() != rank or tensor.shape[-3] != parts:
        raise ValueError(f"{name}: got shape {tuple(tensor.shape)}, expected [{tokens}, "
                         f"{parts}, heads, head_dim]")


def devices(device, **named) -> None:
    """ValueError for the first tensor that is not on `device`."""
    for name, tensor in named.items():
        if tensor is not None and tensor.device != device:
            raise ValueError(f"{name}: is on {tensor.device}, expected q's device {device}; move "
                             "it there")


def _check_tensor(name, tensor, dtype, device, ragged=False) -> None:
    rank, what = ((3, "[rows, heads, head_dim] beside cu_seqlens") if ragged
                  else (4, "[batch, seqlen, heads, head_dim]"))
    torch._check_value(tensor.dim() == rank, lambda: f"{name}: got {tensor.dim()} dimensions, "
                       f"expected {rank}: {what}")
    if tensor.dtype in _NARROW:
        raise NotImplementedError(f"{name}: got dtype {tensor.dtype}; attention in 8 bits is not "
                                  "supported yet, cast it to float16 or bfloat16")
    torch._check_type(tensor.dtype in DTYPES, lambda: f"{name}: got dtype {tensor.dtype}, "
                      "expected float64, float32, float16 or bfloat16")
    torch._check_type(tensor.dtype == dtype, lambda: f"{name}: got dtype {tensor.dtype}, "
                      f"expected q's {dtype}; cast it with {name}.to(q.dtype)")
    torch._check_value(tensor.device == device, lambda: f"{name}: is on {tensor.device}, "
                       f"expected q's device {device}")


def _check_mask(mask, q, k) -> None:
    torch._check_type(
        mask.dtype in (torch.bool, torch.float32, q.dtype),
        lambda: f"mask: got dtype {mask.dtype}, expected bool (True is visible), float32 or q's "
        f"{q.dtype}; a mask of 0 and 1, as attention_mask is, becomes one by mask != 0")
    torch._check_value(mask.device == q.device, lambda: f"mask: is on {mask.device}, expected "
                       f"q's device {q.device}")
    full = (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    torch._check_value(mask.dim() <= 4, lambda: f"mask: got {mask.dim()} dimensions, expected at "
                       "most 4: [batch, heads, seqlen_q, seqlen_k]")
    for got, extent in zip(reversed(mask.shape), reversed(full)):
        torch._check_value(
            got == 1 or got == extent,
            lambda: f"mask: shape {tuple(mask.shape)} does not broadcast to [batch, heads, "
            f"seqlen_q, seqlen_k] = {tuple(full)}")


def _check_slopes(slopes, q) -> None:
    torch._check_type(slopes.dtype == torch.float32, lambda: f"alibi_slopes: got dtype "
                      f"{slopes.dtype}, expected float32")
    torch._check_value(slopes.device == q.device, lambda: f"alibi_slopes: is on {slopes.device}, "
                       f"expected q's device {q.device}")
    full = (q.shape[0], q.shape[2])
    torch._check_value(
        slopes.dim() in (1, 2) and all(got in (1, extent) for got, extent in
                                       zip(reversed(slopes.shape), reversed(full))),
        lambda: f"alibi_slopes: got shape {tuple(slopes.shape)}, expected [heads] or [batch, "
        f"heads] = {tuple(full)}")


def _check_seed(seed, q) -> None:
    torch._check_type(seed.dtype == torch.int64, lambda: f"dropout_seed: got dtype {seed.dtype}, "
                      "expected int64")
    torch._check_value(seed.device == q.device, lambda: f"dropout_seed: is on {seed.device}, "
                       f"expected q's device {q.device}")
    torch._check_value(tuple(seed.shape) == (2,), lambda: f"dropout_seed: got shape "
                       f"{tuple(seed.shape)}, expected [2]: seed and offset")


def _check_lists(call, q, heads) -> None:
    for name in ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k"):
        tensor = getattr(call, name)
        if tensor is None:
            continue
        torch._check_type(tensor.dtype in (torch.int32, torch.int64), lambda: f"{name}: got dtype "
                          f"{tensor.dtype}, expected int32 or int64")
        torch._check_value(tensor.device == q.device, lambda: f"{name}: is on {tensor.device}, "
                           f"expected q's device {q.device}")
        torch._check_value(tensor.dim() == 1, lambda: f"{name}: got {tensor.dim()} dimensions, "
                           "expected 1")
    if call.sinks is not None:
        torch._check_type(call.sinks.dtype == torch.float32, lambda: "sinks: got dtype "
                          f"{call.sinks.dtype}, expected float32")
        torch._check_value(tuple(call.sinks.shape) == (heads,), lambda: "sinks: got shape "
                           f"{tuple(call.sinks.shape)}, expected [heads] = [{heads}]")
    for name, hint, lengths in (
            ("max_seqlen_q", call.max_seqlen_q, (call.cu_seqlens_q, call.seqused_q)),
            ("max_seqlen_k", call.max_seqlen_k, (call.cu_seqlens_k, call.seqused_k))):
        torch._check_value(hint is None or lengths != (None, None), lambda: f"{name}: got {hint}, "
                           "expected None without cu_seqlens or seqused of that side")


def _check_alignment(call, seqlen_q, seqlen_k) -> None:
    if seqlen_q == seqlen_k:
        return
    got = call.alignment or call.causal
    torch._check_value(
        call.attention_chunk is None or got is not None, lambda: "attention_chunk: got no "
        f"alignment with {seqlen_q} queries and {seqlen_k} keys, expected causal or window="
        '(None, None, "top-left" or "bottom-right")')
    if call.window is None:
        return
    torch._check_value(
        got is not None, lambda: f"window: got no alignment with {seqlen_q} queries and "
        f'{seqlen_k} keys, expected (left, right, "top-left" or "bottom-right")')
    torch._check_value(
        call.causal in (None, got), lambda: f'window: got "{got}" beside causal="{call.causal}", '
        "expected one alignment for both")


def options(call):
    """The call with its numbers as the operators take them; raises for what they are not."""
    if call.precision not in PRECISIONS:
        raise ValueError(f'precision: got {call.precision!r}, expected "ieee" or "tf32"')
    if call.causal is not None and call.causal not in ALIGNMENTS:
        raise ValueError(f'causal: got {call.causal!r}, expected None, "top-left" or '
                         '"bottom-right"')
    scale = call.scale
    if scale is not None:
        expected = "a finite number, or None for 1/sqrt(head_dim)"
        scale = number("scale", scale, expected)
        if not abs(scale) < math.inf:
            raise ValueError(f"scale: got {scale}, expected {expected}")
    return call._replace(scale=scale, deterministic=flag("deterministic", call.deterministic),
                         softcap=softcap(call.softcap),
                         dropout_p=probability("dropout_p", call.dropout_p))


def forward(q, k, v, call) -> None:
    """Raises what the kernels would raise for these shapes, dtypes and devices."""
    options(call)
    ragged_q, ragged_k = call.cu_seqlens_q is not None, call.cu_seqlens_k is not None
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        _check_tensor(name, tensor, q.dtype, q.device, ragged_q if name == "q" else ragged_k)
    check = torch._check_value
    heads_q, dim, heads_k = q.shape[-2], q.shape[-1], k.shape[-2]
    if not (ragged_q or ragged_k):
        check(k.shape[0] == q.shape[0],
              lambda: f"k: got batch {k.shape[0]}, expected q's {q.shape[0]}")
    check(dim > 0, lambda: "q: got head_dim 0, expected at least 1")
    check(k.shape[-1] == dim, lambda: f"k: got head_dim {k.shape[-1]}, expected q's {dim}")
    for axis, what in enumerate(("rows", "heads") if ragged_k else ("batch", "seqlen", "heads")):
        check(v.shape[axis] == k.shape[axis],
              lambda: f"v: got {what} {v.shape[axis]}, expected k's {k.shape[axis]}")
    check(v.shape[-1] > 0, lambda: "v: got head_dim 0, expected at least 1")
    check(heads_q == 0 or (heads_k > 0 and heads_q % heads_k == 0),
          lambda: f"k: got {heads_k} heads, expected a number that divides q's {heads_q}")
    _check_lists(call, q, heads_q)
    if call.has_lengths():
        check(call.window is None or (call.alignment or call.causal) is not None,
              lambda: "window: got no alignment with sequences of any lengths, expected (left, "
              'right, "top-left" or "bottom-right")')
        check(call.attention_chunk is None or (call.alignment or call.causal) is not None,
              lambda: "attention_chunk: got no alignment with sequences of any lengths, expected "
              'causal or window=(None, None, "top-left" or "bottom-right")')
    if call.mask is not None and not (ragged_q or ragged_k):
        _check_mask(call.mask, q, k)
    if call.alibi_slopes is not None and not ragged_q:
        _check_slopes(call.alibi_slopes, q)
    if call.dropout_seed is not None:
        _check_seed(call.dropout_seed, q)
    if not call.has_lengths():
        _check_alignment(call, q.shape[1], k.shape[1])
    if call.precision == "tf32" and q.dtype != torch.float32:
        raise ValueError(f'precision: got "tf32" with {q.dtype} tensors, expected "ieee"; tf32 is '
                         "how float32 tensors may be multiplied")
