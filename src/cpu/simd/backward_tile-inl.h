#pragma once

// One tile of backward: up to query_rows queries against one block of keys, all five products.
//
//   strips of 6 queries   S = Q K^T,  dP = dO V^T,  P and dS,  dQ += dS K
//   then strips of 6 keys dV += P^T dO,  dK += dS^T Q
//
// Only what the bounds show is computed: whole panels for S and dP, exact ranges of the reduction
// for the other three. At a causal diagonal that leaves half a panel per query and three queries
// per key of waste.

#include "cpu/simd/backward_elementwise-inl.h"
#include "cpu/simd/band-inl.h"

namespace flashlab::internal::simd {
namespace FLASHLAB_ISA {
namespace {

/// A block of keys of one (batch, key head), packed.
template <class Multiply>
struct KeyBlock {
  const BackwardCall& call;
  BackwardScratch<Multiply>& scratch;
  int64_t batch;
  int64_t key_begin;
  int64_t keys;     ///< of this block
  int64_t columns;  ///< keys rounded up to what the elementwise step handles at a time
  int bad_keys;     ///< entries of scratch.bad_keys
};

/// Queries of one head against the block.
struct QueryTile {
  int64_t head;
  int64_t query_begin;
  int64_t rows;
  float* dq;    ///< [rows][padded_dim] sums
  bool finite;  ///< every row is
};

/// The keys of the block that query sees by the bounds: first and end of `row`.
HWY_INLINE void set_visible_keys(const BackwardCall& call, int64_t key_begin, int64_t keys,
                                 int64_t query, TileRow& row) {
  row.first = static_cast<int32_t>(clamp_to(first_key_of(call.band, query) - key_begin, keys));
  row.end = static_cast<int32_t>(clamp_to(end_key_of(call.band, query) - key_begin, keys));
  if (row.first >= row.end) row.first = row.end = 0;
}

/// The queries of the tile that see any key of [key, key + count) by the bounds, as rows [first,
/// end).
HWY_INLINE void visible_rows(const BackwardCall& call, const QueryTile& tile, int64_t key,
                             int64_t count, int64_t& first, int64_t& end) {
  first = clamp_to(first_query_of(call.band, key) - tile.query_begin, tile.rows);
  end = clamp_to(end_query_of(call.band, key + count - 1) - tile.query_begin, tile.rows);
}

/// Whether the row's LSE is -inf: it sees no key.
HWY_INLINE bool is_empty(const TileRow& row) {
  return row.negative_lse == HUGE_VALF;
}

template <class Element>
HWY_INLINE void zero_elements(Element* p, int64_t count) {
  memset(static_cast<void*>(p), 0, static_cast<size_t>(count) * sizeof(Element));
}

/// Packs K and V of the block: panels of columns for S and dP, rows for dQ. Keys whose k holds NaN
/// or infinity are zero among the rows and listed (see add_bad_keys).
template <class Multiply>
HWY_NOINLINE void pack_keys(KeyBlock<Multiply>& block, int64_t head_k) {
  constexpr int kPair = Multiply::kDepthPer;
  const BackwardCall& call = block.call;
  BackwardScratch<Multiply>& s = block.scratch;
  block.bad_keys = 0;
  for (int64_t j = 0; j < block.keys; j += kPanel) {
    const int64_t count = least(kPanel, block.keys - j);
    const auto never = [](int64_t) { return false; };
    copy_rows<Multiply>(call.v, block.batch, head_k, block.key_begin + j, count, call.head_dim_v,
                        s.padded_dim_v, s.staging, s.row_elements_v, never, [](int64_t, bool) {});
    transpose_to_panel(s.staging, count, s.row_elements_v, s.depth_v, s.v_panels + j * s.depth_v);

    const int first_bad = block.bad_keys;
    copy_rows<Multiply>(call.k, block.batch, head_k, block.key_begin + j, count, call.head_dim,
                        s.padded_dim, s.staging, s.row_elements, never, [&](int64_t r, bool ok) {
                          if (!ok) s.bad_keys[block.bad_keys++] = static_cast<int32_t>(j + r);
                        });
    transpose_to_panel(s.staging, count, s.row_elements, s.depth, s.k_panels + j * s.depth);
    for (int n = first_bad; n < block.bad_keys; ++n) {
      zero_elements(s.staging + (s.bad_keys[n] - j) * s.row_elements, s.row_elements);
    }
    if constexpr (kPacksPanels<Multiply>) {
      rows_to_panels(s.staging, count, s.row_elements, s.padded_dim, call.tiles.block_keys, j,
                     s.k_rows);
    } else if constexpr (kPair == 1) {
      memcpy(s.k_rows + j * s.padded_dim, s.staging,
             static_cast<size_t>(count * s.padded_dim) * sizeof(float));
    } else {
      for (int64_t r = 0; r < count; r += 2) {
        const auto* even = reinterpret_cast<const uint16_t*>(s.staging + r * s.row_elements);
        const auto* odd = reinterpret_cast<const uint16_t*>(s.staging + (r + 1) * s.row_elements);
        pair_rows(even, r + 1 < count ? odd : nullptr, s.padded_dim,
                  s.k_rows + (j + r) / 2 * s.padded_dim);
      }
    }
  }
}

/// Copies Q and dO of the tile and fills the rows' statistics. An empty row contributes nothing,
/// whatever its q and d_o hold: it is zero here.
template <class Multiply>
HWY_NOINLINE void load_tile(const KeyBlock<Multiply>& block, QueryTile& tile) {
  const BackwardCall& call = block.call;
  BackwardScratch<Multiply>& s = block.scratch;
  const float* lse = call.lse.data + block.batch * call.lse.batch_stride +
                     tile.head * call.lse.head_stride + tile.query_begin * call.lse.row_stride;
  const int64_t flat = (block.batch * call.heads_q + tile.head) * call.seqlen_q + tile.query_begin;
  for (int64_t i = 0; i < tile.rows; ++i) {
    TileRow& row = s.rows[i];
    const bool parts = call.lse_main != nullptr;
    row.negative_lse = parts ? -call.lse_main[flat + i] : -lse[i * call.lse.row_stride];
    row.lse_rest = parts ? call.lse_rest[flat + i] : 0.0f;
    row.delta = call.delta[flat + i];
    row.finite_q = row.finite_d_o = true;
    if (is_empty(row)) {
      row.first = row.end = 0;
      zero_elements(s.q_rows + i * s.row_elements, s.row_elements);
      zero_elements(s.d_o_rows + i * s.row_elements_v, s.row_elements_v);
    } else {
      set_visible_keys(call, block.key_begin, block.keys, tile.query_begin + i, row);
    }
  }
  bool finite = true;
  const auto skip = [&](int64_t i) { return is_empty(s.rows[i]); };
  copy_rows<Multiply>(call.q, block.batch, tile.head, tile.query_begin, tile.rows, call.head_dim,
                      s.padded_dim, s.q_rows, s.row_elements, skip, [&](int64_t i, bool ok) {
                        s.rows[i].finite_q = ok;
                        finite = finite && ok;
                      });
  copy_rows<Multiply>(call.d_o, block.batch, tile.head, tile.query_begin, tile.rows,
                      call.head_dim_v, s.padded_dim_v, s.d_o_rows, s.row_elements_v, skip,
                      [&](int64_t i, bool ok) {
                        s.rows[i].finite_d_o = ok;
                        finite = finite && ok;
                      });
  tile.finite = finite;
}

/// bf16: Q and dO as m pairs. Rows with NaN or infinity are zero there (see add_bad_rows).
/// fp32: rows or panels of them serve both products, so bad rows are zeroed once S and dP are done.
template <class Multiply>
HWY_NOINLINE void pack_columns(const KeyBlock<Multiply>& block, const QueryTile& tile) {
  BackwardScratch<Multiply>& s = block.scratch;
  if (!tile.finite) {
    for (int64_t i = 0; i < tile.rows; ++i) {
      if (!s.rows[i].finite_q) zero_elements(s.q_rows + i * s.row_elements, s.row_elements);
      if (!s.rows[i].finite_d_o) zero_elements(s.d_o_rows + i * s.row_elements_v, s.row_elements_v);
    }
  }
  if constexpr (kPacksPanels<Multiply>) {
    const int64_t rows = block.call.tiles.query_rows;
    rows_to_panels(s.q_rows, tile.rows, s.row_elements, s.padded_dim, rows, 0, s.q_columns);
    rows_to_panels(s.d_o_rows, tile.rows, s.row_elements_v, s.padded_dim_v, rows, 0, s.d_o_columns);
  }
  if constexpr (Multiply::kDepthPer == 2) {
    const auto halves = [](const uint32_t* p) { return reinterpret_cast<const uint16_t*>(p); };
    for (int64_t i = 0; i < tile.rows; i += 2) {
      const bool single = i + 1 == tile.rows;
      const uint32_t* q = s.q_rows + i * s.row_elements;
      const uint32_t* d_o = s.d_o_rows + i * s.row_elements_v;
      pair_rows(halves(q), single ? nullptr : halves(q + s.row_elements), s.padded_dim,
                s.q_columns + i / 2 * s.padded_dim);
      pair_rows(halves(d_o), single ? nullptr : halves(d_o + s.row_elements_v), s.padded_dim_v,
                s.d_o_columns + i / 2 * s.padded_dim_v);
    }
  }
}

/// S and dP of rows [i, i + count) for keys [first, end), in whole panels.
template <class Multiply>
HWY_INLINE void strip_scores(const BackwardScratch<Multiply>& s, int64_t i, int count,
                             int64_t first, int64_t end, float* scores, float* d_p) {
  const int64_t panel = first / kPanel;
  const int64_t column = panel * kPanel;
  multiply_scores<Multiply>(
      count, end - column, s.depth * kPanel,
      {s.depth, s.q_rows + i * s.row_elements, s.row_elements, 1,
       s.k_panels + panel * s.depth * kPanel, kPanel, scores + column, s.tile_stride, nullptr});
  multiply_scores<Multiply>(
      count, end - column, s.depth_v * kPanel,
      {s.depth_v, s.d_o_rows + i * s.row_elements_v, s.row_elements_v, 1,
       s.v_panels + panel * s.depth_v * kPanel, kPanel, d_p + column, s.tile_stride, nullptr});
}

/// k_rows, q_columns or d_o_columns as the micro kernel walks it.
template <class Multiply>
struct ColumnOperand {
  const typename Multiply::Element* data;
  int64_t depth_stride;
  int64_t panel_stride;

  /// `rows`: the rows that a panel has room for.
  ColumnOperand(const typename Multiply::Element* b, int64_t padded, int64_t rows)
      : data(b),
        depth_stride(kPacksPanels<Multiply> ? kPanel : padded),
        panel_stride(kPacksPanels<Multiply> ? rows * kPanel : kPanel) {}
};

/// Room for what dropout keeps of a strip: blocks have at most 192 keys, rows some padding.
constexpr int64_t kMostKeep = kStripRows * (192 + 2 * kLanes + 16);

/// Whether scores are more than scaled products with a mask.
HWY_INLINE bool is_extended(const BackwardCall& call) {
  return call.scores.active || call.dropout.row != nullptr;
}

/// What is added to the scores of query i of the tile: the mask and ALiBi; -inf hides a key.
template <class Multiply>
HWY_INLINE void fill_score_bias(const KeyBlock<Multiply>& block, const QueryTile& tile, int64_t i,
                                float* bias) {
  const BackwardCall& call = block.call;
  const TileRow& row = block.scratch.rows[i];
  const int64_t query = tile.query_begin + i;
  fill_bias(call.mask, block.batch, tile.head, query, block.key_begin, row, bias);
  if (call.scores.slopes == nullptr) return;
  add_alibi(call.scores, slope_of(call.scores, block.batch, tile.head), query, block.key_begin,
            row.first, row.end, bias);
}

/// The first half of a tile: P, dS and dQ, a strip of queries at a time.
template <class Multiply>
HWY_NOINLINE void query_strips(const KeyBlock<Multiply>& block, const QueryTile& tile) {
  constexpr int kPair = Multiply::kDepthPer;
  const BackwardCall& call = block.call;
  BackwardScratch<Multiply>& s = block.scratch;
  for (int64_t i = 0; i < tile.rows; i += kStripRows) {
    const int count = static_cast<int>(least(kStripRows, tile.rows - i));
    int64_t first = block.keys, end = 0;
    for (int r = 0; r < count; ++r) {
      const TileRow& row = s.rows[i + r];
      if (row.first < row.end) first = least(first, row.first);
      end = most(end, row.end);
    }
    Strip strip{s.rows + i, count, block.columns, nullptr, s.tile_stride, call.scale};
    if (kMutation == Mutation::kWrongScale) strip.scale *= 1.01f;
    const bool extended = is_extended(call);
    alignas(64) float keep[kMostKeep];
    if (call.dropout.row != nullptr) {
      strip.keep = keep;
      strip.keep_scale = call.dropout.scale;
      for (int r = 0; r < count; ++r) {
        fill_keep(call.dropout, block.batch, tile.head, tile.query_begin + i + r, block.key_begin,
                  s.rows[i + r], keep + r * s.tile_stride);
      }
    }
    strip.cap = call.scores.cap;
    if (extended || (call.mask.data != nullptr && kMutation != Mutation::kIgnoredMask)) {
      strip.bias = s.bias;
      for (int r = 0; r < count; ++r) {
        fill_score_bias(block, tile, i + r, s.bias + r * s.tile_stride);
      }
    }
    if constexpr (kPair == 1) {
      float* p = s.p + i * s.tile_stride;
      float* ds = s.ds + i * s.tile_stride;
      if (first < end) strip_scores(s, i, count, first, end, p, ds);
      if (extended) {
        transform_rows<Form::kExtended>(strip, p, ds);
      } else if (strip.bias != nullptr) {
        transform_rows<Form::kBias>(strip, p, ds);
      } else {
        transform_rows<Form::kPlain>(strip, p, ds);
      }
    } else {
#if defined(FLASHLAB_SIMD_BF16)
      const PairedStrip out{s.p + i / 2 * s.tile_stride, s.ds + i / 2 * s.tile_stride,
                            s.ds_rows + i * (s.tile_stride / 2), s.tile_stride, s.tile_stride / 2};
      if (first < end) strip_scores(s, i, count, first, end, s.strip_s, s.strip_dp);
      if (extended) {
        transform_row_pairs<Form::kExtended>(strip, s.strip_s, s.strip_dp, out);
      } else if (strip.bias != nullptr) {
        transform_row_pairs<Form::kBias>(strip, s.strip_s, s.strip_dp, out);
      } else {
        transform_row_pairs<Form::kPlain>(strip, s.strip_s, s.strip_dp, out);
      }
#endif
    }
    if (first >= end) continue;
    const int64_t row_stride = s.tile_stride / kPair;
    const int64_t from = first / kPair;
    const ColumnOperand<Multiply> b(s.k_rows, s.padded_dim, call.tiles.block_keys);
    multiply_panels<Multiply, Start::kAdd>(
        count, s.padded_dim, b.panel_stride,
        {(end + kPair - 1) / kPair - from, s.ds_rows + i * row_stride + from, row_stride, 1,
         b.data + from * b.depth_stride, b.depth_stride, tile.dq + i * s.padded_dim, s.padded_dim,
         nullptr});
  }
}

/// sums [keys][padded] += A^T B, A = P or dS and B = dO or Q, over the queries that see each strip
/// of keys.
template <class Multiply>
HWY_INLINE void add_key_gradient(const KeyBlock<Multiply>& block, const QueryTile& tile,
                                 const typename Multiply::Element* a,
                                 const typename Multiply::Element* b, int64_t padded, float* sums) {
  constexpr int kPair = Multiply::kDepthPer;
  const int64_t stride = block.scratch.tile_stride;
  const ColumnOperand<Multiply> operand(b, padded, block.call.tiles.query_rows);
  for (int64_t j = 0; j < block.keys; j += kStripRows) {
    const int64_t count = least(kStripRows, block.keys - j);
    int64_t first, end;
    visible_rows(block.call, tile, block.key_begin + j, count, first, end);
    if (first >= end) continue;
    const int64_t from = first / kPair;
    multiply_panels<Multiply, Start::kAdd>(
        static_cast<int>(count), padded, operand.panel_stride,
        {(end + kPair - 1) / kPair - from, a + from * stride + j, 1, stride,
         operand.data + from * operand.depth_stride, operand.depth_stride, sums + j * padded,
         padded, nullptr});
  }
}

/// The second half of a tile: dV += P^T dO, then dK += dS^T Q.
/// One after the other, so that one B operand (a tile of dO or Q) at a time is in L1.
template <class Multiply>
HWY_NOINLINE void key_strips(const KeyBlock<Multiply>& block, const QueryTile& tile) {
  BackwardScratch<Multiply>& s = block.scratch;
  add_key_gradient(block, tile, s.p, s.d_o_columns, s.padded_dim_v, s.dv);
  add_key_gradient(block, tile, s.ds, s.q_columns, s.padded_dim, s.dk);
}

// ---------------------------------------------------------------------------------------------
// NaN and infinities in q, k or d_o
// ---------------------------------------------------------------------------------------------
//
// A hidden pair has P = dS = 0, but 0 * NaN is NaN: as operands of dV, dK and dQ, rows with NaN or
// infinity would reach pairs that are not visible. They take part as zeros there, and what they
// contribute to visible pairs is added one by one. Their own scores are NaN where the formula says
// so, because S and dP still see them.

HWY_INLINE float element(const char* row, DType dtype, int64_t d) {
  float x = 0;
  with_dtype(dtype, [&]<DType kType>() {
    alignas(64) float one[kLanes];
    store(load_as<kType>(row + d * element_bytes(kType), 1), one);
    x = one[0];
  });
  return x;
}

HWY_INLINE bool mask_shows(const BackwardCall& call, int64_t batch, int64_t head, int64_t query,
                           int64_t key) {
  const MaskView& mask = call.mask;
  if (mask.data == nullptr) return true;
  const int64_t index = batch * mask.batch_stride + head * mask.head_stride +
                        query * mask.query_stride + key * mask.key_stride;
  if (mask.dtype == DType::kBool) return static_cast<const uint8_t*>(mask.data)[index] != 0;
  const float value = element(element_at(mask.data, index, mask.dtype), mask.dtype, 0);
  float hiding = 0;
  with_dtype(mask.dtype, [&]<DType kType>() { hiding = hiding_value<kType>(); });
  return !(value <= hiding);
}

/// P (row i, key j) or dS of a tile, from the operand of the key strips.
template <class Multiply>
HWY_INLINE float tile_value(const BackwardScratch<Multiply>& s,
                            const typename Multiply::Element* tile, int64_t i, int64_t j) {
  if constexpr (Multiply::kDepthPer == 1) {
    return tile[i * s.tile_stride + j];
  } else {
    const uint32_t pair = tile[i / 2 * s.tile_stride + j];
    const uint32_t bits = i % 2 == 0 ? pair << 16 : pair & 0xffff0000u;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
  }
}

template <class Multiply>
HWY_NOINLINE void add_bad_rows(const KeyBlock<Multiply>& block, const QueryTile& tile) {
  const BackwardCall& call = block.call;
  BackwardScratch<Multiply>& s = block.scratch;
  for (int64_t i = 0; i < tile.rows; ++i) {
    const TileRow& row = s.rows[i];
    if (row.finite_q && row.finite_d_o) continue;
    const int64_t query = tile.query_begin + i;
    const char* q = row_at(call.q, block.batch, query, tile.head);
    const char* d_o = row_at(call.d_o, block.batch, query, tile.head);
    for (int64_t j = row.first; j < row.end; ++j) {
      if (!mask_shows(call, block.batch, tile.head, query, block.key_begin + j)) continue;
      const float p = tile_value(s, s.p, i, j);
      const float ds = tile_value(s, s.ds, i, j);
      for (int64_t d = 0; !row.finite_q && d < call.head_dim; ++d) {
        s.dk[j * s.padded_dim + d] += ds * element(q, call.q.dtype, d);
      }
      for (int64_t d = 0; !row.finite_d_o && d < call.head_dim_v; ++d) {
        s.dv[j * s.padded_dim_v + d] += p * element(d_o, call.d_o.dtype, d);
      }
    }
  }
}

template <class Multiply>
HWY_NOINLINE void add_bad_keys(const KeyBlock<Multiply>& block, const QueryTile& tile,
                               int64_t head_k) {
  const BackwardCall& call = block.call;
  BackwardScratch<Multiply>& s = block.scratch;
  for (int n = 0; n < block.bad_keys; ++n) {
    const int64_t j = s.bad_keys[n];
    const char* k = row_at(call.k, block.batch, block.key_begin + j, head_k);
    for (int64_t i = 0; i < tile.rows; ++i) {
      const TileRow& row = s.rows[i];
      if (j < row.first || j >= row.end) continue;
      if (!mask_shows(call, block.batch, tile.head, tile.query_begin + i, block.key_begin + j)) {
        continue;
      }
      const float ds = tile_value(s, s.ds, i, j);
      for (int64_t d = 0; d < call.head_dim; ++d) {
        tile.dq[i * s.padded_dim + d] += ds * element(k, call.k.dtype, d);
      }
    }
  }
}

}  // namespace
}  // namespace FLASHLAB_ISA
}  // namespace flashlab::internal::simd
