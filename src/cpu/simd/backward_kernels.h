#pragma once

// What one backward call hands to the kernels of an instruction set, and the functions it gets from
// them: plain data without functions (see the invariant in vector-inl.h).

#include <stddef.h>
#include <stdint.h>

#include "cpu/simd/kernels.h"

namespace flashlab::internal::simd {

/// A [batch, heads, seqlen_q] fp32 tensor of row statistics.
struct StatisticsView {
  const float* data = nullptr;  ///< null: absent
  int64_t batch_stride = 0;
  int64_t head_stride = 0;
  int64_t row_stride = 0;
};

/// Tile sizes of a backward kernel.
struct BackwardTiles {
  int query_rows = 0;  ///< queries per tile, a multiple of strip_rows
  int block_keys = 0;  ///< keys per block, a multiple of panel
};

/// A contiguous range of keys that one task owns, and the queries that see any of them.
struct KeySplit {
  int64_t key_begin = 0;
  int64_t key_end = 0;
  int64_t query_begin = 0;
  int64_t query_end = 0;
};

/// Sizes and pointers shared by all tasks of a backward call.
struct BackwardCall {
  int64_t batch = 0, heads_q = 0, heads_k = 0;
  int64_t group = 1;  ///< query heads per key head
  int64_t seqlen_q = 0, seqlen_k = 0;
  int64_t head_dim = 0, head_dim_v = 0;
  Band band{};
  float scale = 1;
  bool accumulate = false;  ///< add to dq, dk, dv instead of replacing them
  BackwardTiles tiles{};

  RowsView q{}, k{}, v{}, o{}, d_o{};
  RowsView dq{}, dk{}, dv{};  ///< data is written
  StatisticsView lse{}, d_lse{};
  MaskView mask{};
  ScoreView scores{};
  DropoutView dropout{};
  const float* sinks = nullptr;  ///< [query heads], or null

  const KeySplit* splits = nullptr;
  int64_t split_count = 0;

  float* delta = nullptr;  ///< [batch * heads_q * seqlen_q]
  /// With an additive mask LSE = lse_main + lse_rest, [batch * heads_q * seqlen_q] each; else null.
  float* lse_main = nullptr;
  float* lse_rest = nullptr;
  /// [split_count][batch * heads_q * seqlen_q][head_dim rounded up to lanes]. A split writes the
  /// rows of its query range only.
  float* dq_accumulators = nullptr;
};

/// The backward kernels of one table. "Flat rows" count through [batch, heads_q, seqlen_q].
struct BackwardKernels {
  /// Bytes of scratch `key_split` needs per thread.
  size_t (*scratch_bytes)(const BackwardTiles& tiles, int64_t head_dim, int64_t head_dim_v);

  /// delta = rowsum(dO * O) - dLSE of flat rows [begin, end); 0 for a row with LSE = -inf. Where
  /// there is lse_main, it becomes LSE, and lse_rest 0.
  void (*row_delta)(const BackwardCall& call, int64_t begin, int64_t end);

  /// With lse_main: both numbers of the rows of one (batch, query head) whose LSE is large. scratch
  /// is that of key_split.
  void (*row_statistics)(const BackwardCall& call, int64_t batch, int64_t head, void* scratch);

  /// dK and dV of one split's keys of one (batch, key head), complete, and the split's share of dQ.
  /// scratch is 64-byte aligned. Writes nothing that another task writes.
  void (*key_split)(const BackwardCall& call, int64_t batch, int64_t key_head, int64_t split,
                    void* scratch);

  /// dQ of flat rows [begin, end): the splits' shares added in order, scaled, rounded.
  void (*finish_dq)(const BackwardCall& call, int64_t begin, int64_t end);
};

}  // namespace flashlab::internal::simd
