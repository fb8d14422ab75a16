#pragma once

// The softmax of the rungs in which kTileK lanes hold a row, a score each: they swap values by warp
// shuffles, and all of them know m and l.

#include "ladder/forward.h"
#include "ptx/warp.h"

namespace flashlab::device {

static_assert(kTileK <= 32 && (kTileK & (kTileK - 1)) == 0 && kTileQ * kTileK % 32 == 0);

/// Of the kTileK lanes that hold a row: the largest value, the sum.
__device__ inline float row_maximum(float value) {
  for (int lanes = kTileK / 2; lanes > 0; lanes /= 2) {
    value = fmaxf(value, ptx::shuffle_xor(value, lanes));
  }
  return value;
}
__device__ inline float row_sum(float value) {
  for (int lanes = kTileK / 2; lanes > 0; lanes /= 2) value += ptx::shuffle_xor(value, lanes);
  return value;
}

/// The score becomes a probability; the row's statistics take it in. Returns the correction of what
/// was summed before.
__device__ inline float softmax_of_lanes(float& score, RowStatistics& row) {
  const float largest = fmaxf(row.maximum, row_maximum(score));
  const float p = exp_difference(score, finite_or_zero(largest));
  const float correction = correction_of(row.maximum, finite_or_zero(largest));
  row = {largest, row.sum * correction + row_sum(p)};
  score = p;
  return correction;
}

}  // namespace flashlab::device
