#pragma once

// The LSE of a row in two numbers, for additive masks.
//
// P = exp(S - LSE) needs LSE to an absolute accuracy that one fp32 number has only while |LSE| is
// small: where every key of a row carries -1e9, LSE = -1e9 + log(keys) keeps nothing of the
// logarithm. So the scores of such a row are made once more, exactly as the gradients will see
// them:
//
//   LSE = max S + log(sum over visible keys of exp(S - max S))
//
// and both terms are used where their sum is the LSE that was given. Where it is not, the given one
// belongs to more keys than these (attention split along its keys), and stands. Rows with
// |LSE| < kLargeLse, all rows of an ordinary mask, cost one comparison.

#include "cpu/simd/backward_tile-inl.h"

namespace flashlab::internal::simd {
namespace FLASHLAB_ISA {
namespace {

/// From here on half a unit in the last place of LSE is more than 1.5e-5 of every probability.
constexpr float kLargeLse = 256;

/// Steps through flat rows without a division for each.
struct FlatRow {
  int64_t batch, head, query;
  HWY_INLINE FlatRow(const BackwardCall& call, int64_t flat)
      : batch(flat / call.seqlen_q / call.heads_q),
        head(flat / call.seqlen_q % call.heads_q),
        query(flat % call.seqlen_q) {}
  HWY_INLINE void next(const BackwardCall& call) {
    if (++query < call.seqlen_q) return;
    query = 0;
    if (++head < call.heads_q) return;
    head = 0;
    ++batch;
  }
};

HWY_INLINE float statistic_at(const StatisticsView& view, const FlatRow& row) {
  return view.data[row.batch * view.batch_stride + row.head * view.head_stride +
                   row.query * view.row_stride];
}

HWY_INLINE float statistic_at(const StatisticsView& view, int64_t batch, int64_t head,
                              int64_t query) {
  return view.data[batch * view.batch_stride + head * view.head_stride + query * view.row_stride];
}

HWY_INLINE bool is_large(float lse) {
  return (lse >= kLargeLse || lse <= -kLargeLse) && lse - lse == 0;
}

/// Adds one row's scores S [columns] of the block to its maximum and sum. S is overwritten.
template <Form kForm>
HWY_INLINE void add_scores(const TileRow& row, float scale, float cap, const float* bias,
                           int64_t columns, float* s, float* maximum, float* sum) {
  constexpr float kLog2E = 1.44269504f;
  const Floats hidden = set(-HUGE_VALF);
  const Ints first = hn::Set(IntTag(), row.first), end = hn::Set(IntTag(), row.end);
  Floats largest = hidden;
  for (int64_t j = 0; j < columns; j += kLanes) {
    const Ints key = hn::Iota(IntTag(), static_cast<int32_t>(j));
    const auto outside =
        hn::RebindMask(FloatTag(), hn::Or(hn::Lt(key, first), hn::Not(hn::Lt(key, end))));
    const Floats added = hn::IfThenElse(outside, hidden, load(bias + j));
    // As in gradients_at: the maximum is one of the scores there, bit for bit.
    const Floats score = NaturalScores::of<kForm>(load(s + j), set(scale), cap, bias + j).score;
    const Floats shown = hn::IfThenElse(hn::Eq(added, hidden), hidden, score);
    largest = hn::Max(largest, shown);
    store(shown, s + j);
  }
  const float old = *maximum;
  const float block = hn::GetLane(hn::MaxOfLanes(FloatTag(), largest));
  *maximum = block > old ? block : old;
  if (*maximum == -HUGE_VALF) return;
  Floats total = zero();
  for (int64_t j = 0; j < columns; j += kLanes) {
    total = hn::Add(total, exp2<5>(hn::Mul(hn::Sub(load(s + j), set(*maximum)), set(kLog2E))));
  }
  const Floats change = exp2<5>(set((old - *maximum) * kLog2E));
  *sum = *sum * hn::GetLane(change) + hn::GetLane(hn::SumOfLanes(FloatTag(), total));
}

/// All rows of a tile that see keys of the block.
template <class Multiply>
HWY_NOINLINE void add_tile_scores(const KeyBlock<Multiply>& block, const QueryTile& tile,
                                  float* maxima, float* sums) {
  const BackwardCall& call = block.call;
  BackwardScratch<Multiply>& s = block.scratch;
  float* scores;  // [kStripRows][tile_stride]
  if constexpr (Multiply::kDepthPer == 1) {
    scores = s.p;
  } else {
    scores = s.strip_s;
  }
  for (int64_t i = 0; i < tile.rows; i += kStripRows) {
    const int count = static_cast<int>(least(kStripRows, tile.rows - i));
    int64_t end = 0;
    for (int r = 0; r < count; ++r) end = most(end, s.rows[i + r].end);
    if (end == 0) continue;
    multiply_scores<Multiply>(count, end, s.depth * kPanel,
                              {s.depth, s.q_rows + i * s.row_elements, s.row_elements, 1,
                               s.k_panels, kPanel, scores, s.tile_stride, nullptr});
    for (int r = 0; r < count; ++r) {
      const TileRow& row = s.rows[i + r];
      if (row.first >= row.end) continue;
      fill_score_bias(block, tile, i + r, s.bias);
      const auto add = is_extended(call) ? add_scores<Form::kExtended> : add_scores<Form::kBias>;
      add(row, call.scale, call.scores.cap, s.bias, round_up(row.end, kLanes),
          scores + r * s.tile_stride, maxima + i + r, sums + i + r);
    }
  }
}

/// One tile of queries against every key.
template <class Multiply>
HWY_INLINE void tile_statistics(const BackwardCall& call, BackwardScratch<Multiply>& s,
                                int64_t batch, QueryTile& tile) {
  const auto given = [&](int64_t i) {
    return statistic_at(call.lse, batch, tile.head, tile.query_begin + i);
  };
  float* maxima = s.statistics;
  float* sums = s.statistics + tile.rows;
  for (int64_t i = 0; i < tile.rows; ++i) {
    maxima[i] = -HUGE_VALF;
    sums[i] = 0.0f;
  }
  for (int64_t key = 0; key < call.seqlen_k; key += call.tiles.block_keys) {
    KeyBlock<Multiply> block{call, s, batch, key, least(call.tiles.block_keys, call.seqlen_k - key),
                             0,    0};
    load_tile(block, tile);
    bool any = false;
    for (int64_t i = 0; i < tile.rows; ++i) {
      if (!is_large(given(i))) s.rows[i].first = s.rows[i].end = 0;
      any = any || s.rows[i].first < s.rows[i].end;
    }
    if (!any) continue;
    pack_keys(block, tile.head / call.group);
    add_tile_scores(block, tile, maxima, sums);
  }
  const int64_t flat = (batch * call.heads_q + tile.head) * call.seqlen_q + tile.query_begin;
  for (int64_t i = 0; i < tile.rows; ++i) {
    if (!is_large(given(i))) continue;
    double sum = static_cast<double>(sums[i]);
    if (call.sinks != nullptr) {
      const float sink = call.sinks[tile.head], largest = sink > maxima[i] ? sink : maxima[i];
      if (largest > -HUGE_VALF) {
        sum = sum * exp(static_cast<double>(maxima[i]) - static_cast<double>(largest)) +
              exp(static_cast<double>(sink) - static_cast<double>(largest));
      }
      maxima[i] = largest;
    }
    const double rest = log(sum);
    const double difference = maxima[i] + rest - static_cast<double>(given(i));
    // Four units in the last place: forward may have summed in another order, or in base 2.
    if (fabs(difference) <= fabs(static_cast<double>(given(i))) * 0x1p-21) {
      call.lse_main[flat + i] = maxima[i];
      call.lse_rest[flat + i] = static_cast<float>(rest);
    }
  }
}

template <class Multiply>
void backward_row_statistics(const BackwardCall& call, int64_t batch, int64_t head, void* memory) {
  BackwardScratch<Multiply> scratch;
  scratch.carve(memory, call.tiles, call.head_dim, call.head_dim_v);
  for (int64_t query = 0; query < call.seqlen_q; query += call.tiles.query_rows) {
    QueryTile tile{head, query, least(call.tiles.query_rows, call.seqlen_q - query), nullptr, true};
    bool any = false;
    for (int64_t i = 0; i < tile.rows; ++i) {
      any = any || is_large(statistic_at(call.lse, batch, head, query + i));
    }
    if (any) tile_statistics(call, scratch, batch, tile);
  }
}

}  // namespace
}  // namespace FLASHLAB_ISA
}  // namespace flashlab::internal::simd
