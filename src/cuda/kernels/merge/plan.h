#pragma once

// The public merge on a GPU.

#include <optional>
#include <span>

#include "flashlab/attention.h"
#include "runtime/cuda/device.h"
#include "runtime/kernel_store/compile.h"

namespace flashlab::cuda {

inline constexpr unsigned kMergeThreads = 128;  ///< of a block

/// The kernel that merges into `output` (fp32, fp16 or bf16), `vector` columns per access (4 or 1).
KernelSpec merge_kernel(DType output, int vector);

/// flashlab::merge on validated tensors of the device. More parts than one launch holds are merged
/// in turns through an fp32 buffer from `allocator`.
Status merge_on_gpu(const GpuDevice& device, Allocator& allocator, Stream stream,
                    std::span<const Partial> parts, const Tensor& o,
                    const std::optional<Tensor>& lse);

}  // namespace flashlab::cuda
