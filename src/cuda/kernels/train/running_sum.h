#pragma once

// Sums of exponentials below a maximum.

#include "ptx/math.h"
#include "ptx/warp.h"

namespace flashlab::device {

inline constexpr float kLog2E = 1.4426950408889634f;
/// Below any logit. Times log2 e it is finite, so that logits of -inf give 0 below it, not NaN.
inline constexpr float kLowest = -2e38f;

/// exp(x - max) by one multiplication and one ex2: the logits are what bounds the arithmetic.
__device__ inline float exp_below(float x, float max_log2) {
  return ptx::exp2_fast(fmaf(x, kLog2E, -max_log2));
}

/// A maximum and the sum of exponentials below it.
struct RunningSum {
  float max = kLowest, sum = 0;
};

/// The warp's running sum, the same bits in every lane.
__device__ inline RunningSum sum_over_warp(RunningSum mine) {
  RunningSum all = mine;
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    all.max = fmaxf(all.max, ptx::shuffle_xor(all.max, lanes));
  }
  all.sum = mine.sum * expf(mine.max - all.max);
  for (int lanes = 16; lanes > 0; lanes /= 2) all.sum += ptx::shuffle_xor(all.sum, lanes);
  return all;
}

}  // namespace flashlab::device
