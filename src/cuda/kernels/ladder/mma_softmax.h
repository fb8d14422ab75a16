#pragma once

// The softmax of a warp's 16 rows where mma_products.h leaves their scores: in registers, a row's
// shared by four neighbouring lanes.

#include "ladder/forward.h"
#include "ptx/warp.h"

namespace flashlab::device {

/// The two queries that a lane of a warp has of the 16 that begin at `first`, as a product leaves
/// them, and one past the last key that each of them sees.
struct LaneRows {
  int row[2], end[2];

  __device__ LaneRows(const Shape& shape, int first) {
    for (int half = 0; half < 2; ++half) {
      row[half] = first + threadIdx.x % 32 / 4 + 8 * half;
      end[half] = key_end(shape, row[half]);
    }
  }
};

__device__ inline void scale_scores(float (&s)[kTileK / 8][4], float scale) {
#pragma unroll
  for (auto& block : s) {
#pragma unroll
    for (float& score : block) score *= scale;
  }
}

/// Scores of keys from k0 on are -inf from `end` of the row on.
__device__ inline void hide(float (&s)[kTileK / 8][4], int k0, const int (&end)[2]) {
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int n = 0; n < kTileK / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (k0 + n * 8 + 2 * t + e % 2 >= end[e / 2]) s[n][e] = kMinusInfinity;
    }
  }
}

/// One step of the softmax for the lane's two rows, whose scores four neighbouring lanes share:
/// s becomes e^(s - m'), and what was summed before must be multiplied by `correction`.
__device__ inline void softmax_rows(float (&s)[kTileK / 8][4], RowStatistics (&rows)[2],
                                    float (&correction)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float largest = rows[half].maximum;
    for (int n = 0; n < kTileK / 8; ++n) {
      largest = fmaxf(largest, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
    }
    largest = fmaxf(largest, ptx::shuffle_xor(largest, 1));
    largest = fmaxf(largest, ptx::shuffle_xor(largest, 2));
    const float reference = finite_or_zero(largest);
    float sum = 0;
    for (int n = 0; n < kTileK / 8; ++n) {
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

/// What was summed with old maxima follows the new ones.
template <int kBlocks>
__device__ inline void correct_outputs(float (&o)[kBlocks][4], const float (&correction)[2]) {
#pragma unroll
  for (auto& block : o) {
    block[0] *= correction[0], block[1] *= correction[0];
    block[2] *= correction[1], block[3] *= correction[1];
  }
}

}  // namespace flashlab::device
