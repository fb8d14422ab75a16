#pragma once

// What the weighted sum's kernels are launched with, the same text on host and device. No include
// here: device code has no library headers.

namespace flashlab::device {

/// x, dx [rows, dim], w, dw [dim], y, dy [rows]: elements of Config::kElement. A pass leaves what
/// it does not use null.
struct WeightedSumArguments {
  const void* x;
  const void* w;
  void* y;
  const void* dy;
  void* dx;
  void* dw;
  float* partials;                 ///< [chunks, dim], dw of each chunk of rows
  long long x_stride, dx_stride;   ///< of rows, in elements
  long long rows, rows_per_chunk;  ///< a chunk is what one block of backward sums
  int dim, chunks;
};

}  // namespace flashlab::device
