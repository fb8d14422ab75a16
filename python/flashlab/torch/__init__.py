"""FlashLab for PyTorch: attention with gradients, a custom operator, and drop-in names.

    attention                     [batch, seqlen, heads, head_dim]; every option of FlashLab
    scaled_dot_product_attention  torch's function: [batch, heads, seqlen, head_dim]
    flash_attn_func, flash_attn_qkvpacked_func, flash_attn_kvpacked_func
                                  flash-attn's functions: [batch, seqlen, heads, head_dim]
    flash_attn_varlen_func, flash_attn_varlen_qkvpacked_func, flash_attn_varlen_kvpacked_func
                                  the same on ragged batches: [rows, heads, head_dim]; bert_padding
                                  has flash-attn's helpers for padded ones
    schedule                      their order of work, made once for all layers
    varlen_attn                   torch's function of torch.nn.attention.varlen
    flash_attn_interface, cute    modules with the functions of FlashAttention-3 and -4
    flash_attn_with_kvcache, flash_attn_combine, get_scheduler_metadata
                                  flash-attn's on caches of keys and values, contiguous and paged
    FlashAttention                an autograd function for [batch, seqlen, dim]
    parallel                      DDP, FSDP, a sharded optimizer; the course's adapters for them
    torch.ops.flashlab.attention_forward, .attention_backward
                                  the operators that torch.compile and export see

Work is enqueued on the current stream of the tensors' device; outputs and workspace come from
torch's allocator, so CUDA graphs and memory pools work as with torch's own operators.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError("flashlab.torch needs PyTorch: pip install torch") from error

from ._attention import attention
from ._course import (
    FlashAttention,
    flash_attention_pytorch,
    flash_attention_triton,
    get_flashattention_autograd_function_pytorch,
    get_flashattention_autograd_function_triton,
)
from ._flash_attn import flash_attn_func, flash_attn_kvpacked_func, flash_attn_qkvpacked_func
from ._kvcache import flash_attn_combine, flash_attn_with_kvcache, get_scheduler_metadata
from ._sdpa import scaled_dot_product_attention
from .parallel import (
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
from ._varlen import (
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    schedule,
    varlen_attn,
)

__all__ = [
    "FlashAttention",
    "attention",
    "ddp_bucketed_on_after_backward",
    "ddp_bucketed_on_train_batch_start",
    "ddp_individual_parameters_on_after_backward",
    "ddp_on_after_backward",
    "flash_attention_pytorch",
    "flash_attention_triton",
    "flash_attn_combine",
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
    "fsdp_gather_full_params",
    "fsdp_on_after_backward",
    "get_ddp",
    "get_ddp_bucketed",
    "get_ddp_individual_parameters",
    "get_flashattention_autograd_function_pytorch",
    "get_flashattention_autograd_function_triton",
    "get_fsdp",
    "get_scheduler_metadata",
    "get_sharded_optimizer",
    "scaled_dot_product_attention",
    "schedule",
    "varlen_attn",
]
