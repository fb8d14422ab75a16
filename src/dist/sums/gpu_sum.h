#pragma once

// The sum of ranks' parts on a GPU: the same tree as on a processor (tree_sum.h), by one kernel.

#include <cstddef>
#include <span>

#include "flashlab/status.h"
#include "flashlab/tensor.h"
#include "runtime/cuda/device.h"
#include "runtime/kernel_store/compile.h"

namespace flashlab::dist {

/// Whether the kernel adds this type there: fp64, fp32 and, from sm_80 on, fp16 and bf16.
bool gpu_sums(const cuda::DeviceInfo& device, DType dtype) noexcept;

inline constexpr unsigned kGpuSumThreads = 256;  // kRankSumBlock of sum.cu

/// The kernel that adds so many parts: `wide` takes 16 bytes of each at a time, else one element,
/// as always of fp64.
cuda::KernelSpec gpu_sum_kernel(int parts, DType dtype, bool wide);

/// Loads the kernels for so many parts: once, before a call is captured. Errors: as load_kernel.
Status prepare_gpu_sum(const cuda::GpuDevice& device, int parts, DType dtype);

/// Enqueues to[i] = the tree's sum of part[i]. `to` may be one of the parts.
/// Preconditions: gpu_sums of the type, 2 to kMaxParts parts. Errors: those of load_kernel and
/// launch.
Status gpu_sum(const cuda::GpuDevice& device, std::span<const cuda::CUdeviceptr> parts,
               cuda::CUdeviceptr to, std::size_t count, DType dtype, cuda::CUstream stream);

}  // namespace flashlab::dist
