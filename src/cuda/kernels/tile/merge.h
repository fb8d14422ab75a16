#pragma once

// Merging attentions over disjoint sets of keys, one row by one warp:
//   LSE = log(sum_i exp(LSE_i)),   O = sum_i exp(LSE_i - LSE) O_i, parts in order
//
// Used by the merge of split keys and by the public merge. `Parts` says where parts lie:
//   int count                                        how many, at least 1
//   float lse(int part)                              natural log; -inf: an empty part
//   void load(int part, int column, float (&o)[N])   N neighbouring columns of the row
// An empty part's o is never read. A part whose LSE is NaN makes the row NaN.

#include "ptx/warp.h"
#include "tile/mutation.h"

namespace flashlab::device {

inline constexpr int kWarpLanes = 32;

__device__ inline float negative_infinity() {
  return __int_as_float(0xff800000);
}

/// What part i is multiplied by; 0 for an empty part, whatever the merged LSE.
__device__ inline float merge_weight(float lse, float merged) {
  return lse == negative_infinity() ? 0.0f : mutation::rescale<Config>(expf(lse - merged));
}

/// LSE of the union, in every lane; -inf if all parts are empty. All lanes of the warp call it.
template <class Parts>
__device__ inline float merged_lse(const Parts& parts, int lane) {
  float largest = negative_infinity();
  bool nan = false;
  for (int part = lane; part < parts.count; part += kWarpLanes) {
    const float lse = parts.lse(part);
    nan |= lse != lse;
    largest = fmaxf(largest, lse);
  }
  for (int lanes = kWarpLanes / 2; lanes > 0; lanes /= 2) {
    largest = fmaxf(largest, ptx::shuffle_xor(largest, lanes));
  }
  if (__any_sync(ptx::kFullMask, nan)) return __int_as_float(0x7fffffff);
  if (largest == negative_infinity()) return largest;
  float sum = 0;
  for (int part = lane; part < parts.count; part += kWarpLanes) {
    sum += merge_weight(parts.lse(part), largest);
  }
  for (int lanes = kWarpLanes / 2; lanes > 0; lanes /= 2) {
    sum += ptx::shuffle_xor(sum, lanes);
  }
  return largest + logf(sum);
}

/// The row's O: `store(column, values)` gets `kVector` neighbouring columns at a time. `columns` is
/// a multiple of kVector. All lanes of the warp call it.
template <int kVector, class Parts, class Store>
__device__ inline void merge_row(const Parts& parts, float merged, int columns, int lane,
                                 const Store& store) {
  for (int first = 0; first < columns; first += kWarpLanes * kVector) {
    const int column = first + lane * kVector;
    float sum[kVector] = {};
    for (int base = 0; base < parts.count; base += kWarpLanes) {
      // Lane i holds the weight of part base + i: one exponential per part and row.
      const int mine = base + lane;
      const float weight = mine < parts.count ? merge_weight(parts.lse(mine), merged) : 0.0f;
      const int here = min(kWarpLanes, parts.count - base);
      for (int i = 0; i < here; ++i) {
        const float w = ptx::shuffle(weight, i);
        if (w == 0.0f || column >= columns) continue;
        float o[kVector];
        parts.load(base + i, column, o);
#pragma unroll
        for (int v = 0; v < kVector; ++v) sum[v] = fmaf(w, o[v], sum[v]);
      }
    }
    if (column < columns) store(column, sum);
  }
}

}  // namespace flashlab::device
