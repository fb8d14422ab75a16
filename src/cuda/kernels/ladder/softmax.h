#pragma once

// The two numbers of a softmax that can be corrected, m and l, and the softmax of a row by one
// thread.

#include "config_types.h"
#include "ptx/math.h"
#include "tile/mutation.h"

namespace flashlab::device {

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;
inline constexpr float kMinusInfinity = -__builtin_bit_cast(float, 0x7f800000u);

/// e^(score - maximum). The difference is taken before the change of base: close scores subtract
/// without error, so large ones cost no accuracy.
__device__ inline float exp_difference(float score, float maximum) {
  return ptx::exp2_fast((score - maximum) * mutation::scale<Config>(kLog2E));
}

/// c = e^(m - m'), what is owed to everything that was summed with the old maximum.
__device__ inline float correction_of(float maximum, float reference) {
  return mutation::rescale<Config>(exp_difference(maximum, reference));
}

/// What stands in for the maximum of a row that has seen no score above -inf: with 0, every term is
/// e^(-inf) = 0, where -inf - (-inf) would be NaN.
__device__ inline float finite_or_zero(float maximum) {
  return maximum == kMinusInfinity ? 0.0f : maximum;
}

/// A softmax's running statistics of one row: over no key yet, unless told otherwise.
struct RowStatistics {
  float maximum = kMinusInfinity;  // m
  float sum = 0;                   // l, of e^(score - m)
};

/// Adds kKeys scores of a row to its statistics, by one thread, and turns them into probabilities.
/// Returns the correction of the old sums.
template <int kKeys>
__device__ inline float softmax_row(float* scores, RowStatistics& row) {
  float largest = row.maximum;
#pragma unroll 8
  for (int j = 0; j < kKeys; ++j) largest = fmaxf(largest, scores[j]);
  const float reference = finite_or_zero(largest);
  const float correction = correction_of(row.maximum, reference);
  float added = 0;
#pragma unroll 8
  for (int j = 0; j < kKeys; ++j) {
    scores[j] = exp_difference(scores[j], reference);
    added += scores[j];
  }
  row = {largest, row.sum * correction + added};
  return correction;
}

/// sum_j e^(s_j - m) v_j over sum_j e^(s_j - m); a row without keys gives 0 whatever V holds.
__device__ inline float normalised(float accumulated, float sum) {
  return sum == 0 ? 0.0f : accumulated / sum;
}

__device__ inline float4 normalised(float4 o, float sum) {
  return {normalised(o.x, sum), normalised(o.y, sum), normalised(o.z, sum), normalised(o.w, sum)};
}

/// log of the row's sum of exponentials; an empty row has sum 0 and gives -inf.
__device__ inline float log_sum_exp(float maximum, float sum) {
  return sum == 0 ? kMinusInfinity : maximum + kLn2 * ptx::log2_fast(sum);
}

}  // namespace flashlab::device
