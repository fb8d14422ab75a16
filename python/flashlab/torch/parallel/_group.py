"""The ranks that a wrapper works over: a group of torch.distributed, or flashlab.Communicator."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

import torch
import torch.distributed as dist
from torch import Tensor

from flashlab import Communicator

# One for a process, so that everything that is wrapped works over the same ranks.
_own: Dict[str, "Group"] = {}


def group_of(group: Any) -> "Group":
    """None: torch.distributed's group of all ranks where there is one, else FlashLab's."""
    if isinstance(group, Group):
        return group
    if isinstance(group, Communicator):
        return _OwnGroup(group)
    if group is not None:
        return _TorchGroup(group)
    if dist.is_available() and dist.is_initialized():
        return _TorchGroup(dist.group.WORLD)
    if "world" not in _own:
        _own["world"] = _OwnGroup(Communicator())
    return _own["world"]


class Group:
    """Collectives on dense tensors. What has begun ends with `wait` of what is returned; until then
    its tensors belong to it."""

    rank: int
    size: int

    def broadcast(self, tensor: Tensor, root: int) -> Any:
        """In place."""
        raise NotImplementedError

    def all_reduce(self, tensor: Tensor) -> Any:
        """The sum, in place."""
        raise NotImplementedError

    def all_gather(self, out: Tensor, part: Tensor) -> Any:
        """All ranks' parts, in order."""
        raise NotImplementedError

    def reduce_scatter(self, out: Tensor, parts: Tensor) -> Any:
        """The sum of all ranks' part `rank`."""
        raise NotImplementedError

    def exchange(self, value: Any) -> List[Any]:
        """All ranks' values, in order."""
        raise NotImplementedError


class _TorchGroup(Group):

    def __init__(self, group: Any) -> None:
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    def broadcast(self, tensor: Tensor, root: int) -> Any:
        source = dist.get_global_rank(self.group, root)
        return dist.broadcast(tensor, source, group=self.group, async_op=True)

    def all_reduce(self, tensor: Tensor) -> Any:
        return dist.all_reduce(tensor, group=self.group, async_op=True)

    def all_gather(self, out: Tensor, part: Tensor) -> Any:
        return dist.all_gather_into_tensor(out, part, group=self.group, async_op=True)

    def reduce_scatter(self, out: Tensor, parts: Tensor) -> Any:
        return dist.reduce_scatter_tensor(out, parts, group=self.group, async_op=True)

    def exchange(self, value: Any) -> List[Any]:
        values: List[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.group)
        return values


class _Begun:
    """A call that a thread of the group carries out."""

    def __init__(self, future: "Future[Any]") -> None:
        self._future = future

    def wait(self) -> None:
        self._future.result()


class _OwnGroup(Group):
    """A thread makes the calls, in the order in which they were begun: so backward goes on."""

    def __init__(self, ranks: Communicator) -> None:
        self.ranks = ranks
        self.rank, self.size = ranks.rank, ranks.size
        self._thread = ThreadPoolExecutor(1, "flashlab-ranks")

    def _begin(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> _Begun:
        return _Begun(self._thread.submit(call, *arguments, **options))

    def broadcast(self, tensor: Tensor, root: int) -> Any:
        return self._begin(self.ranks.broadcast, tensor, root=root, out=tensor)

    def all_reduce(self, tensor: Tensor) -> Any:
        return self._begin(self.ranks.all_reduce, tensor, out=tensor)

    def all_gather(self, out: Tensor, part: Tensor) -> Any:
        return self._begin(self.ranks.all_gather, part, out=out)

    def reduce_scatter(self, out: Tensor, parts: Tensor) -> Any:
        return self._begin(self.ranks.reduce_scatter, parts, out=out)

    def exchange(self, value: Any) -> List[Any]:
        return list(self._thread.submit(self.ranks.exchange, value).result())


Described = Tuple[str, Tuple[int, ...], str, bool]


def described(named: Iterable[Tuple[str, Tensor]]) -> List[Described]:
    return [(name, tuple(tensor.shape), str(tensor.dtype)[6:], tensor.requires_grad)
            for name, tensor in named]


def agree(group: Group, own: List[Described], what: str) -> None:
    """Errors: ValueError on all ranks, for the first tensor that some rank has otherwise."""
    everybody = group.exchange(own)
    for rank, theirs in enumerate(everybody):
        for index in range(max(len(theirs), len(everybody[0]))):
            here, first = (_words(all_of, index) for all_of in (theirs, everybody[0]))
            if here != first:
                name = (theirs if index < len(theirs) else everybody[0])[index][0]
                raise ValueError(f"{what} {name}: rank {rank} has {here}, rank 0 {first}, expected "
                                 "the same on all ranks; build the same module everywhere")


def _words(tensors: List[Described], index: int) -> str:
    if index >= len(tensors):
        return "none"
    name, shape, dtype, trained = tensors[index]
    return f"{name} {list(shape)} of {dtype}, {'trained' if trained else 'not trained'}"


def broadcast_state(group: Group, tensors: Iterable[Tensor]) -> None:
    """Rank 0's values, everywhere."""
    begun = []
    with torch.no_grad():
        for tensor in tensors:
            whole = tensor.detach()
            sent = whole if whole.is_contiguous() else whole.contiguous()
            begun.append((group.broadcast(sent, 0), whole, sent))
        for work, whole, sent in begun:
            work.wait()
            if sent is not whole:
                whole.copy_(sent)


def require_all(group: Group, names: List[str], came: List[bool],
                device: Optional[torch.device]) -> None:
    """After backward: every gradient came on every rank. All ranks call it.
    Errors: RuntimeError on all ranks, naming the gradients and the ranks."""
    missing = torch.tensor([0.0 if here else 1.0 for here in came], device=device)
    group.all_reduce(missing).wait()
    if not missing.any():
        return
    everybody = group.exchange(came)
    lines = []
    for index, name in enumerate(names):
        ranks = [str(rank) for rank, theirs in enumerate(everybody) if not theirs[index]]
        if ranks:
            where = "any rank" if len(ranks) == group.size else f"rank {', '.join(ranks)}"
            lines.append(f"{name} on {where}")
    raise RuntimeError(f"gradients: never came: {'; '.join(lines)}; expected one of every trained "
                       "parameter from every rank's backward; use the parameter everywhere, or "
                       "set requires_grad to False before wrapping")
