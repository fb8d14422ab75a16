#pragma once

// What attention kernels are launched with: one struct by value, the same text on host and device.
// The host fills it in launch/arguments.cpp. No include here: device code has no library headers.

namespace flashlab::device {

using Int64 = long long;
static_assert(sizeof(Int64) == 8 && sizeof(void*) == 8);

/// Rows of a tensor [batch, seqlen, heads, dim]; the innermost stride is 1. Strides in elements.
struct Rows {
  void* data;
  Int64 batch_stride, row_stride, head_stride;
};

/// A scalar per row: [batch, heads, seqlen]. Strides in elements; data may be null (not wanted).
struct RowScalars {
  void* data;
  Int64 batch_stride, head_stride, row_stride;
};

/// mask [batch, heads, seqlen_q, seqlen_k]; a broadcast dimension has stride 0. Null without one.
struct MaskView {
  const void* data;
  Int64 batch_stride, head_stride, row_stride, key_stride;
  int pairs;  ///< whether two elements at an even place of a row can be read at once
};

/// Sizes and scalars of a call. Query i sees key j iff  -left <= j - i <= right, 0 <= j < seqlen_k.
/// Unbounded sides hold values beyond any difference, so that comparing is always right.
struct Shape {
  int batch, heads_q, heads_k, group;  ///< group = heads_q / heads_k
  int seqlen_q, seqlen_k;
  int head_dim, head_dim_v;
  Int64 left, right;
  float scale;       ///< multiplies Q K^T
  float scale_log2;  ///< scale * log2(e)
  int packed_log2;   ///< sm90's forward: of the query heads whose rows share tiles; 0: one head's
  /// Keys that are seen together, of a Config with kChunk; below 0: positions are those of a
  /// diagonal that ends in the last key.
  int chunk;
};

/// ALiBi's slopes [batch, heads]; a broadcast dimension has stride 0. Null without them.
struct HeadScalars {
  const float* data;
  Int64 batch_stride, head_stride;
};

/// What scores are made of beside scale and mask (tile/score.h).
struct ScoreArguments {
  float unit, offset;   ///< of the 16-bit kernels: score * log2(e) = unit * value + offset
  float slope_unit;     ///< log2(e) / unit
  float argument;       ///< with softcap: multiplies a product before the power of two or tanh
  float cap;            ///< of softcap
  float cap_log2;       ///< with softcap: cap * log2(e)
  float log2_over_cap;  ///< with softcap: 1 / cap_log2
};

/// Dropout of probabilities (tile/probability.h).
struct DropoutArguments {
  const unsigned long long* state;  ///< seed and offset; null: those that follow
  unsigned long long seed, offset;
  unsigned limit;  ///< the probability that a pair is kept, in 65536ths
  float scale;     ///< 1 / (1 - p)
};

inline constexpr int kMaxRegions = 10, kMaxForwardRegions = 9;
/// Regions of a forward whose keys are cut in parts, fp32: o [part, batch, head, position, feature]
/// and lse, without features.
enum PartRegion : int { kPartialO, kPartialLse };

/// q [B, Sq, Hq, D]  k [B, Sk, Hk, D]  v [B, Sk, Hk, Dv]  o [B, Sq, Hq, Dv]  lse [B, Hq, Sq] fp32
struct ForwardArguments {
  Rows q, k, v, o;
  RowScalars lse;
  MaskView mask;
  Shape shape;
  HeadScalars slopes;
  ScoreArguments score;
  DropoutArguments dropout;
  void* regions[kMaxForwardRegions];  ///< the plan's workspace regions, in the plan's order
  const float* sinks;                 ///< [Hq]; null without them
  int parts;                          ///< in how many the keys are cut, where a plan merges parts
};

/// As forward; d_o as o, dq as q, dk as k, dv as v, d_lse as lse (null: zero).
struct BackwardArguments {
  Rows q, k, v, o, d_o, dq, dk, dv;
  RowScalars lse, d_lse;
  MaskView mask;
  Shape shape;
  HeadScalars slopes;
  ScoreArguments score;
  DropoutArguments dropout;
  void* regions[kMaxRegions];
};

}  // namespace flashlab::device
