"""The ranks of a run as Python sees them: arrays exchanged between processes."""

from __future__ import annotations

import ctypes
import itertools
import pickle
import sys
import weakref
from typing import Any, List, Optional, Tuple, TypeVar

from flashlab import _core

Array = TypeVar("Array")

_numbers = itertools.count()
_SUMS = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


class Communicator:
    """Processes that exchange arrays in memory: sums, gathers, broadcasts.

    Ranks       this process is one, as its starter says: flashlab launch, torchrun, mpirun, srun.
                Without a starter it is a group of one. All ranks of a group call the same functions
                in the same order, so also this constructor
    Arrays      numpy.ndarray, CPU tensors of PyTorch, what else numpy.asarray takes; dense, of any
                type, equal in shape and type on all ranks. Results are of the caller's framework;
                out= takes one to write, which may be the argument itself where that is said
    Sums        of float64, float32, float16, bfloat16: a binary tree over ranks,
                ((0 + 1) + (2 + 3)) + 4, in float32 (float64), rounded once
    transport   "shared" (memory of this host) or "mpi". Ranks of several hosts meet by sockets,
                which carry the bytes, too, unless "mpi" does
    timeout     seconds that a rank may keep the others waiting
    Errors      ValueError (shapes, ranks that disagree about size), TypeError (types), RuntimeError
                when a rank is gone, does not come in time, or calls something else: it is named,
                with what it called, and every later call fails alike. NotImplementedError for
                arrays of a GPU: those are torch.distributed's
    Threads     any; calls run one after the other and let other Python threads go on
    close()     leaves the group; so does the end of the object or of the process
    """

    def __init__(self, *, transport: str = "shared", timeout: float = 120.0) -> None:
        if transport not in ("shared", "mpi"):
            raise ValueError(f"transport: got {transport!r}, expected \"shared\" or \"mpi\"")
        self._ranks = _core.Ranks(f"python-{next(_numbers)}", transport, float(timeout))
        # Ranks leave in good order, also where the interpreter ends first.
        self.close = weakref.finalize(self, self._ranks.close)

    @property
    def rank(self) -> int:
        """Of this process, from 0."""
        return self._ranks.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self._ranks.size

    @property
    def transport(self) -> str:
        """What carries the bytes."""
        return self._ranks.transport

    def __repr__(self) -> str:
        return f"<flashlab.Communicator rank {self.rank} of {self.size}, {self.transport}>"

    def all_reduce(self, array: Array, *, out: Optional[Array] = None, name: str = "") -> Array:
        """The sum of all ranks' arrays. `out` may be `array`."""
        given, shape = _View(array, "array"), _shape(array)
        out, into = _result(array, shape, out)
        self._run("all-reduce", given, into, given.bytes, name=name, sums=True)
        return _returned(array, out)

    def reduce_scatter(self, array: Array, *, out: Optional[Array] = None,
                       name: str = "") -> Array:
        """This rank's part, array[rank n : (rank + 1) n], of the sum of all ranks' arrays, which
        have `size` n rows."""
        given, shape = _View(array, "array"), self._parts(array)
        out, into = _result(array, shape, out)
        self._run("reduce-scatter", given, into, into.bytes, name=name, sums=True)
        return _returned(array, out)

    def all_gather(self, array: Array, *, out: Optional[Array] = None, name: str = "") -> Array:
        """All ranks' arrays, one behind the other by rows."""
        given, shape = _View(array, "array"), _shape(array)
        out, into = _result(array, (self.size * (shape[0] if shape else 1), *shape[1:]), out)
        self._run("all-gather", given, into, given.bytes, name=name)
        return _returned(array, out)

    def all_to_all(self, array: Array, *, out: Optional[Array] = None, name: str = "") -> Array:
        """Part `rank` of every rank's array, in order of ranks."""
        given, part = _View(array, "array"), self._parts(array)
        out, into = _result(array, (part[0] * self.size, *part[1:]), out)
        self._run("all-to-all", given, into, given.bytes // self.size, name=name)
        return _returned(array, out)

    def broadcast(self, array: Array, *, root: int = 0, out: Optional[Array] = None,
                  name: str = "") -> Array:
        """The array of rank `root`. `out` may be `array`."""
        if not 0 <= root < self.size:
            raise ValueError(f"root: got {root}, expected a rank from 0 to {self.size - 1}")
        given, shape = _View(array, "array"), _shape(array)
        out, into = _result(array, shape, out)
        self._run("broadcast", given, into, given.bytes, root=root, name=name)
        return _returned(array, out)

    def barrier(self, *, name: str = "") -> None:
        """Returns when all ranks have come."""
        self._ranks.run("barrier", 0, 0, 0, "fp32", 0, name)

    def exchange(self, value: Any, *, name: str = "objects") -> List[Any]:
        """All ranks' values, in order: whatever pickle takes. Ranks of a run trust one another."""
        data = pickle.dumps(value)
        lengths = (ctypes.c_int64 * self.size)()
        length = ctypes.c_int64(len(data))
        self._ranks.run("all-gather", ctypes.addressof(length), ctypes.addressof(lengths), 8,
                        "fp32", 0, name)
        longest = max(lengths)
        own = ctypes.create_string_buffer(data, longest)
        everybody = ctypes.create_string_buffer(longest * self.size)
        self._ranks.run("all-gather", ctypes.addressof(own), ctypes.addressof(everybody), longest,
                        "fp32", 0, name)
        return [pickle.loads(everybody.raw[longest * rank:longest * rank + lengths[rank]])
                for rank in range(self.size)]

    def _parts(self, array: Any) -> Tuple[int, ...]:
        shape = _shape(array)
        if not shape or shape[0] % self.size:
            raise ValueError(f"array: has shape {list(shape)}, expected rows that {self.size} "
                             "ranks divide; pad its first dimension")
        return (shape[0] // self.size, *shape[1:])

    def _run(self, kind: str, given: "_View", into: "_View", part: int, *, root: int = 0,
             name: str = "", sums: bool = False) -> None:
        if into.read_only:
            raise ValueError("out: got an array that cannot be written")
        in_place = kind in ("all-reduce", "broadcast") and given.address == into.address
        if not in_place and given.address < into.address + into.bytes and \
                into.address < given.address + given.bytes:
            raise ValueError("out: shares memory with array, expected another array" +
                             (" or array itself" if kind in ("all-reduce", "broadcast") else ""))
        dtype = _SUMS.get(given.dtype, "fp32")
        if sums and given.dtype not in _SUMS:
            raise TypeError(f"array: has type {given.dtype}, expected one that is added: "
                            "float64, float32, float16 or bfloat16")
        if part == 0:
            self.barrier(name=name)
            return
        self._ranks.run(kind, given.address, into.address, part, dtype, root, name)


def _is_tensor(array: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def _shape(array: Any) -> Tuple[int, ...]:
    return tuple(array.shape) if hasattr(array, "shape") else ()


class _View:
    """Where an array lies. Of one that is neither NumPy's nor PyTorch's a copy is read."""

    def __init__(self, array: Any, name: str) -> None:
        if _is_tensor(array):
            if array.device.type != "cpu":
                raise NotImplementedError(f"{name}: is on {array.device}, expected the CPU; "
                                          "torch.distributed exchanges tensors of GPUs")
            dense = array.is_contiguous() and not array.is_conj() and not array.is_neg()
            self.keep, self.dtype, self.read_only = array, str(array.dtype)[6:], False
            self.address, self.bytes = array.data_ptr(), array.numel() * array.element_size()
        else:
            import numpy
            if not isinstance(array, numpy.ndarray):
                device = getattr(array, "__dlpack_device__", lambda: (1, 0))()[0]
                if int(device) != 1:
                    raise NotImplementedError(f"{name}: is not on the CPU; torch.distributed "
                                              "exchanges arrays of GPUs, as tensors")
                array = numpy.ascontiguousarray(array)
            if array.dtype.hasobject:
                raise TypeError(f"{name}: holds Python objects, expected numbers; `exchange` "
                                "takes objects")
            dense, self.keep = array.flags.c_contiguous, array
            self.dtype, self.read_only = array.dtype.name, not array.flags.writeable
            self.address, self.bytes = array.ctypes.data, array.nbytes
        if not dense:
            raise ValueError(f"{name}: has strides, expected a dense array; "
                             "copy it (numpy.ascontiguousarray, Tensor.contiguous)")


def _result(array: Any, shape: Tuple[int, ...], out: Any) -> Tuple[Any, _View]:
    """The array to write, and where it lies: `out`, or a new one."""
    if out is None:
        if _is_tensor(array):
            out = array.detach().new_empty(shape)
        else:
            import numpy
            out = numpy.empty(shape, numpy.asarray(array).dtype)
        return out, _View(out, "out")
    view = _View(out, "out")
    if view.keep is not out:
        raise TypeError(f"out: got {type(out).__name__}, expected a numpy.ndarray or a tensor")
    if _shape(out) != shape or view.dtype != _View(array, "array").dtype:
        raise ValueError(f"out: has shape {list(_shape(out))} of {view.dtype}, expected "
                         f"{list(shape)} of array's type")
    return out, view


def _returned(array: Any, out: Any) -> Any:
    """A result in the framework of the caller."""
    import_back = getattr(array, "__array_namespace__", None)
    if _is_tensor(array) or import_back is None or type(out) is type(array):
        return out
    return import_back().asarray(out)
