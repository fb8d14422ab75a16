#pragma once

// Products of a warp that owns 16 queries, as in mma_products.h, from tiles as the copy engine
// writes them: where a lane finds a chunk of 16 bytes is the only difference.

#include "ladder/hopper_tiles.h"
#include "tile/fragments.h"

namespace flashlab::device {

/// Q as A fragments: rows [row, row + 16) of a tile, steps of 16 features.
__device__ inline void load_queries(unsigned (&q)[kSteps][4], unsigned tile, int row) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    ptx::load_matrix_4(q[step], tile + TileQ::offset(row + lane % 16, 2 * step + lane / 16));
  }
}

/// s[16, kTileK] = q K^T. K's rows are the columns of B: they are loaded as they lie.
__device__ inline void scores(float (&s)[kTileK / 8][4], const unsigned (&q)[kSteps][4],
                              unsigned tile) {
  const int lane = threadIdx.x % 32, row = lane / 16 * 8 + lane % 8, chunk = lane / 8 % 2;
#pragma unroll
  for (int key = 0; key < kTileK; key += 16) {
    float(&left)[4] = s[key / 8], (&right)[4] = s[key / 8 + 1];
    for (int e = 0; e < 4; ++e) left[e] = right[e] = 0;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      unsigned b[4];
      ptx::load_matrix_4(b, tile + TileK::offset(key + row, 2 * step + chunk));
      multiply_add<kT>(left, q[step], b[0], b[1]);
      multiply_add<kT>(right, q[step], b[2], b[3]);
    }
  }
}

/// o[16, Dv] += p[16, kTileK] V. V's columns are loaded by transposing.
__device__ inline void add_values(float (&o)[kBlocksV][4], const float (&p)[kTileK / 8][4],
                                  unsigned tile) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int key = 0; key < kTileK; key += 16) {
    const float(&left)[4] = p[key / 8], (&right)[4] = p[key / 8 + 1];
    const unsigned a[4] = {pack<kT>(left[0], left[1]), pack<kT>(left[2], left[3]),
                           pack<kT>(right[0], right[1]), pack<kT>(right[2], right[3])};
#pragma unroll
    for (int n = 0; n < kBlocksV / 2; ++n) {
      unsigned b[4];
      ptx::load_matrix_4_transposed(b, tile + TileV::offset(key + lane % 16, 2 * n + lane / 16));
      multiply_add<kT>(o[2 * n], a, b[0], b[1]);
      multiply_add<kT>(o[2 * n + 1], a, b[2], b[3]);
    }
  }
}

}  // namespace flashlab::device
