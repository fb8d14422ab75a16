#pragma once

// The weighted sum of rows on a GPU, y[r] = sum_d w[d] x[r, d], and its gradient: the first kernels
// of the ladder, docs/learn/weighted-sum.md.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "flashlab/attention.h"
#include "runtime/cuda/device.h"
#include "runtime/kernel_store/compile.h"

namespace flashlab::cuda {

/// As the formula reads, one thread per result, or arranged for warps.
enum class WeightedSumForm : std::uint8_t { kNaive, kArranged };

/// Rows in device memory, element (r, d) at r * stride + d, all of one dtype: fp32, fp16 or bf16.
/// A pass leaves what it does not use null.
struct WeightedSumTensors {
  DType dtype = DType::kFp32;
  std::int64_t rows = 0, dim = 0;
  const void* x = nullptr;                   ///< [rows, dim]
  const void* w = nullptr;                   ///< [dim]
  void* y = nullptr;                         ///< [rows], written by forward
  const void* dy = nullptr;                  ///< [rows], read by backward
  void* dx = nullptr;                        ///< [rows, dim], written by backward
  void* dw = nullptr;                        ///< [dim], written by backward
  std::int64_t x_stride = 0, dx_stride = 0;  ///< of rows, in elements, at least dim
};

/// Reads x, w; writes y. Sums in fp32. Enqueued on the stream.
/// Errors: kInvalidArgument (sizes, strides, null pointers), kUnsupported (dtype), those of
/// the kernel store and the launch. Cost: 2 rows dim FLOPs, (rows dim + dim + rows) elements.
Status weighted_sum_forward(GpuDevice& device, Stream stream, WeightedSumForm form,
                            const WeightedSumTensors& tensors);

/// Reads x, w, dy; writes dx, dw. dw is summed in chunks of rows that depend on the sizes alone,
/// and the chunks are added in order: the same bits in every run and on every GPU.
/// `workspace` has weighted_sum_workspace_bytes() or more (the naive form needs none).
/// Cost: 3 rows dim FLOPs, (2 rows dim + 2 dim + rows) elements.
Status weighted_sum_backward(GpuDevice& device, Stream stream, WeightedSumForm form,
                             const WeightedSumTensors& tensors, Workspace workspace);

/// Every kernel that tensors of that dtype (fp32, fp16 or bf16) can need, of kWeightedSumThreads.
std::vector<KernelSpec> weighted_sum_kernels(WeightedSumForm form, DType dtype);
inline constexpr unsigned kWeightedSumThreads = 256;

/// At most 512 x dim fp32.
std::size_t weighted_sum_workspace_bytes(std::int64_t rows, std::int64_t dim) noexcept;

}  // namespace flashlab::cuda
