#pragma once

// Products of a warp that owns 16 queries, from tiles in which chunk c of row r, 16 bytes, lies at
// Tile::offset(r, c): rows apart (mma_tiles.h), or as the copy engine writes them (hopper_tiles.h).
// ptx/mma.h says which lane holds which element of a fragment; in short, with g = lane / 4 and
// t = lane % 4, a lane has rows g and g + 8, columns 2t and 2t + 1 of every 16 x 8 block of scores
// or of O.

#include "ladder/forward.h"
#include "ptx/convert.h"
#include "ptx/memory.h"
#include "ptx/mma.h"

namespace flashlab::device {

/// Two floats side by side in 16 bits each. bf16 needs sm_80.
__device__ inline unsigned pack_two(float low, float high) {
  if constexpr (kT == Element::kBf16) return ptx::pack_bf16(low, high);
#if __CUDA_ARCH__ >= 800
  return ptx::pack_fp16(low, high);
#else
  return ptx::fp16_bits(low) | static_cast<unsigned>(ptx::fp16_bits(high)) << 16;
#endif
}

/// d[16, 8] += a[16, 16] b[16, 8]. sm_75 has fp16 in steps of 8 only: two of them.
__device__ inline void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  const unsigned b[2] = {b0, b1};
  if constexpr (kT == Element::kBf16) {
    ptx::mma_bf16_16816(d, a, b);
    return;
  }
#if __CUDA_ARCH__ >= 800
  ptx::mma_fp16_16816(d, a, b);
#else
  const unsigned lower[2] = {a[0], a[1]}, upper[2] = {a[2], a[3]};
  ptx::mma_fp16_1688(d, lower, b0);
  ptx::mma_fp16_1688(d, upper, b1);
#endif
}

/// Q as A fragments: rows [row, row + 16) of a tile, steps of 16 features.
template <class Tile, int kSteps>
__device__ inline void load_queries(unsigned (&q)[kSteps][4], unsigned tile, int row) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    ptx::load_matrix_4(q[step], tile + Tile::offset(row + lane % 16, 2 * step + lane / 16));
  }
}

/// s[16, kTileK] = q K^T. K's rows are the columns of B: they are loaded as they lie.
template <class Tile, int kSteps>
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
      ptx::load_matrix_4(b, tile + Tile::offset(key + row, 2 * step + chunk));
      multiply(left, q[step], b[0], b[1]);
      multiply(right, q[step], b[2], b[3]);
    }
  }
}

/// o[16, Dv] += p[16, kTileK] V. Where a lane holds scores is where it needs them as operand A: P
/// never leaves the registers. V's columns are loaded by transposing.
template <class Tile, int kBlocks>
__device__ inline void add_values(float (&o)[kBlocks][4], const float (&p)[kTileK / 8][4],
                                  unsigned tile) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int key = 0; key < kTileK; key += 16) {
    const float(&left)[4] = p[key / 8], (&right)[4] = p[key / 8 + 1];
    const unsigned a[4] = {pack_two(left[0], left[1]), pack_two(left[2], left[3]),
                           pack_two(right[0], right[1]), pack_two(right[2], right[3])};
#pragma unroll
    for (int n = 0; n < kBlocks / 2; ++n) {
      unsigned b[4];
      ptx::load_matrix_4_transposed(b, tile + Tile::offset(key + lane % 16, 2 * n + lane / 16));
      multiply(o[2 * n], a, b[0], b[1]);
      multiply(o[2 * n + 1], a, b[2], b[3]);
    }
  }
}

}  // namespace flashlab::device
