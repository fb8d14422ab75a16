// The weighted sum of rows arranged for a GPU, and its gradient.
//
//   forward    y[r]     = sum_d w[d] x[r, d]
//   backward   dx[r, d] = w[d] dy[r]              dw[d] = sum_r x[r, d] dy[r]
//
//   forward: a warp owns a row             backward: a block owns a chunk of rows, a lane of it
//   four lanes   0    1    2   ..  31           columns        columns -> x[r]  [.... .... .... ..
//   ....] ->      warp 0  [ row 0, 8, 16 ... | .... ]  ->  dx written
//           neighbours read neighbours:    warp 1  [ row 1, 9, 17 ... | .... ]      dw in registers
//           one request for 512 bytes      ...              v v v v
//   the 32 partial sums meet in five                 sums of 8 warps, then partials[chunk][dim]
//   exchanges at the end
//
// All chunks add to the same dw. Each writes its own row of `partials`, and the second kernel adds
// these in order: the same bits in every run, on every GPU, because chunks depend on sizes alone.

#include "ladder/elements.h"
#include "ladder/weighted_sum_arguments.h"
#include "ptx/warp.h"

namespace flashlab::device {

constexpr Element kT = Config::kElement;
constexpr int kVector = Config::kVector;  // elements per load: 4, or 1 where rows are not aligned
constexpr int kWarps = 8, kColumns = 32 * kVector;  // of a block; of a warp

struct __align__(4 * kVector) Numbers {
  float at[kVector];
};
__device__ inline Numbers load_numbers(const void* data, Int64 index) {
  Numbers out;
  if constexpr (kVector == 4) {
    *reinterpret_cast<float4*>(out.at) = load_four<kT>(data, index);
  } else {
    out.at[0] = load_element<kT>(data, index);
  }
  return out;
}
__device__ inline void store_numbers(void* data, Int64 index, const Numbers& numbers) {
  if constexpr (kVector == 4) {
    store_four<kT>(data, index, *reinterpret_cast<const float4*>(numbers.at));
  } else {
    store_element<kT>(data, index, numbers.at[0]);
  }
}

/// Adds the eight warps' sums of the block's columns, warp 0 first; true for the threads that have
/// the result in `sums`.
__device__ inline bool add_warps(Numbers& sums) {
  __shared__ Numbers sSums[kWarps][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  sSums[warp][lane] = sums;
  __syncthreads();
  if (warp != 0) return false;
  for (int other = 1; other < kWarps; ++other) {
    for (int n = 0; n < kVector; ++n) sums.at[n] += sSums[other][lane].at[n];
  }
  return true;
}

}  // namespace flashlab::device

using namespace flashlab::device;

extern "C" __global__ void __launch_bounds__(32 * kWarps)
    flash_fwd_weighted_sum(const __grid_constant__ WeightedSumArguments args) {
  const int lane = threadIdx.x % 32;
  const Int64 row = static_cast<Int64>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (row >= args.rows) return;
  float sum = 0;
#pragma unroll 8
  for (int d = lane * kVector; d < args.dim; d += kColumns) {
    const Numbers x = load_numbers(args.x, row * args.x_stride + d), w = load_numbers(args.w, d);
    for (int n = 0; n < kVector; ++n) sum += w.at[n] * x.at[n];
  }
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += flashlab::ptx::shuffle_xor(sum, lanes);
  if (lane == 0) store_element<kT>(args.y, row, sum);
}

extern "C" __global__ void __launch_bounds__(32 * kWarps)
    flash_bwd_weighted_sum(const __grid_constant__ WeightedSumArguments args) {
  const int tiles = (args.dim + kColumns - 1) / kColumns;
  const int d = static_cast<int>(blockIdx.x % tiles) * kColumns + threadIdx.x % 32 * kVector;
  const Int64 chunk = blockIdx.x / tiles;
  const Int64 first = chunk * args.rows_per_chunk;
  const Int64 end = min(first + args.rows_per_chunk, args.rows);
  const bool inside = d < args.dim;
  Numbers sums = {};
  const Numbers w = inside ? load_numbers(args.w, d) : Numbers{};
#pragma unroll 4
  for (Int64 row = first + threadIdx.x / 32; row < end; row += kWarps) {
    if (!inside) break;
    const float dy = load_element<kT>(args.dy, row);
    const Numbers x = load_numbers(args.x, row * args.x_stride + d);
    Numbers dx;
    for (int n = 0; n < kVector; ++n) {
      dx.at[n] = w.at[n] * dy;
      sums.at[n] += x.at[n] * dy;
    }
    store_numbers(args.dx, row * args.dx_stride + d, dx);
  }
  if (!add_warps(sums) || !inside) return;
  for (int n = 0; n < kVector; ++n) args.partials[chunk * args.dim + d + n] = sums.at[n];
}

extern "C" __global__ void __launch_bounds__(32 * kWarps)
    flash_bwd_weighted_sum_chunks(const __grid_constant__ WeightedSumArguments args) {
  const int d = blockIdx.x * kColumns + threadIdx.x % 32 * kVector;
  const int share = (args.chunks + kWarps - 1) / kWarps;  // chunks of a warp, one after the other
  const int first = threadIdx.x / 32 * share, end = min(first + share, args.chunks);
  Numbers sums = {};
#pragma unroll 8
  for (int chunk = first; chunk < end; ++chunk) {
    for (int n = 0; n < kVector && d < args.dim; ++n) {
      sums.at[n] += args.partials[static_cast<Int64>(chunk) * args.dim + d + n];
    }
  }
  if (!add_warps(sums) || d >= args.dim) return;
  store_numbers(args.dw, d, sums);
}
