"""Implementations behind one interface: ours, PyTorch's, and other people's.

A contestant gets [batch, seqlen, heads, head_dim] tensors, of a ragged batch [rows, heads,
head_dim], and turns them into the layout that it likes best before anything is timed. `forward` and
`backward` are what the clock sees.
"""

import contextlib
import importlib
import inspect
import warnings

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from flashlab.peers.problem import Unsupported


class Contestant:
    """One implementation on one problem."""

    def __init__(self, name, problem, tensors):
        self.name, self.problem, self.tensors = name, problem, tensors

    def setting(self):
        """Entered around calls, outside of what is timed."""
        return contextlib.nullcontext()

    def forward(self):
        """Timed. Keeps nothing for backward."""
        raise NotImplementedError

    def output(self, result):
        """o of what `forward` gave, [batch, seqlen, heads, head_dim_v]."""
        raise NotImplementedError

    def prepare_backward(self):
        """The forward pass whose gradient `backward` computes."""
        raise NotImplementedError

    def forget(self):
        """Gives back what `prepare_backward` keeps."""

    def backward(self):
        """Timed; may be called many times."""
        raise NotImplementedError

    def gradients(self, result):
        """dq, dk, dv of what `backward` gave, in the layout of q, k, v."""
        raise NotImplementedError

    def plan(self):
        """What ran, in words."""
        return ""


class Ours(Contestant):
    """FlashLab's kernels through flashlab._core."""

    def __init__(self, name, problem, tensors):
        super().__init__(name, problem, tensors)
        self._core = importlib.import_module("flashlab._core")
        self._options = {"causal": problem.causal, "scale": problem.scale,
                         "precision": "tf32" if problem.dtype == "tf32" else "ieee",
                         "implementation": name}
        if problem.lengths is not None:
            self._options.update(cu_seqlens_q=problem.offsets(0, tensors.q.device),
                                 cu_seqlens_k=problem.offsets(1, tensors.q.device),
                                 max_seqlen_q=problem.seqlen_q, max_seqlen_k=problem.seqlen_k)
        self._o = self._lse = None

    def _forward(self, return_lse):
        t = self.tensors
        return self._core.forward(t.q, t.k, t.v, return_lse=return_lse, **self._options)

    def forward(self):
        return self._forward(return_lse=True)

    def output(self, result):
        return result[0]

    def prepare_backward(self):
        self._o, self._lse = self._forward(return_lse=True)

    def forget(self):
        self._o = self._lse = None

    def backward(self):
        t = self.tensors
        return self._core.backward(t.d_o, t.q, t.k, t.v, self._o, self._lse, **self._options)

    def gradients(self, result):
        return result

    def plan(self):
        return f"flashlab._core, {self.name}"


class Differentiable(Contestant):
    """One whose backward pass is PyTorch's autograd."""

    heads_first = False   # [batch, heads, seqlen, head_dim] views of our layout
    contiguous = False    # ... copied
    takes_ragged = False

    def __init__(self, name, problem, tensors):
        super().__init__(name, problem, tensors)
        if problem.lengths is not None and not self.takes_ragged:
            raise Unsupported(f"{name} takes sequences of one length")
        self.refuse()
        self._inputs = tuple(self._native(x) for x in (tensors.q, tensors.k, tensors.v))
        # The same memory: what a forward pass alone reads asks for no gradient.
        self._leaves = tuple(x.detach().requires_grad_() for x in self._inputs)
        self._d_o = None if tensors.d_o is None else self._native(tensors.d_o)
        self._o = None

    def refuse(self):
        """Raises Unsupported for what it cannot do, where it would not say so itself."""

    def attend(self, q, k, v):
        """The call, on tensors in its own layout."""
        raise NotImplementedError

    def _native(self, tensor):
        if not self.heads_first:
            return tensor
        if self.problem.lengths is not None:
            tensor = tensor[None]  # one batch of all rows
        tensor = tensor.transpose(1, 2)
        return tensor.contiguous() if self.contiguous else tensor

    def _ours(self, tensor):
        if not self.heads_first:
            return tensor
        return tensor.transpose(1, 2)[0 if self.problem.lengths is not None else slice(None)]

    def forward(self):
        with torch.no_grad():
            return self.attend(*self._inputs)

    def output(self, result):
        return self._ours(result)

    def prepare_backward(self):
        self._o = self.attend(*self._leaves)

    def forget(self):
        self._o = None

    def backward(self):
        return torch.autograd.grad(self._o, self._leaves, self._d_o, retain_graph=True)

    def gradients(self, result):
        return tuple(self._ours(gradient) for gradient in result)


class Sdpa(Differentiable):
    """torch.nn.functional.scaled_dot_product_attention, held to one of its backends."""

    heads_first = True
    BACKENDS = {"torch.cudnn": SDPBackend.CUDNN_ATTENTION,
                "torch.flash": SDPBackend.FLASH_ATTENTION,
                "torch.efficient": SDPBackend.EFFICIENT_ATTENTION,
                "torch.math": SDPBackend.MATH}

    def __init__(self, name, problem, tensors):
        # Its matrix products want whole matrices; the fused kernels take strides.
        self.contiguous = name == "torch.math"
        super().__init__(name, problem, tensors)
        self._backend = self.BACKENDS[name]
        self._arguments = {"scale": problem.scale}
        if problem.group > 1:  # older versions know heads of one number only
            self._arguments["enable_gqa"] = True
        if problem.causal == "bottom-right" and problem.seqlen_q != problem.seqlen_k:
            self._arguments["attn_mask"] = self._bottom_right(tensors.q.device)
        else:
            # PyTorch's is_causal is top-left.
            self._arguments["is_causal"] = problem.causal is not None

    def refuse(self):
        on_gpu = self.tensors.q.device.type == "cuda"
        if self.name in ("torch.cudnn", "torch.efficient") and not on_gpu:
            raise Unsupported(f"{self.name} runs on CUDA only")

    def _bottom_right(self, device):
        p = self.problem
        if self.name in ("torch.flash", "torch.efficient") and device.type == "cuda":
            from torch.nn.attention.bias import causal_lower_right
            return causal_lower_right(p.seqlen_q, p.seqlen_k)
        return p.visible(torch.arange(p.seqlen_q, device=device), 0, device)

    def setting(self):
        return sdpa_kernel(self._backend)

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, **self._arguments)

    def plan(self):
        mask = self._arguments.get("attn_mask")
        kind = "" if mask is None else f", attn_mask of {type(mask).__name__}"
        return f"scaled_dot_product_attention, {self._backend.name}{kind}"


class Flex(Differentiable):
    """FlexAttention, compiled for the problem; ragged sequences by a block mask of documents."""

    heads_first = True
    contiguous = True
    takes_ragged = True

    def __init__(self, name, problem, tensors):
        super().__init__(name, problem, tensors)
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
        # A function compiled for many problems would reach a limit and run uncompiled.
        torch._dynamo.reset()  # pylint: disable=protected-access
        self._call = torch.compile(flex_attention, dynamic=False)
        self._block_mask = None
        mask = self._mask(tensors.q.device)
        if mask is not None:
            rows_q, rows_k = (problem.shapes()[name][-3] for name in ("q", "k"))
            self._block_mask = create_block_mask(mask, None, None, rows_q, rows_k,
                                                 device=tensors.q.device)

    def _mask(self, device):
        p = self.problem
        if p.lengths is None:
            shift = p.first_diagonal
            return None if p.causal is None else lambda b, h, i, j: j <= i + shift
        # By row: its sequence, and what makes a position among all of one in the sequence.
        ids, starts = [], []
        for side in (0, 1):
            counts = torch.tensor([pair[side] for pair in p.lengths], device=device)
            ids.append(torch.repeat_interleave(torch.arange(p.batch, device=device), counts))
            starts.append(torch.repeat_interleave(p.offsets(side, device)[:-1].long(), counts))
        shifts = torch.tensor([p.diagonal_of(*pair) for pair in p.lengths], device=device)
        shift = shifts[ids[0]] - starts[0]
        if p.causal is None:
            return lambda b, h, i, j: ids[0][i] == ids[1][j]
        return lambda b, h, i, j: ((ids[0][i] == ids[1][j]) &
                                   (j - starts[1][j] <= i + shift[i]))

    def attend(self, q, k, v):
        return self._call(q, k, v, block_mask=self._block_mask,
                          scale=self.problem.scale, enable_gqa=self.problem.group > 1)

    def plan(self):
        return "flex_attention, torch.compile" + (", block mask" if self._block_mask else "")


class Varlen(Differentiable):
    """torch.nn.attention.varlen.varlen_attn, PyTorch's own call for ragged batches."""

    takes_ragged = True

    def __init__(self, name, problem, tensors):
        super().__init__(name, problem, tensors)
        try:
            self._call = importlib.import_module("torch.nn.attention.varlen").varlen_attn
        except ImportError:
            raise Unsupported(f"torch {torch.__version__} has no varlen_attn") from None
        known = inspect.signature(self._call).parameters
        device = tensors.q.device
        self._arguments = {"cu_seq_q": problem.offsets(0, device),
                           "cu_seq_k": problem.offsets(1, device),
                           "max_q": problem.seqlen_q, "max_k": problem.seqlen_k}
        if problem.causal is not None and "window_size" in known:
            self._arguments["window_size"] = (-1, 0)
        elif problem.causal is not None:
            self._arguments["is_causal"] = True
        if problem.scale is not None:
            self._arguments["scale"] = problem.scale
        # Versions that do not name it refuse groups, or take them without asking.
        if problem.group > 1 and "enable_gqa" in known:
            self._arguments["enable_gqa"] = True

    def refuse(self):
        p = self.problem
        if p.lengths is None:
            raise Unsupported("torch.varlen is measured on ragged batches; --lengths makes one")
        if self.tensors.q.device.type != "cuda":
            raise Unsupported("torch.varlen runs on CUDA only")
        if p.dtype not in ("fp16", "bf16"):
            raise Unsupported(f"torch.varlen takes fp16 and bf16, not {p.dtype}")
        if p.causal == "top-left" and any(queries != keys for queries, keys in p.lengths):
            raise Unsupported("torch.varlen's causal is bottom-right only")

    def attend(self, q, k, v):
        return self._call(q, k, v, **self._arguments)

    def plan(self):
        return "varlen_attn"


class FlashAttn(Differentiable):
    """The flash-attn package."""

    takes_ragged = True

    def __init__(self, name, problem, tensors):
        super().__init__(name, problem, tensors)
        package = importlib.import_module("flash_attn")
        self._arguments = {"softmax_scale": problem.scale, "causal": problem.causal is not None}
        self._call = package.flash_attn_func
        if problem.lengths is not None:
            self._call = package.flash_attn_varlen_func
            self._arguments.update(cu_seqlens_q=problem.offsets(0, tensors.q.device),
                                   cu_seqlens_k=problem.offsets(1, tensors.q.device),
                                   max_seqlen_q=problem.seqlen_q, max_seqlen_k=problem.seqlen_k)

    def refuse(self):
        p = self.problem
        if self.tensors.q.device.type != "cuda":
            raise Unsupported("flash-attn runs on CUDA only")
        if p.dtype not in ("fp16", "bf16"):
            raise Unsupported(f"flash-attn takes fp16 and bf16, not {p.dtype}")
        if p.causal == "top-left" and any(queries != keys for queries, keys in p.sequences()):
            raise Unsupported("flash-attn's causal is bottom-right only")
        if p.head_dim > 256 or p.head_dim_v != p.head_dim:
            raise Unsupported("flash-attn takes equal head dims of q, k and v, up to 256; "
                              f"this is {p.head_dim} and {p.head_dim_v}")

    def attend(self, q, k, v):
        return self._call(q, k, v, **self._arguments)

    def plan(self):
        return self._call.__name__


class Xformers(Differentiable):
    """memory_efficient_attention of the xformers package."""

    def __init__(self, name, problem, tensors):
        super().__init__(name, problem, tensors)
        ops = importlib.import_module("xformers.ops")
        self._call = ops.memory_efficient_attention
        kinds = {None: None, "top-left": ops.fmha.attn_bias.LowerTriangularMask,
                 "bottom-right": ops.fmha.attn_bias.LowerTriangularFromBottomRightMask}
        kind = kinds[problem.causal]
        self._bias = None if kind is None else kind()

    def refuse(self):
        if self.tensors.q.device.type != "cuda":
            raise Unsupported("xformers runs on CUDA only")
        if self.problem.dtype == "fp64":
            raise Unsupported("xformers takes fp32, fp16 and bf16, not fp64")

    def attend(self, q, k, v):
        p = self.problem
        if p.group > 1:  # [batch, seqlen, groups, heads of a group, head_dim]
            q = q.unflatten(2, (p.heads_k, p.group))
            k, v = (x.unsqueeze(3).expand(-1, -1, -1, p.group, -1) for x in (k, v))
        o = self._call(q, k, v, attn_bias=self._bias, scale=p.scale)
        return o.flatten(2, 3) if p.group > 1 else o

    def plan(self):
        return "memory_efficient_attention"


OPTIONAL = {"flash-attn": ("flash_attn", FlashAttn), "xformers": ("xformers", Xformers)}


def version_of(module):
    """The version of an optional package, or None where it cannot be imported."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return str(importlib.import_module(module).__version__)
    except Exception:  # pylint: disable=broad-except  # a broken one raises anything
        return None


def make(name, problem, tensors):
    """The contestant of that name: of the lists above, else an implementation of ours."""
    if name in Sdpa.BACKENDS:
        return Sdpa(name, problem, tensors)
    if name in ("torch.flex", "torch.varlen"):
        return (Flex if name == "torch.flex" else Varlen)(name, problem, tensors)
    if name in OPTIONAL:
        module, kind = OPTIONAL[name]
        if version_of(module) is None:
            raise Unsupported(f"{name} is not installed in this Python: pip install {name}")
        return kind(name, problem, tensors)
    return Ours(name, problem, tensors)
