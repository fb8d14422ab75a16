"""Data parallel: every rank has the whole module, gradients are averaged beside backward."""

from __future__ import annotations

import contextlib
import functools
import itertools
from typing import Any, Iterator, List, Optional, Tuple

import torch
from torch import Tensor, nn

from ._group import agree, broadcast_state, described, group_of, require_all


class _Bucket:
    """Parameters whose gradients are sent together."""

    def __init__(self) -> None:
        self.members: List[int] = []
        self.missing = 0
        self.work: Any = None
        self.sent: Optional[Tensor] = None


class DDP(nn.Module):
    """DDP(module): its gradients become the mean over ranks.

    Start       parameters and buffers become rank 0's
    backward    a bucket's gradients are sent as soon as all of them are whole, while backward goes
                on. Buckets hold parameters in reverse order, and are sent in that order on every
                rank, whatever comes first: so ranks that differ are told apart instead of waiting
    finish_gradient_synchronization()  after backward, before the optimizer's step: waits, divides
    bucket_size_mb  2^20 bytes; 0: each parameter by itself, in place; None: all in one
    group       a group of torch.distributed, or a flashlab.Communicator; None: torch.distributed's
                group of all ranks where it is initialised, else FlashLab's, by its starter's
                variables
    no_sync()   a context: backward inside it only adds to gradients, for several micro-batches
    Tied weights are one parameter: sent once, after their last use
    Errors      ValueError when ranks have other parameters, or one was replaced, added or
                (un)frozen after wrapping; RuntimeError when a gradient never came, on all ranks
                alike, or came twice. Each names the parameter
    """

    def __init__(self, module: nn.Module, bucket_size_mb: Optional[float] = 0.0,
                 group: Any = None) -> None:
        super().__init__()
        if bucket_size_mb is not None and not bucket_size_mb >= 0:
            raise ValueError(f"bucket_size_mb: got {bucket_size_mb}, expected 0 (each parameter by "
                             "itself), a size, or None (all in one)")
        self.module = module
        self._group = group_of(group)
        self._wrapped = list(module.named_parameters())
        state = self._wrapped + list(module.named_buffers())
        agree(self._group, described(state), "module")
        broadcast_state(self._group, (tensor for _, tensor in state))
        self._frozen = [not parameter.requires_grad for _, parameter in self._wrapped]
        self._trained = [pair for pair in self._wrapped if pair[1].requires_grad]
        self._buckets, self._bucket_of = _fill(self._trained, bucket_size_mb)
        self._synchronizes = True
        self._reset()
        for index, (_, parameter) in enumerate(self._trained):
            parameter.register_post_accumulate_grad_hook(functools.partial(self._came, index))

    def forward(self, *arguments: Any, **options: Any) -> Any:
        self.check_parameters()
        return self.module(*arguments, **options)

    def check_parameters(self) -> None:
        """Errors: ValueError, when the module's parameters are not those that were wrapped."""
        now = list(self.module.named_parameters())
        for index, pair in enumerate(itertools.zip_longest(self._wrapped, now)):
            (before, wrapped), (name, parameter) = ((None, None) if one is None else one
                                                    for one in pair)
            if wrapped is not parameter:
                what = ("was added" if wrapped is None else "was removed" if parameter is None
                        else "was replaced")
                raise ValueError(f"parameter {name or before}: {what} after wrapping, expected the "
                                 "module as it was; change modules first, then wrap them")
            if parameter.requires_grad == self._frozen[index]:
                raise ValueError(f"parameter {name}: requires_grad was set to "
                                 f"{parameter.requires_grad} after wrapping, expected "
                                 f"{not parameter.requires_grad}; set it first, then wrap")

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward inside it sends nothing."""
        before, self._synchronizes = self._synchronizes, False
        try:
            yield
        finally:
            self._synchronizes = before

    def finish_gradient_synchronization(self) -> None:
        """Every gradient is the mean over ranks when this returns. All ranks call it."""
        try:
            self.check_parameters()
            for bucket in self._buckets[self._next:]:
                self._send(bucket)
            self._next = len(self._buckets)
            for bucket in self._buckets:
                self._receive(bucket)
            device = self._trained[0][1].device if self._trained else None
            require_all(self._group, [name for name, _ in self._trained], self._arrived, device)
        finally:
            self._reset()

    def _reset(self) -> None:
        self._arrived = [False] * len(self._trained)
        self._next = 0
        for bucket in self._buckets:
            bucket.missing, bucket.work, bucket.sent = len(bucket.members), None, None

    def _came(self, index: int, parameter: Tensor) -> None:
        name = self._trained[index][0]
        if not self._synchronizes:
            return
        if parameter.grad is not None and parameter.grad.layout != torch.strided:
            raise NotImplementedError(f"gradient of {name}: is sparse, expected a dense one; use "
                                      "sparse=False")
        if self._arrived[index]:
            raise RuntimeError(f"gradient of {name}: came twice, expected "
                               "finish_gradient_synchronization after each backward; with several "
                               "micro-batches run all but the last under no_sync()")
        self._arrived[index] = True
        self._buckets[self._bucket_of[index]].missing -= 1
        while self._next < len(self._buckets) and self._buckets[self._next].missing == 0:
            self._send(self._buckets[self._next])
            self._next += 1

    def _gradient(self, index: int) -> Optional[Tensor]:
        gradient = self._trained[index][1].grad
        return gradient.detach() if gradient is not None and self._arrived[index] else None

    def _send(self, bucket: _Bucket) -> None:
        gradients = [self._gradient(index) for index in bucket.members]
        first = gradients[0]
        if len(gradients) == 1 and first is not None and first.is_contiguous():
            bucket.sent = first
        else:
            # One that never came is zeros: all ranks send as much, and learn of it at the end.
            bucket.sent = torch.cat([
                torch.zeros_like(parameter).reshape(-1) if gradient is None else
                gradient.reshape(-1)
                for gradient, parameter in ((gradients[place], self._trained[index][1].detach())
                                            for place, index in enumerate(bucket.members))])
        bucket.work = self._group.all_reduce(bucket.sent)

    def _receive(self, bucket: _Bucket) -> None:
        assert bucket.sent is not None
        bucket.work.wait()
        bucket.sent.div_(self._group.size)
        offset = 0
        for index in bucket.members:
            gradient = self._gradient(index)
            numel = self._trained[index][1].numel()
            if gradient is not None and gradient.data_ptr() != bucket.sent.data_ptr():
                gradient.copy_(bucket.sent[offset:offset + numel].view(gradient.shape))
            offset += numel


def _fill(trained: List[Tuple[str, Tensor]],
          bucket_size_mb: Optional[float]) -> Tuple[List[_Bucket], List[int]]:
    """Buckets in reverse order of the parameters, of one type and device each. A parameter that
    would make its bucket larger than that begins the next."""
    most = float("inf") if bucket_size_mb is None else bucket_size_mb * 2**20
    buckets: List[_Bucket] = []
    bucket_of = [0] * len(trained)
    held, kind = 0, None
    for index in reversed(range(len(trained))):
        parameter = trained[index][1]
        size = parameter.numel() * parameter.element_size()
        if not buckets or held + size > most or kind != (parameter.dtype, parameter.device):
            buckets.append(_Bucket())
            held, kind = 0, (parameter.dtype, parameter.device)
        held += size
        buckets[-1].members.append(index)
        bucket_of[index] = len(buckets) - 1
    return buckets, bucket_of
