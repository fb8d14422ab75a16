#pragma once

// The weighted sum of rows, the first kernel of the ladder: docs/learn/weighted-sum.md.
//
//   forward    y[r]     = sum_d w[d] x[r, d]
//   backward   dx[r, d] = w[d] dy[r]
//              dw[d]    = sum_r x[r, d] dy[r]

#include <cstdint>

#include "flashlab/context.h"

namespace flashlab::internal {

/// How to compute it: loops as the formula reads, on one thread, or the same sums arranged for
/// vectors, caches and threads.
enum class WeightedSumForm : std::uint8_t { kNaive, kVector };

/// fp32 rows in memory: element (r, d) is data[r * row_stride + d], row_stride >= dim.
template <class Element>
struct MatrixView {
  Element* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t dim = 0;
  std::int64_t row_stride = 0;  ///< elements
};

struct WeightedSumTensors {
  MatrixView<const float> x;  ///< [rows, dim]
  const float* w = nullptr;   ///< [dim]
  float* y = nullptr;         ///< [rows], written by forward
  const float* dy = nullptr;  ///< [rows], read by backward
  MatrixView<float> dx;       ///< [rows, dim], written by backward
  float* dw = nullptr;        ///< [dim], written by backward
};

/// Reads x, w; writes y. Sums in fp32.
/// Repeat   bitwise equal for any number of threads (the two forms differ by rounding)
/// Errors   kInvalidArgument (sizes, strides, null pointers, an output over an input)
/// Cost     2 rows dim FLOPs, 4 (rows dim + dim + rows) bytes: bound by memory
Status weighted_sum_forward(const Context& context, WeightedSumForm form,
                            const WeightedSumTensors& tensors);

/// Reads x, w, dy; writes dx, dw. The sum over rows is taken in chunks that depend on the sizes
/// alone, and the chunks are added in order, so that dw is deterministic.
/// Workspace at most 64 x dim fp32 from the context's allocator
/// Errors    as forward, and kOutOfMemory
/// Cost      3 rows dim FLOPs, 4 (2 rows dim + 2 dim + rows) bytes
Status weighted_sum_backward(const Context& context, WeightedSumForm form,
                             const WeightedSumTensors& tensors);

/// FLOPs and bytes of the formulas, for a bench.
struct WeightedSumCost {
  double flops = 0;
  double bytes = 0;
};
WeightedSumCost weighted_sum_forward_cost(std::int64_t rows, std::int64_t dim) noexcept;
WeightedSumCost weighted_sum_backward_cost(std::int64_t rows, std::int64_t dim) noexcept;

}  // namespace flashlab::internal
