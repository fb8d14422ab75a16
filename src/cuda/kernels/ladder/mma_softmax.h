#pragma once

// The softmax of a warp's 16 rows where mma_products.h leaves their scores: in registers, a row's
// shared by four neighbouring lanes.

#include "ladder/softmax.h"
#include "ptx/warp.h"

namespace flashlab::device {

/// One step of the softmax for the lane's two rows, whose scores four neighbouring lanes share:
/// s becomes e^(s - m'), and what was summed before must be multiplied by `correction`.
template <int kKeys>
__device__ inline void softmax_rows(float (&s)[kKeys / 8][4], RowStatistics (&rows)[2],
                                    float (&correction)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float largest = rows[half].maximum;
    for (int n = 0; n < kKeys / 8; ++n) {
      largest = fmaxf(largest, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
    }
    largest = fmaxf(largest, ptx::shuffle_xor(largest, 1));
    largest = fmaxf(largest, ptx::shuffle_xor(largest, 2));
    const float reference = finite_or_zero(largest);
    float sum = 0;
    for (int n = 0; n < kKeys / 8; ++n) {
      for (int e = 2 * half; e < 2 * half + 2; ++e) {
        s[n][e] = exp_difference(s[n][e], reference);
        sum += s[n][e];
      }
    }
    sum += ptx::shuffle_xor(sum, 1);
    sum += ptx::shuffle_xor(sum, 2);
    correction[half] = correction_of(rows[half].maximum, reference);
    rows[half] = {largest, rows[half].sum * correction[half] + sum};
  }
}

/// Scores of keys from k0 on: scaled, and -inf from `end` of the row on.
template <int kKeys>
__device__ inline void scale_and_hide(float (&s)[kKeys / 8][4], float scale, int k0,
                                      const int (&end)[2], bool on_the_edge) {
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      s[n][e] *= scale;
      if (on_the_edge && k0 + n * 8 + 2 * t + e % 2 >= end[e / 2]) s[n][e] = kMinusInfinity;
    }
  }
}

}  // namespace flashlab::device
