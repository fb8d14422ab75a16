#pragma once

// Backward of one instruction set: blocks of keys on the outside, tiles of queries on the inside,
// so that dK and dV are finished where they are summed and only dQ travels through memory.

#include "cpu/simd/backward_statistics-inl.h"

namespace flashlab::internal::simd {
namespace FLASHLAB_ISA {
namespace {

/// factor * sums -> one row of a gradient, replacing it or added to it.
HWY_INLINE void write_gradient_row(const float* sums, float factor, bool accumulate, DType dtype,
                                   int64_t dim, char* target) {
  with_dtype(dtype, [&]<DType kType>() {
    for (int64_t d = 0; d < dim; d += kLanes) {
      char* at = target + d * element_bytes(kType);
      Floats x = hn::Mul(load(sums + d), set(factor));
      if (accumulate) x = hn::Add(x, load_as<kType>(at, dim - d));
      store_as<kType>(x, at, dim - d);
    }
  });
}

template <class Multiply>
HWY_NOINLINE void write_key_gradients(const KeyBlock<Multiply>& block, int64_t head_k) {
  const BackwardCall& call = block.call;
  const BackwardScratch<Multiply>& s = block.scratch;
  const float factor = kMutation == Mutation::kUnscaledDk ? 1.0f : call.scale;
  for (int64_t j = 0; j < block.keys; ++j) {
    const int64_t key = block.key_begin + j;
    write_gradient_row(s.dk + j * s.padded_dim, factor, call.accumulate, call.dk.dtype,
                       call.head_dim, output_row_at(call.dk, block.batch, key, head_k));
    write_gradient_row(s.dv + j * s.padded_dim_v, call.dropout.scale, call.accumulate,
                       call.dv.dtype, call.head_dim_v,
                       output_row_at(call.dv, block.batch, key, head_k));
  }
}

/// The first row of a split's share of dQ of one (batch, query head).
HWY_INLINE float* dq_share(const BackwardCall& call, int64_t split, int64_t batch, int64_t head) {
  const int64_t flat = (split * call.batch + batch) * call.heads_q + head;
  return call.dq_accumulators + flat * call.seqlen_q * round_up(call.head_dim, kLanes);
}

/// All query tiles of the group's heads against one block.
template <class Multiply>
HWY_INLINE void visit_queries(const KeyBlock<Multiply>& block, int64_t head_k, int64_t split) {
  const BackwardCall& call = block.call;
  BackwardScratch<Multiply>& s = block.scratch;
  const int64_t first = clamp_to(first_query_of(call.band, block.key_begin), call.seqlen_q);
  const int64_t end =
      clamp_to(end_query_of(call.band, block.key_begin + block.keys - 1), call.seqlen_q);
  for (int64_t g = 0; g < call.group; ++g) {
    const int64_t head = head_k * call.group + g;
    // Tiles start where the block's first visible query is, so that a diagonal crosses one tile.
    for (int64_t query = first; query < end; query += call.tiles.query_rows) {
      QueryTile tile{head, query, least(call.tiles.query_rows, end - query),
                     dq_share(call, split, block.batch, head) + query * s.padded_dim, true};
      load_tile(block, tile);
      query_strips(block, tile);
      pack_columns(block, tile);
      if (kMutation != Mutation::kSingleHeadDkv || g == 0) key_strips(block, tile);
      if (!tile.finite) add_bad_rows(block, tile);
      if (block.bad_keys > 0) add_bad_keys(block, tile, head_k);
    }
  }
}

template <class Multiply>
size_t backward_scratch_bytes(const BackwardTiles& tiles, int64_t head_dim, int64_t head_dim_v) {
  BackwardScratch<Multiply> scratch;
  return scratch.carve(nullptr, tiles, head_dim, head_dim_v);
}

template <class Multiply>
void backward_key_split(const BackwardCall& call, int64_t batch, int64_t head_k, int64_t split,
                        void* memory) {
  BackwardScratch<Multiply> scratch;
  scratch.carve(memory, call.tiles, call.head_dim, call.head_dim_v);
  const KeySplit& range = call.splits[split];
  for (int64_t g = 0; g < call.group; ++g) {
    float* dq = dq_share(call, split, batch, head_k * call.group + g);
    zero_elements(dq + range.query_begin * scratch.padded_dim,
                  (range.query_end - range.query_begin) * scratch.padded_dim);
  }
  for (int64_t key = range.key_begin; key < range.key_end; key += call.tiles.block_keys) {
    KeyBlock<Multiply> block{
        call, scratch, batch, key, least(call.tiles.block_keys, range.key_end - key), 0, 0};
    block.columns = round_up(block.keys, kLanes * Multiply::kDepthPer);
    pack_keys(block, head_k);
    zero_elements(scratch.dk, block.keys * scratch.padded_dim);
    zero_elements(scratch.dv, block.keys * scratch.padded_dim_v);
    const bool dropped = kMutation == Mutation::kDroppedBlock && key / call.tiles.block_keys == 1;
    if (!dropped) visit_queries(block, head_k, split);
    write_key_gradients(block, head_k);
  }
}

/// Rows whose deltas are summed side by side, and the values of a row held at a time.
constexpr int kDeltaRows = 8;
constexpr int kDeltaChunk = 64;

/// Elements [first, first + kDeltaChunk) of a row as floats, zeros beyond dim.
HWY_INLINE void widen_chunk(const char* row, DType dtype, int64_t first, int64_t dim, float* out) {
  with_dtype(dtype, [&]<DType kType>() {
    for (int64_t d = 0; d < kDeltaChunk; d += kLanes) {
      const int64_t left = dim - first - d;
      store(left > 0 ? load_as<kType>(row + (first + d) * element_bytes(kType), left) : zero(),
            out + d);
    }
  });
}

/// Each row is summed in the order of d with fused multiply-adds, exactly as multiply_scores sums
/// dP of fp32: a row that sees a single key has O = V, and dP - delta must then be 0, not the
/// difference of two roundings. Eight rows side by side hide the latency of these chains.
void backward_row_delta(const BackwardCall& call, int64_t begin, int64_t end) {
  const hn::CappedTag<float, 1> one;
  alignas(64) float o[kDeltaRows][kDeltaChunk] = {};
  alignas(64) float d_o[kDeltaRows][kDeltaChunk] = {};
  for (int64_t flat = begin; flat < end; flat += kDeltaRows) {
    const int64_t count = least(kDeltaRows, end - flat);
    float sums[kDeltaRows] = {}, whole_sums[kDeltaRows] = {};
    for (int64_t first = 0; first < call.head_dim_v; first += kDeltaChunk) {
      if (first > 0 && first % kLongestSum == 0) {
        for (int r = 0; r < kDeltaRows; ++r) whole_sums[r] += sums[r], sums[r] = 0.0f;
      }
      FlatRow row(call, flat);
      for (int64_t r = 0; r < count; ++r, row.next(call)) {
        widen_chunk(row_at(call.o, row.batch, row.query, row.head), call.o.dtype, first,
                    call.head_dim_v, o[r]);
        widen_chunk(row_at(call.d_o, row.batch, row.query, row.head), call.d_o.dtype, first,
                    call.head_dim_v, d_o[r]);
      }
      const int64_t terms = least(kDeltaChunk, call.head_dim_v - first);
      hn::Vec<decltype(one)> sum[kDeltaRows];
#pragma GCC unroll 8
      for (int r = 0; r < kDeltaRows; ++r) sum[r] = hn::Set(one, sums[r]);
      for (int64_t d = 0; d < terms; ++d) {
#pragma GCC unroll 8
        for (int r = 0; r < kDeltaRows; ++r) {
          sum[r] = hn::MulAdd(hn::Set(one, d_o[r][d]), hn::Set(one, o[r][d]), sum[r]);
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < kDeltaRows; ++r) sums[r] = hn::GetLane(sum[r]);
    }
    FlatRow row(call, flat);
    for (int64_t r = 0; r < count; ++r, row.next(call)) {
      float delta = call.head_dim_v > kLongestSum ? whole_sums[r] + sums[r] : sums[r];
      if (call.d_lse.data != nullptr && kMutation != Mutation::kMissingDlse) {
        delta -= statistic_at(call.d_lse, row);
      }
      // An empty row's gradients are 0 whatever o, d_o and d_lse hold there.
      const bool empty = statistic_at(call.lse, row) == -HUGE_VALF;
      call.delta[flat + r] = empty || kMutation == Mutation::kMissingDelta ? 0.0f : delta;
      if (call.lse_main != nullptr) {
        call.lse_main[flat + r] = statistic_at(call.lse, row);
        call.lse_rest[flat + r] = 0.0f;
      }
    }
  }
}

void backward_finish_dq(const BackwardCall& call, int64_t begin, int64_t end) {
  const int64_t padded = round_up(call.head_dim, kLanes);
  const int64_t share = call.batch * call.heads_q * call.seqlen_q * padded;
  const float factor = kMutation == Mutation::kUnscaledDq ? 1.0f : call.scale;
  FlatRow row(call, begin);
  for (int64_t flat = begin; flat < end; ++flat, row.next(call)) {
    char* target = output_row_at(call.dq, row.batch, row.query, row.head);
    with_dtype(call.dq.dtype, [&]<DType kType>() {
      for (int64_t d = 0; d < call.head_dim; d += kLanes) {
        Floats sum = zero();
        for (int64_t s = 0; s < call.split_count; ++s) {
          if (row.query < call.splits[s].query_begin || row.query >= call.splits[s].query_end) {
            continue;
          }
          sum = hn::Add(sum, load(call.dq_accumulators + s * share + flat * padded + d));
        }
        const int64_t left = call.head_dim - d;
        char* at = target + d * element_bytes(kType);
        sum = hn::Mul(sum, set(factor));
        if (call.accumulate) sum = hn::Add(sum, load_as<kType>(at, left));
        store_as<kType>(sum, at, left);
      }
    });
  }
}

template <class Multiply>
constexpr BackwardKernels kBackwardKernels = {
    &backward_scratch_bytes<Multiply>, &backward_row_delta, &backward_row_statistics<Multiply>,
    &backward_key_split<Multiply>,     &backward_finish_dq,
};

}  // namespace
}  // namespace FLASHLAB_ISA
}  // namespace flashlab::internal::simd
