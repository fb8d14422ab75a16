// The weighted sum of rows as its formula reads, one thread per result.
//
//   forward    y[r]     = sum_d w[d] x[r, d]      one thread per row
//   backward   dx[r, d] = w[d] dy[r]              one thread per row
//              dw[d]    = sum_r x[r, d] dy[r]     one thread per column
//
//   x in memory, row by row:     lane 0  -> [ 0 1 2 3 ......... ]     32 lanes of a warp read 32
//                                lane 1  -> [ 0 1 2 3 ......... ]     addresses a row apart: 32
//                                ...                                  sectors for 32 numbers
//
// Correct, and slow: see weighted_sum.cu.

#include "ladder/elements.h"
#include "ladder/weighted_sum_arguments.h"

using namespace flashlab::device;

extern "C" __global__ void __launch_bounds__(256)
    flash_fwd_weighted_sum_naive(const __grid_constant__ WeightedSumArguments args) {
  constexpr Element kT = Config::kElement;
  const Int64 row = static_cast<Int64>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= args.rows) return;
  float sum = 0;
  for (int d = 0; d < args.dim; ++d) {
    sum += load_element<kT>(args.w, d) * load_element<kT>(args.x, row * args.x_stride + d);
  }
  store_element<kT>(args.y, row, sum);
}

extern "C" __global__ void __launch_bounds__(256)
    flash_bwd_weighted_sum_naive_dx(const __grid_constant__ WeightedSumArguments args) {
  constexpr Element kT = Config::kElement;
  const Int64 row = static_cast<Int64>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= args.rows) return;
  const float dy = load_element<kT>(args.dy, row);
  for (int d = 0; d < args.dim; ++d) {
    store_element<kT>(args.dx, row * args.dx_stride + d, load_element<kT>(args.w, d) * dy);
  }
}

extern "C" __global__ void __launch_bounds__(256)
    flash_bwd_weighted_sum_naive_dw(const __grid_constant__ WeightedSumArguments args) {
  constexpr Element kT = Config::kElement;
  const int d = blockIdx.x * blockDim.x + threadIdx.x;
  if (d >= args.dim) return;
  float sum = 0;
  for (Int64 row = 0; row < args.rows; ++row) {
    sum += load_element<kT>(args.x, row * args.x_stride + d) * load_element<kT>(args.dy, row);
  }
  store_element<kT>(args.dw, d, sum);
}
