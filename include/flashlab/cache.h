#pragma once

// Writing keys and values into a cache: what a decoding step does before it attends.

#include <cstdint>
#include <optional>

#include "flashlab/context.h"
#include "flashlab/status.h"
#include "flashlab/tensor.h"

namespace flashlab {

/// Which two elements of a head rotary position embedding turns together, of the first `width`:
/// kHalves       d and d + width / 2     (GPT-NeoX, Llama)
/// kInterleaved  2 d and 2 d + 1         (GPT-J; flash-attn's rotary_interleaved)
enum class RotaryPairs : std::uint8_t { kHalves, kInterleaved };

/// By which positions queries turn: query i by that of the i-th new key, or every query by that of
/// the first (flash-attn's rule without causal and window).
enum class RotaryQueries : std::uint8_t { kConsecutive, kFirst };

struct AppendOptions {
  RotaryPairs rotary_pairs = RotaryPairs::kHalves;
  RotaryQueries rotary_queries = RotaryQueries::kConsecutive;
};

/// Tensors of an append. The cache is what ForwardTensors says of k and v, block_table and
/// cache_batch_idx, without left padding: rows count from the first of the cache.
///
/// Ragged: with cu_seqlens_new the new rows of all sequences are rows of one tensor, [total_new,
/// heads_k, ...]; with cu_seqlens_q q and q_rotated are [total_q, heads_q, head_dim].
struct AppendTensors {
  Tensor k;               ///< [entries, capacity, heads_k, head_dim] or [pages, page_size, ...]
  Tensor v;               ///< the same with head_dim_v
  ConstTensor k_new;      ///< [batch, seqlen_new, heads_k, head_dim], dtype of k
  ConstTensor v_new;      ///< [batch, seqlen_new, heads_k, head_dim_v]
  ConstTensor seqused_k;  ///< [batch] int32 or int64: rows before the new
  std::optional<ConstTensor> block_table{};      ///< [batch, pages_per_sequence] int32
  std::optional<ConstTensor> cache_batch_idx{};  ///< [batch] int32 or int64
  std::optional<ConstTensor> cu_seqlens_new{};   ///< [batch + 1] int32 or int64
  std::optional<Tensor> seqused_after{};         ///< [batch], dtype of seqused_k: rows with the new
  /// [positions, width / 2], dtype of k or fp32: k turns by row `position`. Both or neither.
  std::optional<ConstTensor> rotary_cos{}, rotary_sin{};
  std::optional<ConstTensor> rotary_positions{};  ///< [batch]: of the first new row; else seqused_k
  std::optional<ConstTensor> q{};             ///< [batch, seqlen_q, heads_q, head_dim]: turns, too
  std::optional<Tensor> q_rotated{};          ///< shape of q; may be q itself
  std::optional<ConstTensor> cu_seqlens_q{};  ///< [batch + 1]
};

/// Appends rows to a cache.
///
/// Computes    row seqused_k[b] + i of sequence b's cache = row i of its k_new and v_new; with
///             rotary_cos and rotary_sin k turns by position p = seqused_k[b] + i (or
///             rotary_positions[b] + i):  (x, y) -> (x cos_p - y sin_p, x sin_p + y cos_p)  for
///             the pairs of the first `width` elements, the others stay. q_rotated is q, turned
///             likewise. seqused_after = seqused_k + new rows
/// Types       as forward; turned in fp32 (fp64 for fp64) and rounded once
/// Aliasing    what is written overlaps nothing else, but q_rotated may be q. Sequences that share
///             an entry or a page must not append to the same rows of it
/// Errors      kInvalidArgument (what forward would refuse of a cache; no room for the new rows;
///             rotary tables shorter than the cache, or than a position), with sequence and value:
///             nothing was written. On a GPU, which alone knows lengths, pages and positions,
///             nothing of such a sequence is written (no row of a page that is not there), its
///             seqused_after lies beyond its cache, so that attention answers NaN, and a query
///             without a position becomes NaN. kUnsupported: fp64 on a GPU
/// Cost        each new row is read and written once
Status append(const Context& context, Stream stream, const AppendTensors& tensors,
              const AppendOptions& options = {});

}  // namespace flashlab
