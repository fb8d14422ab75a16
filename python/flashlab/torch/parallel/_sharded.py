"""A sharded optimizer: each rank keeps the states of its part of the parameters alone."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Type

import torch
from torch import Tensor

from ._group import agree, described, group_of


class ShardedOptimizer(torch.optim.Optimizer):
    """ShardedOptimizer(params, optimizer_cls, **options): what optimizer_cls(params, **options)
    does, with one rank's share of its states.

    Shards      a parameter belongs to the rank that has the fewest elements so far: about 1 / N
                of all each. Its owner steps it, then the others get the new value
    Gradients   are those that lie there: average them first (DDP), or have equal ones everywhere
    step(closure)  every rank calls the closure
    add_param_group(group)  also in mid-training, on all ranks; groups keep their own options, and
                what changes in param_groups (schedulers) is taken at the next step
    full_state_dict()  on all ranks: the state dict of optimizer_cls over all parameters, which
                load_state_dict takes, here or of that class; state_dict() itself is refused
    group       as DDP's
    Errors      ValueError when ranks have other parameters: named; NotImplementedError for LBFGS,
                which joins all parameters in one vector
    """

    def __init__(self, params: Any, optimizer_cls: Type[torch.optim.Optimizer], *,
                 group: Any = None, **options: Any) -> None:
        if issubclass(optimizer_cls, torch.optim.LBFGS):
            raise NotImplementedError("optimizer_cls: got LBFGS, expected an optimizer that steps "
                                      "each parameter by itself")
        self._group = group_of(group)
        self._class, self._options = optimizer_cls, options
        self._local: Optional[torch.optim.Optimizer] = None
        self._held = [0] * self._group.size
        self._owners: Dict[Tensor, int] = {}
        super().__init__(params, options)
        # At once: some optimizers make states when they are made.
        self._local = optimizer_cls([self._part(one) for one in self.param_groups], **options)
        self.state = self._local.state
        for whole, part in zip(self.param_groups, self._local.param_groups):
            _take_defaults(whole, part)

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        super().add_param_group(param_group)
        added = self.param_groups[-1]
        parameters: List[Tensor] = added["params"]
        first = len(self._owners)
        agree(self._group, described((str(first + index), parameter)
                                     for index, parameter in enumerate(parameters)), "parameter")
        for parameter in parameters:
            owner = min(range(self._group.size), key=lambda rank: self._held[rank])
            self._owners[parameter] = owner
            self._held[owner] += parameter.numel()
        if self._local is not None:
            self._local.add_param_group(self._part(added))
            _take_defaults(added, self._local.param_groups[-1])

    def _part(self, whole: Dict[str, Any]) -> Dict[str, Any]:
        """A group with this rank's parameters alone."""
        return {**whole, "params": [parameter for parameter in whole["params"]
                                    if self._owners[parameter] == self._group.rank]}

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:  # type: ignore[override]
        assert self._local is not None
        for whole, part in zip(self.param_groups, self._local.param_groups):
            part.update((key, value) for key, value in whole.items() if key != "params")
        loss = self._local.step(closure) if closure is not None else self._local.step()
        begun = []
        for parameter, owner in self._owners.items():
            if not parameter.requires_grad:
                continue
            whole = parameter.detach()
            sent = whole if whole.is_contiguous() else whole.contiguous()
            begun.append((self._group.broadcast(sent, owner), whole, sent))
        for work, whole, sent in begun:
            work.wait()
            if sent is not whole:
                whole.copy_(sent)
        # What an optimizer keeps in its groups (AdamW's `capturable` and the like).
        for whole, part in zip(self.param_groups, self._local.param_groups):
            whole.update((key, value) for key, value in part.items() if key != "params")
        return loss

    def state_dict(self) -> Dict[str, Any]:
        raise NotImplementedError("state_dict: this rank has the states of its part alone; call "
                                  "full_state_dict() on all ranks")

    def full_state_dict(self) -> Dict[str, Any]:
        """On all ranks: the states of all parameters, by their place in param_groups, on the
        CPU."""
        places = {parameter: index for index, parameter in enumerate(self._all())}
        own = {places[parameter]: _on_cpu(state) for parameter, state in self.state.items()}
        states: Dict[int, Any] = {}
        for theirs in self._group.exchange(own):
            states.update(theirs)
        groups, first = [], 0
        for group in self.param_groups:
            groups.append({**group, "params": list(range(first, first + len(group["params"])))})
            first += len(group["params"])
        return {"state": dict(sorted(states.items())), "param_groups": groups}

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Of full_state_dict, or of optimizer_cls over the same parameters: each rank takes its
        part."""
        assert self._local is not None
        groups = state_dict["param_groups"]
        if [len(group["params"]) for group in groups] != \
                [len(group["params"]) for group in self.param_groups]:
            raise ValueError("state_dict: has other groups of parameters, expected "
                             f"{[len(group['params']) for group in self.param_groups]} in them")
        order = [place for group in groups for place in group["params"]]
        of = dict(zip(order, self._all()))
        mine = {parameter: place
                for place, parameter in enumerate(p for group in self._local.param_groups
                                                  for p in group["params"])}
        state = {mine[of[place]]: value for place, value in state_dict["state"].items()
                 if of[place] in mine}
        parts, first = [], 0
        for group, part in zip(groups, self._local.param_groups):
            parts.append({**group,
                          "params": list(range(first, first + len(part["params"])))})
            first += len(part["params"])
        self._local.load_state_dict({"state": state, "param_groups": parts})
        self.state = self._local.state
        for whole, part in zip(self.param_groups, self._local.param_groups):
            whole.update((key, value) for key, value in part.items() if key != "params")

    def _all(self) -> List[Tensor]:
        return [parameter for group in self.param_groups for parameter in group["params"]]


def _take_defaults(whole: Dict[str, Any], part: Dict[str, Any]) -> None:
    for key, value in part.items():
        whole.setdefault(key, value)


def _on_cpu(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, dict):
        return {key: _on_cpu(inner) for key, inner in value.items()}
    return value
