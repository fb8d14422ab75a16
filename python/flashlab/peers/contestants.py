"""Implementations behind one interface: ours, PyTorch's, and other people's.

A contestant gets [batch, seqlen, heads, head_dim] tensors, of a ragged batch [rows, heads,
head_dim], and turns them into the layout that it likes best before anything is timed. `forward` and
`backward` are what the clock sees.
"""

import contextlib
import importlib
import inspect
import itertools
import warnings
from importlib import metadata

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
        device = tensors.q.device
        for side, letter in enumerate("qk"):
            if problem.ragged(side):
                self._options[f"cu_seqlens_{letter}"] = problem.offsets(side, device)
                self._options[f"max_seqlen_{letter}"] = (problem.seqlen_q, problem.seqlen_k)[side]
        if problem.cache is not None:
            self._options.update(seqused_k=problem.key_lengths(device),
                                 max_seqlen_k=problem.seqlen_k)
            if problem.cache.page_size:
                self._options["block_table"] = problem.block_table(device)
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
        if problem.cache is not None and (problem.cache.page_size or not problem.one_length()):
            raise Unsupported(f"{name} takes contiguous caches that are full")
        if problem.cache is None and problem.lengths is not None and not self.takes_ragged:
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
        if self.problem.ragged(0):
            tensor = tensor[None]  # one batch of all rows
        tensor = tensor.transpose(1, 2)
        return tensor.contiguous() if self.contiguous else tensor

    def _ours(self, tensor):
        if not self.heads_first:
            return tensor
        return tensor.transpose(1, 2)[0 if self.problem.ragged(0) else slice(None)]

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
        # A single query at the end sees every key.
        if problem.causal == "bottom-right" and problem.seqlen_q == 1:
            self._arguments["is_causal"] = False
        elif problem.causal == "bottom-right" and problem.seqlen_q != problem.seqlen_k:
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
        if not p.ragged(0):
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
        if not p.ragged(1):
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
    """The flash-attn package, and the same calls of its successors."""

    takes_ragged = True
    MODULE = "flash_attn"
    MOST = 256  # head dim

    def __init__(self, name, problem, tensors):
        super().__init__(name, problem, tensors)
        package = importlib.import_module(self.MODULE)
        self._arguments = {"softmax_scale": problem.scale, "causal": problem.causal is not None}
        self._call = package.flash_attn_func
        if problem.ragged(0):
            self._call = package.flash_attn_varlen_func
            self._arguments.update(cu_seqlens_q=problem.offsets(0, tensors.q.device),
                                   cu_seqlens_k=problem.offsets(1, tensors.q.device),
                                   max_seqlen_q=problem.seqlen_q, max_seqlen_k=problem.seqlen_k)

    def refuse(self):
        p = self.problem
        if self.tensors.q.device.type != "cuda":
            raise Unsupported(f"{self.name} runs on CUDA only")
        if p.dtype not in ("fp16", "bf16"):
            raise Unsupported(f"{self.name} takes fp16 and bf16, not {p.dtype}")
        if p.causal == "top-left" and any(queries != keys for queries, keys in p.sequences()):
            raise Unsupported(f"{self.name}'s causal is bottom-right only")
        if p.head_dim > self.MOST or p.head_dim_v != p.head_dim:
            raise Unsupported(f"{self.name} takes equal head dims of q, k and v, up to {self.MOST};"
                              f" this is {p.head_dim} and {p.head_dim_v}")

    def attend(self, q, k, v):
        o = self._call(q, k, v, **self._arguments)
        return o[0] if isinstance(o, tuple) else o

    def plan(self):
        return self._call.__name__


class FlashAttn3(FlashAttn):
    """FlashAttention-3, by any of the names that its module has had."""

    MODULE = "fa3_fwd_interface"


class FlashAttn4(FlashAttn):
    """FlashAttention-4, which is written in CuTe's DSL and compiled at the first call."""

    MODULE = "flash_attn.cute"


class OverCache(Contestant):
    """One that computes no gradients through a cache."""

    def prepare_backward(self):
        raise Unsupported(f"{self.name} has no gradients through a cache")

    def output(self, result):
        return result[0] if isinstance(result, tuple) else result


class KvCache(OverCache):
    """flash_attn_with_kvcache of flash-attn and of FlashAttention-3."""

    TABLE = {"flash-attn": "block_table", "flash-attn-3": "page_table"}

    def __init__(self, name, problem, tensors):
        super().__init__(name, problem, tensors)
        kind = OPTIONAL[name][1]
        FlashAttn.refuse(self)
        third = name == "flash-attn-3"
        if not problem.cache.dense_queries and not third:
            raise Unsupported(f"{name} takes as many queries of every sequence")
        self._call = importlib.import_module(kind.MODULE).flash_attn_with_kvcache
        device = tensors.q.device
        self._arguments = {"cache_seqlens": problem.key_lengths(device),
                           "softmax_scale": problem.scale, "causal": problem.causal is not None}
        if problem.cache.page_size:
            self._arguments[self.TABLE[name]] = problem.block_table(device)
        if not problem.cache.dense_queries:
            self._arguments.update(cu_seqlens_q=problem.offsets(0, device),
                                   max_seqlen_q=problem.seqlen_q)

    MOST = FlashAttn.MOST

    def forward(self):
        t = self.tensors
        return self._call(t.q, t.k, t.v, **self._arguments)

    def plan(self):
        return "flash_attn_with_kvcache"


class FlashInfer(OverCache):
    """FlashInfer's wrappers of paged caches; what plan() does on the host is not timed."""

    def __init__(self, name, problem, tensors):
        super().__init__(name, problem, tensors)
        p, device = problem, tensors.q.device
        if p.cache is None or not p.cache.page_size:
            raise Unsupported("flashinfer is measured on paged caches; --page-size makes one")
        if p.head_dim_v != p.head_dim or p.dtype not in ("fp16", "bf16"):
            raise Unsupported("flashinfer is measured with equal head dims in fp16 and bf16")
        if p.causal == "top-left":
            raise Unsupported("flashinfer's causal is bottom-right only")
        package = importlib.import_module(self.MODULE)
        used = [-(-keys // p.cache.page_size) for _, keys in p.lengths]
        table = p.block_table(device)
        indices = torch.cat([table[n, :count] for n, count in enumerate(used)])
        ends = torch.tensor([0, *itertools.accumulate(used)], dtype=torch.int32, device=device)
        last = [keys - (count - 1) * p.cache.page_size if count else 0
                for (_, keys), count in zip(p.lengths, used)]
        last = torch.tensor(last, dtype=torch.int32, device=device)
        heads = (p.heads_q, p.heads_k, p.head_dim, p.cache.page_size)
        types = {"q_data_type": p.torch_dtype, "kv_data_type": p.torch_dtype, "sm_scale": p.factor}
        self._space = torch.empty(256 << 20, dtype=torch.uint8, device=device)
        if p.seqlen_q == 1 and p.cache.dense_queries:
            self._wrapper = package.BatchDecodeWithPagedKVCacheWrapper(
                self._space, "NHD", use_tensor_cores=p.group > 1)
            self._wrapper.plan(ends, indices, last, *heads, **types)
        else:
            queries = [0, *itertools.accumulate(count for count, _ in p.lengths)]
            queries = torch.tensor(queries, dtype=torch.int32, device=device)
            self._wrapper = package.BatchPrefillWithPagedKVCacheWrapper(self._space, "NHD")
            self._wrapper.plan(queries, ends, indices, last, *heads,
                               causal=p.causal is not None, **types)
        self._q = tensors.q.flatten(0, 1) if p.cache.dense_queries else tensors.q

    MODULE = "flashinfer"

    def forward(self):
        return self._wrapper.run(self._q, (self.tensors.k, self.tensors.v))

    def output(self, result):
        return result.view(self.problem.shapes()["o"])

    def plan(self):
        return type(self._wrapper).__name__


class Xformers(Differentiable):
    """memory_efficient_attention of the xformers package."""

    MODULE = "xformers"

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


# The package that is installed, and what runs it.
OPTIONAL = {"flash-attn": ("flash-attn", FlashAttn), "xformers": ("xformers", Xformers),
            "flash-attn-3": ("fa3-fwd", FlashAttn3), "flash-attn-4": ("flash-attn-4", FlashAttn4),
            "flashinfer": ("flashinfer-python", FlashInfer)}


def version_of(name):
    """The version of an optional package, or None where it cannot be imported."""
    package, kind = OPTIONAL[name]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = importlib.import_module(kind.MODULE)
            own = getattr(module, "__version__", None)
            return str(own or metadata.version(package))
    except Exception:  # pylint: disable=broad-except  # a broken one raises anything
        return None


def make(name, problem, tensors):
    """The contestant of that name: of the lists above, else an implementation of ours."""
    if name in Sdpa.BACKENDS:
        return Sdpa(name, problem, tensors)
    if name in ("torch.flex", "torch.varlen"):
        return (Flex if name == "torch.flex" else Varlen)(name, problem, tensors)
    if name in OPTIONAL:
        package, kind = OPTIONAL[name]
        if version_of(name) is None:
            raise Unsupported(f"{name} is not installed in this Python: pip install {package}")
        if problem.cache is not None and name in KvCache.TABLE:
            kind = KvCache
        return kind(name, problem, tensors)
    return Ours(name, problem, tensors)
