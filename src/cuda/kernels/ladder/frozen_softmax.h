#pragma once

// A softmax without a running maximum, where products leave a warp's 16 rows.
//
//   sum_j 2^(s_j - r) v_j  /  sum_j 2^(s_j - r)      is the same for every r
//
// so that r need not be the maximum: it must keep the sums within the numbers there are. r is the
// maximum of the first tile of keys, and stays. Only where a tile's sum passes kSumBound are the
// row's r and what was summed with it raised. r is never above the row's maximum, so that no sum
// falls to zero; the bound keeps P within fp16 (65504).

#include "ladder/hopper_tiles.h"
#include "ladder/warpgroup_products.h"
#include "ptx/warp.h"

namespace flashlab::device {

constexpr float kLowestReference = -3.0e38f;  // 2^(s - this) is infinity for every finite s
constexpr float kSumBound = 32768.0f;

/// Of a lane's two rows, in units of log2; the sums are over the lane's own columns.
struct FrozenRows {
  float reference[2] = {kLowestReference, kLowestReference};
  float sum[2] = {0, 0};

  /// Scores become 2^(factor s - r), and are summed. A score costs a multiply-add, a power and an
  /// addition.
  __device__ void exponentials(Scores& s, float (&added)[2], float factor) const {
    added[0] = added[1] = 0;
#pragma unroll
    for (int n = 0; n < kTileK / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[n][i] = ptx::exp2_fast(__fmaf_rn(s[n][i], factor, -reference[i / 2]));
        added[i / 2] += s[n][i];
      }
    }
  }

  /// Raises references that lie below a tile's scores. What was summed follows: returns by what O
  /// must be multiplied.
  __device__ void raise(float (&correction)[2], const Scores& s, float factor) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = kMinusInfinity;
#pragma unroll
      for (int n = 0; n < kTileK / 8; ++n) {
        largest = fmaxf(largest, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
      }
      largest = fmaxf(largest, ptx::shuffle_xor(largest, 1));
      largest = factor * fmaxf(largest, ptx::shuffle_xor(largest, 2));
      const float raised = fmaxf(reference[half], largest);
      correction[half] = mutation::rescale<Config>(ptx::exp2_fast(reference[half] - raised));
      sum[half] *= correction[half];
      reference[half] = raised;
    }
  }

  /// The sums over whole rows, and r in natural units, as the other rungs have them.
  __device__ void finish(RowStatistics (&rows)[2]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float all = sum[half] + ptx::shuffle_xor(sum[half], 1);
      all += ptx::shuffle_xor(all, 2);
      rows[half] = {reference[half] * kLn2, all};
    }
  }
};

/// Whether a row of the warp has passed the bound in this tile. NaN has not: it stands in the sums.
__device__ inline bool passed_bound(const float (&added)[2]) {
  return __any_sync(ptx::kFullMask, fmaxf(added[0], added[1]) > kSumBound);
}

}  // namespace flashlab::device
