// FlashAttention-2 with row reductions by warp shuffles.
//
//   m' = max(m, max_j S[i, j])     l = c l + sum_j P[i, j]      by lanes that swap values:
//
//   lane      0   1   2   3   4   5   6   7        Bc lanes (a power of two up to 32) hold the Bc
//   step 4    0+4 1+5 2+6 3+7 0+4 1+5 2+6 3+7      scores of one row; log2(Bc) exchanges with lane
//   step 2    +2+6    ...                          xor 16, 8, 4, 2, 1 give each of them the row's
//   step 1    every lane: 0+1+2+3+4+5+6+7          maximum, and as many its sum.
//
// As fa1-shuffle beside fa1-vector. All lanes of a row know its m and l, in registers, for as long
// as the block lives, and a barrier per tile is gone.

#include "ladder/four_features.h"
#include "ladder/row_lanes.h"

using namespace flashlab::device;

extern "C" __global__ void __launch_bounds__(kThreads)
    flash_fwd_fa2_shuffle(const __grid_constant__ ForwardArguments args) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<Storage*>(memory);
  const Shape& shape = args.shape;
  const QueryBlock at(shape);
  const int ty = threadIdx.x / kTileK, tx = threadIdx.x % kTileK;

  load_queries(shared, args, at, at.q0);
  RowStatistics statistics;  // of row ty, in each of its lanes
  float4 o[kUnits] = {};
  const int end = key_end(shape, at.q0 + ty), first_end = key_end(shape, at.q0);

  for (int k0 = 0; k0 <= at.last_k0; k0 += kTileK) {
    load_keys(shared, args, at, k0);
    __syncthreads();

    float score = product(shared, ty, tx) * shape.scale;
    const bool on_the_edge = k0 + kTileK > first_end;  // the diagonal, or the end of the keys
    if (on_the_edge && k0 + tx >= end) score = kMinusInfinity;
    const float correction = softmax_of_lanes(score, statistics);
    shared.s[ty][tx] = score;
    if (tx == 0) shared.correction[ty] = correction;
    __syncthreads();
    add_values(o, shared);
    __syncthreads();
  }
  if (tx == 0 && at.q0 + ty < shape.seqlen_q) {
    shared.sum[ty] = statistics.sum;
    store_lse(args, at, at.q0 + ty, statistics);
  }
  __syncthreads();
  store_values(shared, args, at, o);
}
