#pragma once

// Attention sinks: one more score of every row of a head, to a key whose value is zero. It joins a
// row when its sums are done, so that no main loop knows it; where keys are split, in the merge.

namespace flashlab::device {

/// What a sink makes of a row: O' = factor O, LSE' = log(e^LSE + e^sink).
struct SinkRow {
  float factor, lse;
  /// O' of a row without a key.
  __device__ float nothing() const { return 0.0f * factor; }
};

/// NaN and +inf make the row NaN, as in any score; -inf changes nothing.
__device__ inline SinkRow with_sink(float lse, float sink) {
  constexpr float kInfinite = __builtin_bit_cast(float, 0x7f800000u);
  if (sink == -kInfinite) return {1, lse};
  if (!(sink < kInfinite)) return {sink - sink, sink - sink};
  if (lse == -kInfinite) return {0, sink};
  const float less = expf(-fabsf(sink - lse));  // the smaller one's share
  return sink <= lse ? SinkRow{1 / (1 + less), lse + log1pf(less)}
                     : SinkRow{less / (1 + less), sink + log1pf(less)};
}

}  // namespace flashlab::device
