"""Fully sharded data parallel: a rank keeps its part of the large weights, and gathers a layer's
when the layer runs."""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch import Tensor, nn

from ._group import Group, agree, broadcast_state, described, group_of, require_all


class _Unit:
    """A weight that is sharded. Its part, `parameter`, is [ceil(numel / N)], zeros behind the
    end."""

    def __init__(self, name: str, weight: nn.Parameter, group: Group,
                 compute_dtype: Optional[torch.dtype]) -> None:
        self.name, self.group = name, group
        self.shape, self.numel = weight.shape, weight.numel()
        self.dtype = compute_dtype or weight.dtype
        part = -(-self.numel // group.size)
        whole = weight.detach().new_zeros(part * group.size)
        whole[:self.numel] = weight.detach().reshape(-1)
        own = whole[part * group.rank:part * (group.rank + 1)].clone()
        self.parameter = nn.Parameter(own, requires_grad=weight.requires_grad)
        self.modules: List[Tuple[nn.Module, str]] = []
        self.full: Optional[Tensor] = None  # of the forward under way, with its place in the graph
        self.saved = False                  # backward will read it
        self.sums: List[Tuple[Any, Tensor, Tensor]] = []
        self._data: Optional[Tensor] = None
        self._work: Any = None
        self._sent: Optional[Tensor] = None

    def begin_gather(self) -> None:
        if self._data is not None:
            return
        self._sent = self.parameter.detach().to(self.dtype)  # cast first: fewer bytes travel
        self._data = self._sent.new_empty(self._sent.numel() * self.group.size)
        self._work = self.group.all_gather(self._data, self._sent)

    def gathered(self) -> Tensor:
        """The whole weight, as it lies in its memory."""
        self.begin_gather()
        assert self._data is not None
        if self._work is not None:
            self._work.wait()
            self._work = self._sent = None
        return self._data

    def drop(self) -> None:
        if self._work is not None:
            self._work.wait()
        self._data = self._work = self._sent = None

    def begin_sum(self, gradient: Tensor) -> None:
        """This rank's part of the sum of all ranks' gradients, in the parameter's type."""
        part = self.parameter.detach()
        parts = part.new_zeros(part.numel() * self.group.size)
        parts[:self.numel] = gradient.reshape(-1)
        out = torch.empty_like(part)
        self.sums.append((self.group.reduce_scatter(out, parts), out, parts))

    def finish_sums(self) -> None:
        for work, out, _ in self.sums:
            work.wait()
            out.div_(self.group.size)
            if self.parameter.grad is None:
                self.parameter.grad = out
            else:
                self.parameter.grad.add_(out)
        self.sums.clear()


class _Gather(torch.autograd.Function):
    """From a part to the whole weight; back, the sum of gradients begins and is not waited for."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, unit: _Unit) -> Tensor:
        del part
        ctx.unit = unit
        return unit.gathered()[:unit.numel].view(unit.shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tuple[None, None]:  # type: ignore[override]
        ctx.unit.begin_sum(gradient)
        ctx.unit.drop()
        return None, None


def is_sharded(module: nn.Module) -> bool:
    """What FSDP shards unless it is told otherwise: classes called Linear or Embedding."""
    return any(base.__name__ in ("Linear", "Embedding") for base in type(module).__mro__)


class FSDP(nn.Module):
    """FSDP(module, compute_dtype=None): weights, gradients and optimizer states in N parts.

    Shards      the parameters of modules that `shards` says yes to: by default classes called
                Linear or Embedding, torch's own or others. parameters() then has
                this rank's parts, [ceil(numel / N)], fp32 masters to make an optimizer of.
                All else is replicated, its gradients averaged
    forward     gathers a layer's weight when it runs, the next one's beside it, so two are there
                at most; none is gathered before the layer two earlier has finished. Tied weights
                are gathered once and stay until forward ends
    backward    gathers again, in the opposite order, and begins the sum of each gradient as soon
                as it is whole
    finish_gradient_synchronization()  after backward: the mean over ranks, in the master's type
    compute_dtype  weights are cast to it before they are sent, and a layer's inputs too
    gather_full_params()  on all ranks: every parameter, whole, by name
    group       as DDP's
    Order       all ranks run the same layers in the same order
    Checkpoints of activations: use_reentrant=True; the other kind keeps what Linear saves
    Errors      as DDP's: other parameters on some rank, one replaced after wrapping, a gradient
                that never came, each by its name
    """

    def __init__(self, module: nn.Module, compute_dtype: Optional[torch.dtype] = None,
                 group: Any = None, shards: Callable[[nn.Module], bool] = is_sharded) -> None:
        super().__init__()
        if compute_dtype is not None and not compute_dtype.is_floating_point:
            raise TypeError(f"compute_dtype: got {compute_dtype}, expected a floating type")
        self.module = module
        self._group = group_of(group)
        self._compute_dtype = compute_dtype
        state = list(module.named_parameters()) + list(module.named_buffers())
        agree(self._group, described(state), "module")
        broadcast_state(self._group, (tensor for _, tensor in state))
        self._units = self._shard(shards)
        sharded = {id(unit.parameter) for unit in self._units}
        self._parameters_then = list(module.named_parameters(remove_duplicate=False))
        self._replicated = [(name, parameter) for name, parameter in module.named_parameters()
                            if parameter.requires_grad and id(parameter) not in sharded]
        self._came: Dict[int, bool] = {}
        for index, (_, parameter) in enumerate(self._replicated):
            parameter.register_post_accumulate_grad_hook(functools.partial(self._arrive, index))
        self._order: List[_Unit] = []      # of the last forward
        self._running: List[_Unit] = []    # of this one, so far
        self._in_forward = False

    def _shard(self, shards: Callable[[nn.Module], bool]) -> List[_Unit]:
        units: Dict[int, _Unit] = {}
        prefixes = {id(inner): name for name, inner in self.module.named_modules()}
        for inner in self.module.modules():
            for name, parameter in inner.named_parameters(recurse=False):
                if shards(inner) and id(parameter) not in units:
                    full_name = ".".join(filter(None, (prefixes[id(inner)], name)))
                    units[id(parameter)] = _Unit(full_name, parameter, self._group,
                                                 self._compute_dtype)
        # Whoever else holds a sharded weight gathers it, too.
        for inner in self.module.modules():
            held = []
            for name, parameter in list(inner._parameters.items()):
                if parameter is not None and id(parameter) in units:
                    unit = units[id(parameter)]
                    unit.modules.append((inner, name))
                    inner._parameters[name] = unit.parameter
                    held.append((name, unit))
            if held:
                inner.forward = functools.partial(self._run, inner, held, inner.forward)
        return list(units.values())

    def forward(self, *arguments: Any, **options: Any) -> Any:
        self.check_parameters()
        for unit in self._units:
            unit.drop()
        self._running, self._in_forward = [], True
        try:
            return self.module(*arguments, **options)
        finally:
            self._in_forward = False
            for unit in self._units:
                unit.full = None
                unit.drop()
            self._order = self._running

    def check_parameters(self) -> None:
        """Errors: ValueError, when the module's parameters are not those that were wrapped."""
        now = dict(self.module.named_parameters(remove_duplicate=False))
        for name, parameter in self._parameters_then:
            if now.pop(name, None) is not parameter:
                raise ValueError(f"parameter {name}: was replaced or removed after wrapping, "
                                 "expected the module as it was; change modules first, then wrap "
                                 "them")
        for name in now:
            raise ValueError(f"parameter {name}: was added after wrapping, expected the module as "
                             "it was; change modules first, then wrap them")

    def _run(self, inner: nn.Module, held: List[Tuple[str, _Unit]], forward: Callable[..., Any],
             *arguments: Any, **options: Any) -> Any:
        """A module's forward, with whole weights in the place of its parts."""
        wholes: Dict[int, _Unit] = {}
        try:
            for name, unit in held:
                whole = self._enter(unit)
                wholes[whole.untyped_storage().data_ptr()] = unit
                inner.__dict__[name] = whole  # goes before the parameter of that name
            if self._compute_dtype is not None:
                arguments = tuple(self._cast(argument) for argument in arguments)
            with torch.autograd.graph.saved_tensors_hooks(functools.partial(_pack, wholes),
                                                          self._unpack):
                return forward(*arguments, **options)
        finally:
            for name, unit in held:
                inner.__dict__.pop(name, None)
                if len(unit.modules) == 1 or not self._in_forward:
                    unit.full = None
                    unit.drop()

    def _enter(self, unit: _Unit) -> Tensor:
        if unit.full is None:
            if self._in_forward:
                self._running.append(unit)
            unit.gathered()
            place = len(self._running)
            if self._in_forward and self._order[place - 1:place] == [unit] and \
                    place < len(self._order):
                self._order[place].begin_gather()
            unit.saved = False
            unit.full = _Gather.apply(unit.parameter, unit)
        assert unit.full is not None
        return unit.full

    def _cast(self, argument: Any) -> Any:
        if isinstance(argument, Tensor) and argument.is_floating_point():
            return argument.to(self._compute_dtype)
        return argument

    def _unpack(self, packed: Any) -> Tensor:
        if not isinstance(packed, _Saved):
            return packed  # type: ignore[no-any-return]
        unit = packed.unit
        data = unit.gathered()
        if not unit.parameter.requires_grad:
            unit.drop()  # no gradient will come to say that it is over
        if unit in self._order:
            before = self._order[:self._order.index(unit)]
            earlier = next((other for other in reversed(before) if other.saved), None)
            if earlier is not None and earlier.parameter.requires_grad and not earlier.sums:
                earlier.begin_gather()
        return data.as_strided(packed.size, packed.stride, packed.offset)

    def _arrive(self, index: int, parameter: Tensor) -> None:
        del parameter
        self._came[index] = True

    def finish_gradient_synchronization(self) -> None:
        """Every gradient is the mean over ranks when this returns. All ranks call it."""
        try:
            self.check_parameters()
            trained = [unit for unit in self._units if unit.parameter.requires_grad]
            came = [bool(unit.sums) for unit in trained]
            came += [self._came.get(index, False) for index in range(len(self._replicated))]
            for unit in trained:
                unit.finish_sums()
            self._average_replicated()
            names = [unit.name for unit in trained] + [name for name, _ in self._replicated]
            first = next(iter(self.module.parameters()), None)
            require_all(self._group, names, came, None if first is None else first.device)
        finally:
            self._came.clear()
            for unit in self._units:
                unit.sums.clear()
                unit.drop()

    def _average_replicated(self) -> None:
        begun = []
        for _, parameter in self._replicated:
            gradient = parameter.grad
            own = torch.zeros_like(parameter) if gradient is None else gradient
            sent = own.detach().contiguous()
            begun.append((self._group.all_reduce(sent), gradient, sent))
        for work, gradient, sent in begun:
            work.wait()
            if gradient is not None:
                gradient.copy_(sent.div_(self._group.size))

    def gather_full_params(self) -> Dict[str, Tensor]:
        """Every parameter of the module under every name that it has, in its master's type. All
        ranks call it, and each gets all."""
        whole: Dict[int, Tensor] = {}
        for unit in self._units:
            part = unit.parameter.detach()
            data = part.new_empty(part.numel() * self._group.size)
            self._group.all_gather(data, part).wait()
            whole[id(unit.parameter)] = data[:unit.numel].view(unit.shape)
        return {name: whole.get(id(parameter), parameter.detach())
                for name, parameter in self.module.named_parameters(remove_duplicate=False)}


class _Saved:
    """A view of a gathered weight that backward reads: how to see it once it is there again."""

    def __init__(self, unit: _Unit, tensor: Tensor) -> None:
        self.unit = unit
        self.size, self.stride = tensor.size(), tensor.stride()
        self.offset = tensor.storage_offset()


def _pack(wholes: Dict[int, _Unit], tensor: Tensor) -> Any:
    unit = wholes.get(tensor.untyped_storage().data_ptr()) if tensor.layout == torch.strided \
        else None
    if unit is None or tensor.dtype != unit.dtype:
        return tensor
    unit.saved = True
    return _Saved(unit, tensor)
