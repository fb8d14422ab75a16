#pragma once

// The table of functions that one instruction set offers, and the structs they are called with.
// Plain data only: this header is included by translation units compiled for wide instruction sets
// (see the invariant in vector-inl.h) and by the planner.

#include <stddef.h>
#include <stdint.h>

#include "flashlab/context.h"
#include "flashlab/tensor.h"
#include "runtime/cpu/isa_tables.h"

namespace flashlab::internal::simd {

// ---------------------------------------------------------------------------------------------
// Packing
// ---------------------------------------------------------------------------------------------

/// A strided matrix in memory, elements of `dtype`, innermost stride 1.
struct MatrixView {
  const void* data = nullptr;
  DType dtype = DType::kFp32;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t row_stride = 0;  ///< elements
  bool far = false;        ///< rows come from beyond L2: those to be packed next are fetched
  const int64_t* offsets = nullptr;  ///< of rows that are no stride apart, elements
};

/// Packed operands have one Element per step of the reduction: a float, or a pair of bf16 (an odd
/// last value is paired with 0). Padding is zero. Offsets and strides count Elements.
///
///   columns of a panel are the matrix's rows ("transposed"): K for Q K^T; V for dO V^T
///     panel p holds rows [p * panel, ...): element (k, j) at p * panel_stride + k * panel + j
///     panel_stride = depth(columns) * panel
///   columns of a panel are the matrix's columns ("straight"): V for P V; K for dS K
///     panel p holds columns [p * panel, ...): element (k, j) at p * panel_stride + k * panel + j
///     panel_stride >= depth(rows) * panel
///   row-major A operand ("rows"): Q for Q K^T
///     element (i, k) at i * depth(columns) + k
///
/// depth(n) = ceil(n / kDepthPer). All destinations are 64-byte aligned.
struct PackKernels {
  /// Writes all panels of the view: ceil(rows / panel) * depth(columns) * panel Elements.
  void (*transposed)(const MatrixView& source, void* destination);
  /// Writes ceil(columns / panel) panels of depth(rows) * panel Elements, panel_stride apart.
  void (*straight)(const MatrixView& source, void* destination, int64_t panel_stride);
  /// Writes rows * depth(columns) Elements, each value multiplied by `factor` (a power of two with
  /// a sign, or 0, so that the product is exact). With bf16 the factor is applied before rounding.
  void (*rows)(const MatrixView& source, float factor, void* destination);
};

// ---------------------------------------------------------------------------------------------
// Forward
// ---------------------------------------------------------------------------------------------

/// A tensor seen as rows: element d of (batch, position, head) at
/// data[batch * batch_stride + position * row_stride + head * head_stride + d].
struct RowsView {
  const void* data = nullptr;
  DType dtype = DType::kFp32;
  int64_t batch_stride = 0;
  int64_t row_stride = 0;
  int64_t head_stride = 0;
  bool far = false;                  ///< as in MatrixView
  const int64_t* offsets = nullptr;  ///< of every position, in place of position * row_stride
};

/// A mask tensor, element (batch, head, query, key); broadcast dimensions have stride 0.
struct MaskView {
  const void* data = nullptr;  ///< null: no mask tensor
  DType dtype = DType::kBool;  ///< kBool: nonzero is visible; else added to the scaled score
  int64_t batch_stride = 0;
  int64_t head_stride = 0;
  int64_t query_stride = 0;
  int64_t key_stride = 0;  ///< 0 or 1
};

/// What becomes of a product beside its scale, before masks and softmax.
struct ScoreView {
  bool active = false;            ///< whether any of the below
  float cap = 0;                  ///< scores become cap tanh(score / cap); 0: they do not
  const float* slopes = nullptr;  ///< ALiBi's, element (batch, head); null: none
  int64_t slope_batch_stride = 0;
  int64_t slope_head_stride = 0;
  int64_t diagonal = 0;  ///< seqlen_k - seqlen_q: query i is aligned with key i + diagonal
};

/// Dropout. The pattern comes from code built for every machine.
struct DropoutView {
  /// keep[n] = 1 or 0 for the pair of `query` and `key + n`, n in [0, count); null: no dropout.
  void (*row)(const void* mask, int64_t batch, int64_t head, int64_t query, int64_t key,
              int64_t count, float* keep) noexcept = nullptr;
  const void* mask = nullptr;
  float scale = 1;  ///< 1 / (1 - p)
};

/// Which keys a query position sees by its place alone: [position + begin, position + end) and, of
/// these, those of the chunk that key position + shift lies in, clamped to [0, seqlen_k). Unbounded
/// sides are large, not infinite, so that the sums cannot overflow. band-inl.h reads it.
struct Band {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t chunk = 0;  ///< keys; 0: no chunks
  int64_t shift = 0;
};

/// Sizes and pointers shared by all tasks of a forward call.
struct ForwardCall {
  int64_t seqlen_q, seqlen_k;
  int64_t group;  ///< query heads per key head
  int64_t head_dim, head_dim_v;
  float query_factor;  ///< folded into packed Q: the sign of scale, or 0
  float score_factor;  ///< |scale|, 1 where scale is 0: a score is factor S + mask
  Band band;
  RowsView q, k, v;
  RowsView o;            ///< data is written
  float* lse = nullptr;  ///< null: not wanted
  int64_t lse_batch_stride, lse_head_stride, lse_row_stride;
  MaskView mask;
  ScoreView scores;
  DropoutView dropout;
  const float* sinks = nullptr;  ///< [query heads], or null

  /// Packed K and V of several (batch, key head), or null: every task packs the blocks it visits.
  const void* packed_keys = nullptr;
  const void* packed_values = nullptr;
  int64_t packed_keys_stride;          ///< Elements from one packed head to the next
  int64_t packed_values_stride;        ///< the same of V
  int64_t packed_values_panel_stride;  ///< Elements from one panel of V to the next

  /// Split along the keys: unnormalised O, maxima and sums per split, or null.
  ///   partial_o   [splits, batch * heads_k, group * seqlen_q, head_dim_v padded to kLanes]
  ///   partial_max [splits, batch * heads_k, group * seqlen_q] in units of S, partial_sum alike
  float* partial_o = nullptr;
  float* partial_max = nullptr;
  float* partial_sum = nullptr;

  int64_t batches;
  int64_t heads_k;
  int64_t key_block;  ///< keys per block, a multiple of the panel
  int64_t tile_rows;  ///< most rows of a task, at most 64 strips
};

/// One task: rows [row_begin, row_end) of the row space of a (batch, key head), in which row r is
/// query head (key_head * group + r / seqlen_q) at position r % seqlen_q, over keys [key_begin,
/// key_end). A task writes only its own rows, so results do not depend on scheduling.
struct ForwardTask {
  int64_t batch;
  int64_t key_head;
  int64_t row_begin, row_end;
  int64_t key_begin, key_end;
  int64_t split;        ///< which partial to write; -1: write o and lse
  int64_t packed;       ///< place of its K and V among the packed heads
  int64_t rows_before;  ///< rows of the head right before these that this thread takes next, or 0
};

struct ForwardKernels {
  /// Bytes of scratch one thread needs. key_block and tile_rows, whether it packs by itself.
  size_t (*scratch_bytes)(const ForwardCall& call, bool packs);
  /// scratch is 64-byte aligned.
  void (*run)(const ForwardCall& call, const ForwardTask& task, void* scratch);
  /// Merges `splits` partials of rows [row_begin, row_end) of (batch, key head) in index order and
  /// writes o and lse.
  void (*merge)(const ForwardCall& call, int64_t batch, int64_t key_head, int64_t row_begin,
                int64_t row_end, int64_t splits);
};

// ---------------------------------------------------------------------------------------------
// Backward, roof, the table
// ---------------------------------------------------------------------------------------------

struct BackwardKernels;  ///< cpu/simd/backward_kernels.h

/// Everything one translation unit offers.
struct KernelTable {
  const char* name;  ///< as it stands in kernel names: "avx512", "avx512_bf16"
  CpuIsa isa;
  int depth_per;  ///< values of the reduction in one packed Element: 1 (fp32) or 2 (bf16 pairs)
  int lanes;      ///< floats per vector
  int strip_rows;
  int panel;  ///< columns of a packed panel
  PackKernels pack;
  ForwardKernels forward;
  const BackwardKernels* backward;
  /// Multiply-adds of this table's kind in registers only, about `iterations` times; returns the
  /// FLOPs done. The roof that kernels are compared with.
  double (*roof)(int64_t iterations);
};

/// Bytes of a packed Element, of every table: a float, or two bf16.
inline constexpr int64_t kElementBytes = 4;

FLASHLAB_ISA_TABLES(KernelTable, kKernels)
#if defined(__x86_64__)
namespace avx512_bf16 {
extern const KernelTable kKernels;
}
namespace amx {
extern const KernelTable kKernels;  ///< forward only: its backward is null
}
#endif

/// The table for tensors of `dtype` (fp32, fp16, bf16) on an instruction set that is supported
/// here. fp16 is widened to fp32 at packing (no AVX512_FP16 assumed), and bf16 likewise where the
/// set has no bf16 products.
const KernelTable& kernels_for(CpuIsa isa, DType dtype);

/// The table for forward: kernels_for, but AMX's own for bf16 where `isa` is kAmx. Its panels are
/// those of AVX512_BF16, its strips are larger.
const KernelTable& forward_kernels_for(CpuIsa isa, DType dtype);

}  // namespace flashlab::internal::simd
