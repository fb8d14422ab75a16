"""The array frameworks as the extension sees them: how an array is read, made, copied, ordered.

One adapter per framework. The extension asks `adapter_of` once per array type; what PyTorch offers
through DLPack's C exchange (`__dlpack_c_exchange_api__`) it then asks without coming here.

Source: DLPack, https://dmlc.github.io/dlpack/latest/python_spec.html
"""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable, Tuple

# What the first default stream of a device is called in DLPack's Python protocol.
_LEGACY_STREAM = 1
_NO_SYNCHRONISATION = -1
_VERSION = (1, 3)
_CUDA_DEVICES = (2, 13)  # DLPack: device memory, managed memory

Shape = Tuple[int, ...]
# Address, shape, strides in bytes, dtype, read-only, CUDA ordinal or -1 for the CPU.
Description = Tuple[int, Shape, Shape, str, bool, int]


class Adapter:
    """What every framework is asked.

    torch        whether it is PyTorch, which may have more to do than to run kernels
    exchange     whether a type's C exchange may be used
    synchronous  whether the host has to wait for results, because the framework cannot be told of
                 the stream that writes them
    """

    torch = False
    exchange = False
    synchronous = False

    def gate_of(self, kind: type) -> Any:
        """What the extension asks before it runs flashlab.attention itself; None: nothing."""
        del kind

    def export(self, array: Any) -> Any:
        """How to read the array: a DLPack capsule, or a description where DLPack falls short."""
        return _capsule(array)

    def factory(self, like: Any, shape: Shape, dtype: str) -> Callable[[], Any]:
        """A function that makes uninitialised, row-major arrays where `like` is."""
        raise NotImplementedError

    def dense(self, array: Any) -> Any:
        """A row-major copy."""
        raise NotImplementedError


    def stream(self, index: int) -> int:
        """The caller's current stream of the CUDA device `index`; 0 is the default one."""
        del index
        return 0


def _capsule(array: Any, **arguments: Any) -> Any:
    """`array.__dlpack__`, in the newest form that the framework knows."""
    try:
        return array.__dlpack__(max_version=_VERSION, **arguments)
    except TypeError as error:
        if "max_version" not in str(error):
            raise
    return array.__dlpack__(**arguments)


_NAMES = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16",
                "bool": "bool"}


def _name_of(dtype: Any) -> str:
    """Our name of a NumPy dtype, or NumPy's of one that is refused."""
    name = _NAMES.get(dtype.name, dtype.name)
    return name if dtype.isnative else name + " of the other byte order"


class Numpy(Adapter):
    """NumPy, read by its own interface: DLPack has no bfloat16 there, nor, before NumPy 2.1,
    arrays that are read-only."""

    def __init__(self) -> None:
        import numpy
        self._numpy = numpy
        self._dtypes = {ours: numpy.dtype(theirs) for theirs, ours in _NAMES.items()
                        if theirs != "bfloat16"}
        self._dtypes["uint8"] = numpy.dtype("uint8")

    def export(self, array: Any) -> Description:
        if isinstance(array, self._numpy.ma.MaskedArray):
            raise TypeError("got a numpy.ma.MaskedArray, whose mask would be ignored; pass its "
                            "data, and mask=")
        address, read_only = array.__array_interface__["data"]
        return address, array.shape, array.strides, _name_of(array.dtype), read_only, -1

    def factory(self, like: Any, shape: Shape, dtype: str) -> Callable[[], Any]:
        # NumPy itself has no bfloat16: it came with an array of ml_dtypes.
        kind = like.dtype if dtype == "bf16" else self._dtypes[dtype]
        return functools.partial(self._numpy.empty, shape, kind)

    def dense(self, array: Any) -> Any:
        return self._numpy.array(array, order="C", copy=True, subok=False)



def _in_dual_level(torch: Any) -> Callable[[], bool]:
    forward_ad = torch.autograd.forward_ad
    forward_ad._current_level  # AttributeError where torch has renamed it
    return lambda: forward_ad._current_level >= 0


class Torch(Adapter):
    """PyTorch; before 2.10, which has no C exchange, through its Python interface."""

    torch = True
    exchange = True

    def __init__(self) -> None:
        import torch
        self._torch = torch
        # The C exchange shows the memory of a view whose sign torch keeps aside.
        self.is_negated = torch.Tensor.is_neg
        # From now on flashlab.attention need not look whether there is a PyTorch.
        sys.modules["flashlab"]._is_compiling = torch.compiler.is_compiling
        self._dtypes = {"fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16,
                        "bf16": torch.bfloat16, "uint8": torch.uint8}

    def gate_of(self, kind: type) -> Any:
        """Functions of no argument.

        The first five answer something true when flashlab.torch.attention has to take the call: a
        dispatch mode, a torch.func transform, jit.trace, autocast, a level of forward-mode
        differentiation. Then torch's deterministic switch, and whether gradients are recorded.
        None for subclasses, whose operators are their own, and where this PyTorch lacks one of
        the questions.
        """
        torch = self._torch
        if kind not in (torch.Tensor, torch.nn.Parameter):
            return None
        try:
            return (torch._C._len_torch_dispatch_stack,
                    torch._C._functorch.peek_interpreter_stack, torch._C._get_tracing_state,
                    torch._C._is_any_autocast_enabled, _in_dual_level(torch),
                    torch._C._get_deterministic_algorithms, torch.is_grad_enabled)
        except AttributeError:
            return None

    def export(self, array: Any) -> Any:
        array = array.detach().resolve_neg()
        if array.is_cuda:
            return _capsule(array, stream=_NO_SYNCHRONISATION)
        return _capsule(array)

    def factory(self, like: Any, shape: Shape, dtype: str) -> Callable[[], Any]:
        # Not by the exchange's allocator: a tensor that torch made itself can be resized, and
        # honours Tensor.record_stream. empty_like of one repeated element costs 1 us less on the
        # host than empty with its arguments (H200, torch 2.11).
        with self._torch.inference_mode(False):
            model = self._torch.empty(1, device=like.device, dtype=self._dtypes[dtype])
            model = model.expand(shape)
        # Only its description is used. Its memory would stay a part of whatever pool (a CUDA
        # graph's, for example) happens to be in use at a shape's first call.
        model.untyped_storage().resize_(0)
        if 0 in shape:
            return functools.partial(self._torch.empty_like, model,
                                     memory_format=self._torch.contiguous_format)
        return functools.partial(self._torch.empty_like, model)

    def factory_heads_first(self, like: Any, shape: Shape, dtype: str) -> Callable[[], Any]:
        """As factory, seen with dimensions 1 and 2 exchanged: how torch's own
        scaled_dot_product_attention lays out its results."""
        with self._torch.inference_mode(False):
            model = self._torch.empty(shape, device=like.device, dtype=self._dtypes[dtype])
            model = model.transpose(1, 2)
        model.untyped_storage().resize_(0)
        return functools.partial(self._torch.empty_like, model)

    def dense(self, array: Any) -> Any:
        return array.detach().clone(memory_format=self._torch.contiguous_format)

    def stream(self, index: int) -> int:
        return self._torch.cuda.current_stream(index).cuda_stream


class Cupy(Adapter):
    """CuPy: its current stream and its memory pool, of the array's device.

    Read by its own attributes: its DLPack export has no negative strides.
    """

    def __init__(self) -> None:
        import cupy
        self._cupy = cupy
        self._dtypes = {"fp64": "float64", "fp32": "float32", "fp16": "float16", "uint8": "uint8"}

    def export(self, array: Any) -> Description:
        return (array.data.ptr, array.shape, array.strides, _name_of(array.dtype), False,
                array.device.id)

    def factory(self, like: Any, shape: Shape, dtype: str) -> Callable[[], Any]:
        kind = like.dtype if dtype == "bf16" else self._dtypes[dtype]
        device = like.device

        def make() -> Any:
            with device:
                return self._cupy.empty(shape, kind)
        return make

    def dense(self, array: Any) -> Any:
        with array.device:
            return array.copy(order="C")


    def stream(self, index: int) -> int:
        with self._cupy.cuda.Device(index):
            return self._cupy.cuda.get_current_stream().ptr


class ArrayApi(Adapter):
    """JAX, and whatever else speaks DLPack and the array API standard.

    Such a framework shows no stream of its own. Inputs are exported for the default stream, which
    the framework makes wait for them; the results are written there, and the host waits for that
    stream before the framework gets them.
    """

    synchronous = True
    _DTYPES = {"fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16",
               "uint8": "uint8"}

    def export(self, array: Any) -> Any:
        if array.__dlpack_device__()[0] in _CUDA_DEVICES:
            return _capsule(array, stream=_LEGACY_STREAM)
        return _capsule(array)

    def factory(self, like: Any, shape: Shape, dtype: str) -> Callable[[], Any]:
        namespace = like.__array_namespace__()
        kind = like.dtype if dtype == "bf16" else getattr(namespace, self._DTYPES[dtype])
        return functools.partial(namespace.empty, shape, dtype=kind, device=like.device)

    def dense(self, array: Any) -> Any:
        return array.__array_namespace__().asarray(array, copy=True)



def _is_tracer(kind: type) -> bool:
    core = getattr(sys.modules.get("jax"), "core", None)
    tracer = getattr(core, "Tracer", None)
    return tracer is not None and issubclass(kind, tracer)


@functools.lru_cache(maxsize=None)
def _adapter(name: str) -> Adapter:
    return {"numpy": Numpy, "torch": Torch, "cupy": Cupy, "array api": ArrayApi}[name]()


def adapter_of(kind: type) -> Adapter | None:
    """The adapter of an array type; None when it is no array.

    Raises TypeError for what looks like an array and has no memory: a tracer of JAX.
    """
    if _is_tracer(kind):
        raise TypeError(
            f"got {kind.__name__}, which has no memory yet; call flashlab outside jax.jit and "
            "jax.grad, or through jax.pure_callback")
    for base in kind.__mro__:
        root = base.__module__.partition(".")[0]
        if (root, base.__name__) in (("numpy", "ndarray"), ("torch", "Tensor"),
                                     ("cupy", "ndarray")):
            return _adapter(root)
    if hasattr(kind, "__dlpack__") and hasattr(kind, "__array_namespace__"):
        return _adapter("array api")
    return None
