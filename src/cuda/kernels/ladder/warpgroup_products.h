#pragma once

// Products of a warpgroup that owns 64 queries (wgmma). They run beside the threads that start
// them: a product is started, and waited for (ptx::wgmma_wait) before its result is read or its
// operands are overwritten. A lane holds of S and O what it holds after mma_products.h: warp w of
// the group has rows 16 w .. 16 w + 15, columns 2t and 2t + 1 of every 16 x 8 block.

#include "ladder/hopper_tiles.h"
#include "ptx/warpgroup.h"
#include "tile/fragments.h"
#include "tile/warpgroup.h"

namespace flashlab::device {

using Scores = float[kTileK / 8][4];
using Outputs = float[kBlocksV][4];
using Probabilities = unsigned[kTileK / 16][4];  // two elements each: operand A, per 16 keys

/// kCount blocks of 8 columns as the registers that one product names.
template <int kCount, int kBlocks>
__device__ inline float (&registers_of(float (&blocks)[kBlocks][4], int first = 0))[4 * kCount] {
  return reinterpret_cast<float(&)[4 * kCount]>(blocks[first]);
}

/// Tells the compiler that products wrote, or read, these registers just now.
__device__ inline void pin_scores(Scores& s) {
  pin(registers_of<kTileK / 8>(s));
}
__device__ inline void pin_outputs(Outputs& o) {
  pin(registers_of<kBlocksV>(o));
}
__device__ inline void pin_probabilities(Probabilities& p) {
#pragma unroll
  for (auto& step : p) pin(step);
}

/// Starts S = Q K^T. Both operands are read from shared memory, Q's 64 rows from `tile_q` on.
__device__ inline void start_scores(Scores& s, unsigned tile_q, unsigned tile_k) {
  pin_scores(s);
  ptx::wgmma_fence();
  const unsigned long long q = slab_descriptor(tile_q), k = slab_descriptor(tile_k);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {  // descriptors count in 16 bytes
    multiply_shared<kT>(registers_of<kTileK / 8>(s), q + (TileQ::step_offset(step) >> 4),
                        k + (TileK::step_offset(step) >> 4), step > 0);
  }
  ptx::wgmma_commit();
}

/// Starts O += P V: P from registers, V from shared memory, 64 features at a time.
__device__ inline void start_outputs(Outputs& o, Probabilities& p, unsigned tile_v) {
  pin_outputs(o);
  pin_probabilities(p);
  ptx::wgmma_fence();
  const unsigned long long v = slab_descriptor(tile_v);
#pragma unroll
  for (int step = 0; step < kTileK / 16; ++step) {
#pragma unroll
    for (int slab = 0; slab < TileV::kSlabs; ++slab) {
      multiply_registers<kT>(registers_of<8>(o, 8 * slab), p[step],
                             v + (TileV::step_offset_rows(step, slab) >> 4));
    }
  }
  ptx::wgmma_commit();
}

/// Where a lane holds scores is where it needs them as operand A: P never leaves the registers.
__device__ inline void round_probabilities(Probabilities& p, const Scores& s) {
#pragma unroll
  for (int step = 0; step < kTileK / 16; ++step) {
    const float(&left)[4] = s[2 * step], (&right)[4] = s[2 * step + 1];
    p[step][0] = pack<kT>(left[0], left[1]), p[step][1] = pack<kT>(left[2], left[3]);
    p[step][2] = pack<kT>(right[0], right[1]), p[step][3] = pack<kT>(right[2], right[3]);
  }
}

}  // namespace flashlab::device
