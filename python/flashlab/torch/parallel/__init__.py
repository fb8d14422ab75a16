"""Training on several ranks from PyTorch: over any group of torch.distributed, or FlashLab's own.

    DDP                 gradients averaged beside backward, one by one or in buckets
    FSDP                weights, gradients and states in parts, gathered layer by layer
    ShardedOptimizer    any optimizer, each rank with its part of the states

    get_ddp, ddp_on_after_backward, get_fsdp, fsdp_on_after_backward, fsdp_gather_full_params,
    get_sharded_optimizer
                        the adapters of Stanford CS336's assignment 2 (2026); those of 2025:
    get_ddp_individual_parameters, get_ddp_bucketed, their ..._on_after_backward and
    ddp_bucketed_on_train_batch_start

Without torch.distributed, ranks are those that flashlab launch, torchrun, mpirun or srun started;
tensors are then a CPU's. FlashLab's own training engine is another thing: `flashlab train`.
"""

from ._course import (
    ddp_bucketed_on_after_backward,
    ddp_bucketed_on_train_batch_start,
    ddp_individual_parameters_on_after_backward,
    ddp_on_after_backward,
    fsdp_gather_full_params,
    fsdp_on_after_backward,
    get_ddp,
    get_ddp_bucketed,
    get_ddp_individual_parameters,
    get_fsdp,
    get_sharded_optimizer,
)
from ._ddp import DDP
from ._fsdp import FSDP
from ._sharded import ShardedOptimizer

__all__ = [
    "DDP",
    "FSDP",
    "ShardedOptimizer",
    "ddp_bucketed_on_after_backward",
    "ddp_bucketed_on_train_batch_start",
    "ddp_individual_parameters_on_after_backward",
    "ddp_on_after_backward",
    "fsdp_gather_full_params",
    "fsdp_on_after_backward",
    "get_ddp",
    "get_ddp_bucketed",
    "get_ddp_individual_parameters",
    "get_fsdp",
    "get_sharded_optimizer",
]
