#pragma once

// Forward attention of one query tile: strips of six rows against blocks of keys.
//
//   for each key block            K panels [block/kPanel][depth(D)][kPanel], V panels
//     for each strip of 6 rows    S = Q K^T     [6, block] in L1
//                                 P = exp(scale (S - max)), sums, S masked before
//                                 acc = scale acc + P V   [6, Dv] in L1/L2
//   O = acc / sum, LSE = scale max + log sum
//
// Strips and panels beyond what a row can see are not visited, so causal attention pays for whole
// vectors at the diagonal only. See src/cpu/README.md for the cycle budget.

#include "cpu/simd/forward_scores-inl.h"
#include "cpu/terms/sink_row.h"

namespace flashlab::internal::simd {
namespace FLASHLAB_ISA {
namespace {
namespace forward_pass {

/// Whether a register tile's rows are those of its strip, so that it can keep their maxima: not
/// AMX's.
constexpr bool kTileMaxima = kStripRows <= 8;

/// Whether a strip's powers are taken beside P V of the strip before, which waits for them: where
/// 32 registers hold a register tile and leave some. PERF: pairs halve the products and not the
/// powers; fp32 gains nothing by it, and its weights lie where the next scores go.
template <class Multiply>
constexpr bool kBeside = kTileMaxima&& kLanes == 16 && Multiply::kDepthPer == 2;
/// Strips that have weights at a time.
template <class Multiply>
constexpr int kBuffers = kBeside<Multiply> ? 2 : 1;

/// Where the parts of a thread's scratch lie. Elements are 4 bytes in every policy.
template <class Multiply>
struct Scratch {
  using Element = typename Multiply::Element;
  int64_t score_stride;  ///< floats from one row of S to the next
  int64_t sum_stride;    ///< floats from one row of acc to the next
  Element* queries;      ///< [tile_rows up to whole strips, depth(D)]
  float* scores;         ///< [kStripRows, score_stride]
  /// [kStripRows, score_stride] (fp32: the scores themselves)
  Element* weights[kBuffers<Multiply>];
  float* sums;         ///< [as queries, sum_stride]: acc, unnormalised O
  float* row_max;      ///< [strips, kStatistics] in units of S: see power_factor
  float* lane_sum;     ///< [as queries, kLanes]: parts of each row's sum
  int64_t* first_key;  ///< [tile_rows]
  int64_t* end_key;    ///< [tile_rows]
  Element* keys;       ///< one packed block of K, if the task packs
  Element* values;     ///< one packed block of V
  int64_t values_panel_stride;
  size_t bytes;

  Scratch(const ForwardCall& call, bool packs, void* base) {
    const int64_t strips = (call.tile_rows + kStripRows - 1) / kStripRows;
    const int64_t depth = depth_of<Multiply>(call.head_dim);
    // One vector of padding keeps the six rows from falling into the same L1 sets.
    score_stride = call.key_block + 2 * kLanes;
    sum_stride = align_up(call.head_dim_v, kLanes);
    values_panel_stride = depth_of<Multiply>(call.key_block) * kPanel;
    // A number and not a pointer: base is null when only the sizes count.
    uintptr_t at = reinterpret_cast<uintptr_t>(base);
    const auto take = [&](int64_t count, int64_t size) {
      const uintptr_t here = at;
      at += static_cast<uintptr_t>(align_up(count * size, 64));
      return reinterpret_cast<void*>(here);
    };
    queries = static_cast<Element*>(take(strips * kStripRows * depth, 4));
    scores = static_cast<float*>(take(kStripRows * score_stride, 4));
    for (Element*& buffer : weights) {
      if constexpr (Multiply::kDepthPer == 1) {
        buffer = scores;
      } else {
        buffer = static_cast<Element*>(take(kStripRows * score_stride, 4));
      }
    }
    sums = static_cast<float*>(take(strips * kStripRows * sum_stride, 4));
    row_max = static_cast<float*>(take(strips * kStatistics, 4));
    lane_sum = static_cast<float*>(take(strips * kStripRows * kLanes, 4));
    first_key = static_cast<int64_t*>(take(call.tile_rows, 8));
    end_key = static_cast<int64_t*>(take(call.tile_rows, 8));
    keys = nullptr;
    values = nullptr;
    if (packs) {
      keys = static_cast<Element*>(take(align_up(call.key_block, kPanel) * depth, 4));
      values = static_cast<Element*>(
          take(values_panel_stride * ((call.head_dim_v + kPanel - 1) / kPanel), 4));
    }
    bytes = static_cast<size_t>(at - reinterpret_cast<uintptr_t>(base));
  }
};

/// Rows of a task's q or o from `r` on, before `end`, as far as they are of one head.
HWY_INLINE MatrixView rows_of_head(const ForwardCall& call, const ForwardTask& task,
                                   const RowsView& rows, int64_t columns, int64_t r, int64_t end) {
  const int64_t position = r % call.seqlen_q;
  int64_t head = task.key_head * call.group + r / call.seqlen_q;
  if (kMutation == Mutation::kWrongHead) head = task.key_head * call.group;
  const int64_t index =
      task.batch * rows.batch_stride + position * rows.row_stride + head * rows.head_stride;
  return {element_at(rows.data, index, rows.dtype), rows.dtype,
          smaller(end - r, call.seqlen_q - position), columns, rows.row_stride};
}

/// Q of rows [begin, end), packed.
template <class Multiply>
void pack_queries(const ForwardCall& call, const ForwardTask& task,
                  const Scratch<Multiply>& scratch, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end;) {
    const MatrixView view = rows_of_head(call, task, call.q, call.head_dim, r, end);
    pack_rows<Multiply>(view, call.query_factor,
                        scratch.queries + (r - task.row_begin) * depth_of<Multiply>(call.head_dim));
    r += view.rows;
  }
}

/// Rows [begin, end) of q or o are fetched beside what is computed meanwhile.
HWY_INLINE void prefetch_rows(const ForwardCall& call, const ForwardTask& task,
                              const RowsView& rows, int64_t columns, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end;) {
    const MatrixView view = rows_of_head(call, task, rows, columns, r, end);
    FLASHLAB_ISA::prefetch_rows(view, 0, view.rows);
    r += view.rows;
  }
}

/// The visible keys of each row, clipped to the task's keys, and their union [first, end).
template <class Multiply>
void find_visible(const ForwardCall& call, const ForwardTask& task,
                  const Scratch<Multiply>& scratch, int64_t* first, int64_t* end) {
  *first = task.key_end;
  *end = task.key_begin;
  for (int64_t r = task.row_begin; r < task.row_end; ++r) {
    const int64_t i = r - task.row_begin;
    const int64_t position = r % call.seqlen_q;
    scratch.first_key[i] =
        smaller(larger(first_key_of(call.band, position), task.key_begin), task.key_end);
    scratch.end_key[i] =
        larger(smaller(end_key_of(call.band, position), task.key_end), task.key_begin);
    if (scratch.first_key[i] < scratch.end_key[i]) {
      *first = smaller(*first, scratch.first_key[i]);
      *end = larger(*end, scratch.end_key[i]);
    }
  }
}

/// Packed operands of the key block that starts at key `begin`.
template <class Multiply>
struct PackedBlock {
  const typename Multiply::Element* keys;
  const typename Multiply::Element* values;
  int64_t values_panel_stride;
  int64_t begin, end;
};

template <class Multiply>
PackedBlock<Multiply> key_block_at(const ForwardCall& call, const ForwardTask& task,
                                   const Scratch<Multiply>& scratch, int64_t begin, int64_t end) {
  using Element = typename Multiply::Element;
  PackedBlock<Multiply> block{scratch.keys, scratch.values, scratch.values_panel_stride, begin,
                              end};
  if (call.packed_keys != nullptr) {
    block.keys = static_cast<const Element*>(call.packed_keys) +
                 task.packed * call.packed_keys_stride + begin * depth_of<Multiply>(call.head_dim);
    block.values = static_cast<const Element*>(call.packed_values) +
                   task.packed * call.packed_values_stride + begin / Multiply::kDepthPer * kPanel;
    block.values_panel_stride = call.packed_values_panel_stride;
    return block;
  }
  const auto view = [&](const RowsView& rows, int64_t columns) {
    const bool listed = rows.offsets != nullptr;
    return MatrixView{
        element_at(rows.data,
                   task.batch * rows.batch_stride + (listed ? 0 : begin * rows.row_stride) +
                       task.key_head * rows.head_stride,
                   rows.dtype),
        rows.dtype,
        end - begin,
        columns,
        rows.row_stride,
        rows.far,
        listed ? rows.offsets + begin : nullptr};
  };
  pack_transposed<Multiply>(view(call.k, call.head_dim), scratch.keys);
  pack_straight<Multiply>(view(call.v, call.head_dim_v), scratch.values,
                          scratch.values_panel_stride);
  return block;
}

HWY_INLINE bool is_additive(const ForwardCall& call) {
  const bool mask = call.mask.data != nullptr && call.mask.dtype != DType::kBool &&
                    kMutation != Mutation::kIgnoredMask;
  return mask || call.scores.active;
}

/// The factor of a difference of two scores in the strip's units, so that P is a power of two. With
/// an additive mask the scores are final; without one they still lack the scale.
HWY_INLINE float power_factor(const ForwardCall& call) {
  if (is_additive(call)) return kLog2E;
  // A scale near the largest float must not become infinite: 0 * inf is NaN where P is 1.
  return call.score_factor < 2e38f ? call.score_factor * kLog2E : 3e38f;
}

/// P V of a strip, which may wait until the next strip has its scores.
template <class Multiply>
struct ValueProduct {
  int rows = 0;  ///< 0: nothing waits
  int64_t columns;
  int64_t panel_stride;
  bool started;  ///< whether the strip has sums already
  TileArguments<Multiply> tile;
  alignas(64) float rescale[kStatistics];

  template <Start kStart>
  HWY_INLINE void multiply_now() {
    multiply_panels<Multiply, kStart>(rows, columns, panel_stride, tile);
  }
  HWY_INLINE void finish() {
    if (rows == 0) return;
    tile.row_scale = rescale;
    started ? multiply_now<Start::kScale>() : multiply_now<Start::kZero>();
    rows = 0;
  }

  template <Start kStart>
  HWY_NOINLINE void multiply_beside(const PowersBeside<Multiply>& powers) {
    TileArguments<Multiply> first = tile;  // whose numbers no store can change
    first.a_depth_stride = 1;
    first.b_depth_stride = kPanel;
    micro_kernel<Multiply, kStripRows, kPanelVectors, kStart>(first, powers);
    tile.b += panel_stride;
    tile.c += kPanel;
    columns -= kPanel;
    if (columns > 0) multiply_now<kStart>();
  }
  /// Takes the next strip's powers too.
  HWY_INLINE void finish_beside(StripScores<Multiply>& next) {
    int first = 0;
    if constexpr (kBeside<Multiply>) {
      if (rows == kStripRows && columns >= kPanel) {
        complete_pairs(next);
        first = PowersBeside<Multiply>::rows_beside(next, tile.depth);
        const PowersBeside<Multiply> powers{next, first};
        tile.row_scale = rescale;
        started ? multiply_beside<Start::kScale>(powers) : multiply_beside<Start::kZero>(powers);
        rows = 0;
      }
    }
    finish();
    take_powers(next, first);
  }
};

/// Scores and softmax of one strip against one key block, and P V of the strip that waits for it.
/// The strip's own P V waits in products[buffer].
template <class Multiply>
void strip_against_block(const ForwardCall& call, const ForwardTask& task,
                         const Scratch<Multiply>& scratch, const PackedBlock<Multiply>& block,
                         int64_t strip, bool started, const StripBlock& what,
                         ValueProduct<Multiply> (&products)[kBuffers<Multiply>], int buffer) {
  const int64_t depth = depth_of<Multiply>(call.head_dim);
  const int64_t row = strip * kStripRows;
  const int64_t offset = what.first_key - block.begin;  // a multiple of kPanel
  const int64_t padded = align_up(what.columns, kLanes);
  float* scores = scratch.scores;
  auto* weights = scratch.weights[buffer];

  TileArguments<Multiply> score_tile{};
  score_tile.depth = depth;
  score_tile.a = scratch.queries + row * depth;
  score_tile.a_row_stride = depth;
  score_tile.a_depth_stride = 1;
  score_tile.b = block.keys + offset * depth;
  score_tile.b_depth_stride = kPanel;
  score_tile.c = scores;
  score_tile.c_row_stride = scratch.score_stride;
  bool trimmed = padded != what.columns;
  for (int i = 0; i < what.rows; ++i) {
    trimmed |= what.row_first[i] > what.first_key;
    trimmed |= what.row_end[i] < what.first_key + what.columns;
  }
  // PERF: the maxima of scores that nothing changes are taken from the registers that hold them.
  alignas(64) float lane_max[kStripRows * kLanes];
  const bool final_products = kTileMaxima && depth <= kLongestSum && !trimmed &&
                              !call.scores.active && call.mask.data == nullptr;
  if (final_products) {
    if constexpr (kTileMaxima) {
      for (int i = 0; i < kStripRows; ++i) store(set(-kInfinity), lane_max + i * kLanes);
      score_tile.lane_max = lane_max;
      multiply_panels<Multiply, Start::kZeroAndMaxima>(what.rows, what.columns, depth * kPanel,
                                                       score_tile);
    }
  } else {
    multiply_scores<Multiply>(what.rows, what.columns, depth * kPanel, score_tile);
  }

  const auto for_rows = [&](const auto& use) {
    for (int i = 0; i < what.rows; ++i) {
      const int64_t r = task.row_begin + row + i;
      use(i, task.key_head * call.group + r / call.seqlen_q, r % call.seqlen_q);
    }
  };
  if (call.scores.active) {
    for_rows([&](int i, int64_t head, int64_t position) {
      transform_scores(call.scores, call.score_factor, slope_of(call.scores, task.batch, head),
                       position, what.first_key, what.columns, scores + i * scratch.score_stride);
    });
  }
  if (trimmed) apply_band(what, padded, scores, scratch.score_stride);
  if (call.mask.data != nullptr && kMutation != Mutation::kIgnoredMask) {
    const float factor = call.scores.active ? 1.0f : call.score_factor;
    for_rows([&](int i, int64_t head, int64_t position) {
      apply_mask_row(call, task, head, position, what.first_key, what.columns, factor,
                     scores + i * scratch.score_stride);
    });
  }

  StripScores<Multiply> strip_scores{what.rows,
                                     padded,
                                     power_factor(call),
                                     scores,
                                     weights,
                                     scratch.score_stride,
                                     scratch.lane_sum + row * kLanes,
                                     {},
                                     {}};
  if (kMutation == Mutation::kWrongScale) strip_scores.factor *= 1.01f;
  find_maxima(strip_scores, final_products ? lane_max : nullptr,
              scratch.row_max + strip * kStatistics);
  products[kBuffers<Multiply> - 1 - buffer].finish_beside(strip_scores);
  if (call.dropout.row != nullptr) {
    for_rows([&](int i, int64_t head, int64_t position) {
      drop_weights<Multiply>(call.dropout, task.batch, head, position, what.first_key, what.columns,
                             weights + i * scratch.score_stride);
    });
  }

  ValueProduct<Multiply>& product = products[buffer];
  product.rows = what.rows;
  product.columns = call.head_dim_v;
  product.panel_stride = block.values_panel_stride;
  product.started = started;
  memcpy(product.rescale, strip_scores.rescale, sizeof product.rescale);
  TileArguments<Multiply>& tile = product.tile = {};
  tile.depth = depth_of<Multiply>(what.columns);
  tile.a = weights;
  tile.a_row_stride = scratch.score_stride;
  tile.a_depth_stride = 1;
  tile.b = block.values + offset / Multiply::kDepthPer * kPanel;
  tile.b_depth_stride = kPanel;
  tile.c = scratch.sums + row * scratch.sum_stride;
  tile.c_row_stride = scratch.sum_stride;
  if constexpr (!kBeside<Multiply>) product.finish();
}

/// O and LSE of a row from its unnormalised sums, or zeros and -inf for an empty row.
HWY_INLINE void write_row(const ForwardCall& call, int64_t batch, int64_t key_head, int64_t r,
                          const float* sums, float max, float sum) {
  const int64_t head = key_head * call.group + r / call.seqlen_q;
  const int64_t position = r % call.seqlen_q;
  const bool empty = sum == 0.0f;  // NaN is not empty
  float factor = empty ? 0.0f : call.dropout.scale / sum;
  double lse = -static_cast<double>(kInfinity);
  if (!empty && (call.lse != nullptr || call.sinks != nullptr)) {
    const double scale = is_additive(call) ? 1.0 : static_cast<double>(call.score_factor);
    lse = scale * static_cast<double>(max) + log(static_cast<double>(sum));
  }
  if (call.sinks != nullptr) {
    const SinkRow row = with_sink(lse, static_cast<double>(call.sinks[head]));
    factor = static_cast<float>(static_cast<double>(factor) * row.factor);
    lse = row.lse;
  }
  const Floats inverse = set(factor);
  char* o = const_cast<char*>(element_at(
      call.o.data,
      batch * call.o.batch_stride + position * call.o.row_stride + head * call.o.head_stride,
      call.o.dtype));
  with_dtype(call.o.dtype, [&]<DType kType>() {
    for (int64_t d = 0; d < call.head_dim_v; d += kLanes) {
      // An empty row's sums may never have been written.
      const Floats v = empty ? inverse : hn::Mul(load(sums + d), inverse);
      store_as<kType>(v, o + d * element_bytes(kType), call.head_dim_v - d);
    }
  });
  if (call.lse == nullptr) return;
  if (kMutation == Mutation::kWrongLse) lse /= kLn2;
  call.lse[batch * call.lse_batch_stride + head * call.lse_head_stride +
           position * call.lse_row_stride] = static_cast<float>(lse);
}

/// Index of a row's partial: [split, batch * heads_k, group * seqlen_q].
HWY_INLINE int64_t partial_row(const ForwardCall& call, int64_t batches, int64_t split,
                               int64_t batch, int64_t key_head, int64_t r) {
  const int64_t heads = batches * call.heads_k;
  return (split * heads + batch * call.heads_k + key_head) * call.group * call.seqlen_q + r;
}

template <class Multiply>
void write_results(const ForwardCall& call, const ForwardTask& task,
                   const Scratch<Multiply>& scratch) {
  for (int64_t r = task.row_begin; r < task.row_end; ++r) {
    const int64_t i = r - task.row_begin;
    const float max = scratch.row_max[i / kStripRows * kStatistics + i % kStripRows];
    const float sum = hn::GetLane(hn::SumOfLanes(FloatTag(), load(scratch.lane_sum + i * kLanes)));
    const float* sums = scratch.sums + i * scratch.sum_stride;
    if (task.split < 0) {
      write_row(call, task.batch, task.key_head, r, sums, max, sum);
      continue;
    }
    const int64_t index = partial_row(call, call.batches, task.split, task.batch, task.key_head, r);
    call.partial_max[index] = max;
    call.partial_sum[index] = sum;
    if (sum == 0.0f) continue;  // merge skips empty partials
    memcpy(call.partial_o + index * scratch.sum_stride, sums,
           static_cast<size_t>(scratch.sum_stride) * sizeof(float));
  }
}

template <class Multiply>
void visit_blocks(const ForwardCall& call, const ForwardTask& task,
                  const Scratch<Multiply>& scratch) {
  const int64_t rows = task.row_end - task.row_begin;
  const int64_t strips = (rows + kStripRows - 1) / kStripRows;
  uint64_t started = 0;  // one bit per strip; tile_rows <= 64 strips
  ValueProduct<Multiply> products[kBuffers<Multiply>];
  int buffer = 0;  // of the next strip
  const auto finish_all = [&] {
    for (ValueProduct<Multiply>& product : products) product.finish();
  };
  int64_t first, end;
  find_visible(call, task, scratch, &first, &end);
  for (int64_t begin = first / call.key_block * call.key_block; begin < end;
       begin += call.key_block) {
    if (kMutation == Mutation::kDroppedTile) {
      if (begin / call.key_block == 1) continue;
    }
    const int64_t block_end = smaller(begin + call.key_block, call.seqlen_k);
    const PackedBlock<Multiply> block = key_block_at(call, task, scratch, begin, block_end);
    for (int64_t strip = 0; strip < strips; ++strip) {
      const int64_t row = strip * kStripRows;
      const int64_t r = task.row_begin + row;
      StripBlock what;
      what.rows = static_cast<int>(smaller(kStripRows, rows - row));
      what.row_first = scratch.first_key + row;
      what.row_end = scratch.end_key + row;
      int64_t low = block_end, high = begin;
      for (int i = 0; i < what.rows; ++i) {
        if (what.row_first[i] >= what.row_end[i]) continue;
        low = smaller(low, what.row_first[i]);
        high = larger(high, what.row_end[i]);
      }
      low = larger(low, begin);
      high = smaller(high, block_end);
      if (low >= high) continue;
      if ((started >> strip & 1) == 0) {
        pack_queries(call, task, scratch, r, r + what.rows);
        prefetch_rows(call, task, call.q, call.head_dim, r + what.rows,
                      smaller(r + 2 * kStripRows, task.row_end));
      }
      if (block_end >= end && task.split < 0) {
        prefetch_rows(call, task, call.o, call.head_dim_v, r, r + what.rows);
        if (strip + 1 == strips) {
          const int64_t next = task.row_begin - task.rows_before;
          prefetch_rows(call, task, call.q, call.head_dim, next,
                        smaller(next + kStripRows, task.row_begin));
        }
      }
      what.first_key = begin + (low - begin) / kPanel * kPanel;
      what.columns = high - what.first_key;
      strip_against_block<Multiply>(call, task, scratch, block, strip, (started >> strip & 1) != 0,
                                    what, products, buffer);
      started |= uint64_t{1} << strip;
      buffer = kBuffers<Multiply> - 1 - buffer;
    }
    // The next block is packed over this one.
    if (call.packed_keys == nullptr) finish_all();
  }
  finish_all();
}

template <class Multiply>
void run_task(const ForwardCall& call, const ForwardTask& task, void* memory) {
  const Scratch<Multiply> scratch(call, call.packed_keys == nullptr, memory);
  const int64_t strips = (task.row_end - task.row_begin + kStripRows - 1) / kStripRows;
  for (int64_t i = 0; i < strips * kStatistics; ++i) scratch.row_max[i] = -kInfinity;
  for (int64_t i = 0; i < strips * kStripRows * kLanes; ++i) scratch.lane_sum[i] = 0.0f;
  visit_blocks(call, task, scratch);
  write_results(call, task, scratch);
}

template <class Multiply>
size_t scratch_bytes(const ForwardCall& call, bool packs) {
  return Scratch<Multiply>(call, packs, nullptr).bytes;
}

/// Merges partials in index order into the first one's memory, then writes the row. Empty partials
/// (sum 0) hold no numbers.
template <class Multiply>
void merge(const ForwardCall& call, int64_t batch, int64_t key_head, int64_t row_begin,
           int64_t row_end, int64_t splits) {
  const int64_t stride = align_up(call.head_dim_v, kLanes);
  const float factor = power_factor(call);
  const auto exponential = [&](float x) { return hn::GetLane(exp2<5>(set(x * factor))); };
  for (int64_t r = row_begin; r < row_end; ++r) {
    const auto at = [&](int64_t split) {
      return partial_row(call, call.batches, split, batch, key_head, r);
    };
    float max = -kInfinity;
    for (int64_t split = 0; split < splits; ++split) {
      const float m = call.partial_max[at(split)];
      if (call.partial_sum[at(split)] != 0.0f && m > max) max = m;
    }
    float* merged = call.partial_o + at(0) * stride;
    float sum = 0.0f;
    bool any = false;
    for (int64_t split = 0; split < splits; ++split) {
      const float part_sum = call.partial_sum[at(split)];
      if (part_sum == 0.0f) continue;
      const float weight = exponential(call.partial_max[at(split)] - max);
      const float* part = call.partial_o + at(split) * stride;
      for (int64_t d = 0; d < stride; d += kLanes) {
        const Floats scaled = hn::Mul(set(weight), load(part + d));
        store(any ? hn::Add(load(merged + d), scaled) : scaled, merged + d);
      }
      sum += weight * part_sum;
      any = true;
    }
    write_row(call, batch, key_head, r, merged, max, sum);
  }
}

}  // namespace forward_pass

template <class Multiply>
constexpr ForwardKernels forward_kernels() {
  return {&forward_pass::scratch_bytes<Multiply>, &forward_pass::run_task<Multiply>,
          &forward_pass::merge<Multiply>};
}

}  // namespace
}  // namespace FLASHLAB_ISA
}  // namespace flashlab::internal::simd
