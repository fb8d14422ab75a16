"""Stanford CS336's adapters of assignment 2, those of 2026 and of 2025."""

from __future__ import annotations

from typing import Any, Dict, Optional, Type

import torch
from torch import Tensor, nn

from ._ddp import DDP
from ._fsdp import FSDP
from ._sharded import ShardedOptimizer


def get_ddp(module: nn.Module) -> nn.Module:
    """DDP that sends each parameter's gradient by itself, beside backward."""
    return DDP(module)


def ddp_on_after_backward(ddp_model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Between backward and the optimizer's step."""
    del optimizer
    _is(ddp_model, DDP, "ddp_model").finish_gradient_synchronization()


def get_fsdp(module: nn.Module, compute_dtype: Optional[torch.dtype] = None) -> nn.Module:
    """FSDP of the Linear and Embedding weights."""
    return FSDP(module, compute_dtype=compute_dtype)


def fsdp_on_after_backward(fsdp_model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Between backward and the optimizer's step."""
    del optimizer
    _is(fsdp_model, FSDP, "fsdp_model").finish_gradient_synchronization()


def fsdp_gather_full_params(fsdp_model: nn.Module) -> Dict[str, Tensor]:
    """Every parameter, whole, by name. All ranks call it."""
    full: Dict[str, Tensor] = _is(fsdp_model, FSDP, "fsdp_model").gather_full_params()
    return full


def get_sharded_optimizer(params: Any, optimizer_cls: Type[torch.optim.Optimizer],
                          **kwargs: Any) -> torch.optim.Optimizer:
    """ShardedOptimizer over tensors or groups."""
    return ShardedOptimizer(params, optimizer_cls, **kwargs)


def get_ddp_individual_parameters(module: nn.Module) -> nn.Module:
    """get_ddp under its name of 2025."""
    return DDP(module)


def ddp_individual_parameters_on_after_backward(ddp_model: nn.Module,
                                                optimizer: torch.optim.Optimizer) -> None:
    """ddp_on_after_backward under its name of 2025."""
    ddp_on_after_backward(ddp_model, optimizer)


def get_ddp_bucketed(module: nn.Module, bucket_size_mb: float) -> nn.Module:
    """DDP that sends gradients in buckets of so many MiB."""
    return DDP(module, bucket_size_mb)


def ddp_bucketed_on_after_backward(ddp_model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Between backward and the optimizer's step."""
    ddp_on_after_backward(ddp_model, optimizer)


def ddp_bucketed_on_train_batch_start(ddp_model: nn.Module,
                                      optimizer: torch.optim.Optimizer) -> None:
    """Before a step's forward: the parameters are still those that were wrapped."""
    del optimizer
    _is(ddp_model, DDP, "ddp_model").check_parameters()


def _is(model: Any, expected: type, name: str) -> Any:
    if not isinstance(model, expected):
        raise TypeError(f"{name}: got {type(model).__name__}, expected a {expected.__name__} of "
                        "flashlab.torch.parallel")
    return model
