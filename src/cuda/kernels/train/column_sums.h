#pragma once

// What a block leaves of sums over rows: its warps have rows, its lanes columns.

#include "train/packs.h"

namespace flashlab::device {

inline constexpr int kColumnBlock = 256;               // threads
inline constexpr int kColumnRows = kColumnBlock / 32;  // that a block has at a time

/// Adds up the warps' sums of the 32 kVector columns of blockIdx.x: a part of row blockIdx.y of
/// `partials` [gridDim.y, kWidth].
template <int kWidth, int kVector>
__device__ inline void leave_column_sums(const Pack<kVector>& sum, float* partials) {
  __shared__ float sSums[kColumnRows][32 * kVector];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int i = 0; i < kVector; ++i) sSums[warp][lane * kVector + i] = sum.at[i];
  __syncthreads();
  for (int i = threadIdx.x; i < 32 * kVector; i += kColumnBlock) {
    const int at = blockIdx.x * 32 * kVector + i;
    if (at >= kWidth) continue;
    float total = 0;
    for (int other = 0; other < kColumnRows; ++other) total += sSums[other][i];
    partials[static_cast<Index>(blockIdx.y) * kWidth + at] = total;
  }
}

}  // namespace flashlab::device
