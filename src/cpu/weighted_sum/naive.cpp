// The weighted sum as the formula reads. Correct, and slow for two reasons that vector.cpp removes:
//
//   y[r]    every addition waits for the one before (4 cycles each), so vector units and the
//           second multiply-add unit idle; a compiler may not reorder fp32 sums by itself
//   dw[d]   the inner loop walks down a column: each element is on another cache line, and every
//           line of x is fetched dim / 16 times if x is larger than the caches

#include "cpu/weighted_sum/kernels.h"

namespace flashlab::internal {

void naive_forward(const WeightedSumTensors& t) {
  for (std::int64_t r = 0; r < t.x.rows; ++r) {
    float sum = 0;
    for (std::int64_t d = 0; d < t.x.dim; ++d) sum += t.w[d] * t.x.data[r * t.x.row_stride + d];
    t.y[r] = sum;
  }
}

void naive_backward(const WeightedSumTensors& t) {
  for (std::int64_t r = 0; r < t.x.rows; ++r) {
    for (std::int64_t d = 0; d < t.x.dim; ++d) {
      t.dx.data[r * t.dx.row_stride + d] = t.w[d] * t.dy[r];
    }
  }
  for (std::int64_t d = 0; d < t.x.dim; ++d) {
    float sum = 0;
    for (std::int64_t r = 0; r < t.x.rows; ++r) {
      sum += t.x.data[r * t.x.row_stride + d] * t.dy[r];
    }
    t.dw[d] = sum;
  }
}

}  // namespace flashlab::internal
