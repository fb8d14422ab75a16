#pragma once

// Online softmax without a running maximum.
//
//     o = sum_j 2^(s_j - r) v_j / sum_j 2^(s_j - r)
//
// is the same for every reference r, so r need not be the maximum: it must only keep the sums in
// range. r is the maximum of the row's first step, and is raised to that of a later one only when
// that step's partial sum passes kSumBound. Until then a score costs one FFMA, one EX2, one FADD
// and half a conversion: no maximum, no exchange between lanes, no scaling of o. The bound keeps P
// within fp16 (65504); the relative rounding of P does not depend on its magnitude, and small P
// lose nothing since r never exceeds the true maximum.
//
// Special values: without a visible key in the first step r stays near the lowest float, so that
// the first visible score gives 2^huge = +inf, passes the bound and sets r. A score of +inf passes
// the bound and makes r = +inf, whence inf - inf = NaN for the row. A NaN passes no bound and
// stands in the sum. Scores of -inf give 0.

#include "ptx/math.h"
#include "ptx/warp.h"
#include "tile/mask.h"
#include "tile/mutation.h"

namespace flashlab::device {

inline constexpr float kLowestReference = -3.0e38f;
inline constexpr float kSumBound = 32768.0f;

/// Maximum over the four lanes that share a row of a product's result.
__device__ inline float quad_max(float value) {
  value = fmaxf(value, ptx::shuffle_xor(value, 1));
  return fmaxf(value, ptx::shuffle_xor(value, 2));
}
__device__ inline float quad_sum(float value) {
  value += ptx::shuffle_xor(value, 1);
  return value + ptx::shuffle_xor(value, 2);
}

/// Statistics of the rows a lane holds: kBlocks blocks of 16 rows, rows g and g + 8 of each.
template <class Config, int kBlocks>
struct RowStatistics {
  float reference[kBlocks][2];  ///< r, in units of log2
  float sum[kBlocks][2];        ///< of 2^(s - r), this lane's columns only
  float step[kBlocks][2];       ///< the same of the current step, not yet in `sum`

  __device__ void clear() {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        reference[m][h] = kLowestReference;
        sum[m][h] = step[m][h] = 0;
      }
    }
  }

  /// Whether any row of the warp has passed the bound. NaN has not.
  __device__ bool out_of_range() const {
    float largest = 0;
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      largest = fmaxf(largest, fmaxf(step[m][0], step[m][1]));
    }
    return __any_sync(ptx::kFullMask, largest > kSumBound);
  }

  /// Takes the step's sums over.
  __device__ void accept() {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        sum[m][h] += step[m][h];
        step[m][h] = 0;
      }
    }
  }

  /// Raises a row's reference to the maximum of its current scores (any lane's), and returns the
  /// factor for what was summed with the old one. The step's sum is dropped.
  __device__ float raise(int m, int h, float largest_score, float factor) {
    const float candidate = quad_max(largest_score) * factor;
    const float old = reference[m][h];
    reference[m][h] = fmaxf(old, candidate);
    const float scale = mutation::rescale<Config>(ptx::exp2_fast(old - reference[m][h]));
    sum[m][h] *= scale;
    step[m][h] = 0;
    return scale;
  }

  /// Sums over the lanes of a row; after the last step.
  __device__ void finish() {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      sum[m][0] = quad_sum(sum[m][0]);
      sum[m][1] = quad_sum(sum[m][1]);
    }
  }

  /// After finish(): natural log of the sum of exp(scores); -inf for an empty row. `offset`: what
  /// every score, in units of log2, has beyond what was summed.
  __device__ float lse(int m, int h, float offset = 0) const {
    const float total = sum[m][h];
    const float base = offset == 0 ? reference[m][h] : reference[m][h] + offset;
    return total == 0 ? kMinusInfinity : (base + ptx::log2_fast(total)) * kLn2;
  }
};

}  // namespace flashlab::device
