// FlashAttention-1 with row reductions by warp shuffles.
//
//   m' = max(m, max_j S[i, j])     l = c l + sum_j P[i, j]      by lanes that swap values:
//
//   lane      0   1   2   3   4   5   6   7        Bc lanes (a power of two up to 32) hold the Bc
//   step 4    0+4 1+5 2+6 3+7 0+4 1+5 2+6 3+7      scores of one row. After log2(Bc) exchanges
//   step 2    +2+6    ...                          with lane xor 16, 8, 4, 2, 1 every lane has
//   step 1    every lane: 0+1+2+3+4+5+6+7          the row's maximum; the same again for its sum.
//
// In the rungs before, one thread per query walked along its row twice, through shared memory,
// while all others waited at a barrier. Here every row is reduced by its own lanes, out of
// registers; scores do not touch shared memory until they are probabilities. Threads and tiles
// are as in fa1-vector.

#include "ladder/four_features.h"
#include "ladder/row_lanes.h"

using namespace flashlab::device;

extern "C" __global__ void __launch_bounds__(kThreads)
    flash_fwd_fa1_shuffle(const __grid_constant__ ForwardArguments args) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<Storage*>(memory);
  const Shape& shape = args.shape;
  const HeadBlock at(args);
  const int ty = threadIdx.x / kTileK, tx = threadIdx.x % kTileK;

  for (int k0 = 0; k0 == 0 || k0 < shape.seqlen_k; k0 += kTileK) {
    load_keys(shared, args, at, k0);
    for (int q0 = 0; q0 < shape.seqlen_q; q0 += kTileQ) {
      const int last_k0 = last_key_tile(shape, q0);
      if (k0 > last_k0) continue;
      load_queries(shared, args, at, q0);
      const int own = q0 + ty;
      RowStatistics row;  // fetched here, so that the products hide the way from global memory
      if (k0 > 0 && own < shape.seqlen_q) row = at.gRows[own];
      __syncthreads();

      const float dot = product(shared, ty, tx);
      const bool visible = k0 + tx < key_end(shape, own);
      float score = visible ? dot * shape.scale : kMinusInfinity;
      const float correction = softmax_of_lanes(score, row);
      shared.s[ty][tx] = score;
      if (tx == 0 && own < shape.seqlen_q) {
        at.gRows[own] = row;
        shared.correction[ty] = correction;
        shared.sum[ty] = row.sum;
        if (k0 == last_k0) store_lse(args, at, own, row);
      }
      __syncthreads();
      add_values(shared, args, at, q0, k0, last_k0);
      __syncthreads();
    }
    __syncthreads();
  }
}
