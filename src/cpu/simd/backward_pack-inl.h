#pragma once

// Backward's scratch memory and the copies that fill it: operands in the order in which the micro
// kernel walks them, padded with zeros to whole vectors.

#include "cpu/simd/backward_kernels.h"
#include "cpu/simd/gemm-inl.h"

namespace flashlab::internal::simd {
namespace FLASHLAB_ISA {
namespace {

HWY_INLINE int64_t least(int64_t a, int64_t b) {
  return a < b ? a : b;
}
HWY_INLINE int64_t most(int64_t a, int64_t b) {
  return a > b ? a : b;
}
HWY_INLINE int64_t clamp_to(int64_t x, int64_t end) {
  return x < 0 ? 0 : least(x, end);
}
HWY_INLINE int64_t round_up(int64_t x, int64_t unit) {
  return (x + unit - 1) / unit * unit;
}

/// The first element of a row of a tensor.
HWY_INLINE const char* row_at(const RowsView& view, int64_t batch, int64_t row, int64_t head) {
  return element_at(view.data,
                    batch * view.batch_stride + row * view.row_stride + head * view.head_stride,
                    view.dtype);
}
HWY_INLINE char* output_row_at(const RowsView& view, int64_t batch, int64_t row, int64_t head) {
  return const_cast<char*>(row_at(view, batch, row, head));
}

/// What the elementwise step knows about one query of a tile.
struct TileRow {
  float negative_lse;
  float lse_rest;  ///< LSE = lse_rest - negative_lse: see backward_statistics-inl.h
  float delta;
  int32_t first;  ///< visible keys of the block by the bounds: [first, end); empty: 0, 0
  int32_t end;
  bool finite_q;  ///< q of this row holds no NaN or infinity
  bool finite_d_o;
};

/// Whether fp32's B operands of dQ, dK and dV are packed in panels of their own.
/// HW: a panel of AVX2 is one line of a row. Walked down the rows, with a stride of 256 or 512
/// bytes, the lines fall into few sets of L1; a panel is one stream. With 32 registers a panel is
/// four lines wide, and rows serve (Zen 3, Zen 4).
template <class Multiply>
constexpr bool kPacksPanels = Multiply::kDepthPer == 1 && kPanelVectors < 4;

/// The stride of a tile of P or dS in Elements.
/// HW: dV and dK walk P and dS down a column; with a stride of a multiple of 512 bytes the lines of
/// a column fall into 8 of the 64 sets of a 32 KiB L1. One more line per row spreads them over all
/// (worth at most 0.8 points of the roof on Zen 4, whose L2 is quick; 2026-11-21).
HWY_INLINE int64_t tile_stride_of(const BackwardTiles& tiles) {
  return round_up(tiles.block_keys, 2 * kLanes) + 16;
}

/// Scratch of one thread. Shapes are in Elements of Multiply: floats, or pairs of bf16 along the
/// reduction of the product that reads them ("m pairs": two queries, "n pairs": two keys).
template <class Multiply>
struct BackwardScratch {
  using Element = typename Multiply::Element;
  static constexpr int kPair = Multiply::kDepthPer;

  int64_t padded_dim;      ///< head_dim rounded up to whole vectors
  int64_t padded_dim_v;    ///< head_dim_v likewise
  int64_t depth;           ///< head_dim in Elements
  int64_t depth_v;         ///< head_dim_v in Elements
  int64_t row_elements;    ///< padded_dim in Elements
  int64_t row_elements_v;  ///< padded_dim_v in Elements
  int64_t tile_stride;     ///< Elements from one row of P or dS to the next

  Element* k_panels;     ///< [block_keys / kPanel][depth][kPanel]      B of S = Q K^T
  Element* v_panels;     ///< [block_keys / kPanel][depth_v][kPanel]    B of dP = dO V^T
  Element* k_rows;       ///< [block_keys / kPair][padded_dim] or panels   B of dQ = dS K
  Element* q_rows;       ///< [query_rows][row_elements]                   A of S
  Element* q_columns;    ///< [query_rows / kPair][padded_dim] or panels   B of dK = dS^T Q
  Element* d_o_rows;     ///< [query_rows][row_elements_v]                 A of dP
  Element* d_o_columns;  ///< [query_rows / kPair][padded_dim_v] or panels B of dV = P^T dO
  Element* p;            ///< [query_rows / kPair][tile_stride]         A^T of dV
  Element* ds;           ///< [query_rows / kPair][tile_stride]         A^T of dK
  Element* ds_rows;      ///< [query_rows][tile_stride / kPair]         A of dQ
  float* strip_s;        ///< [kStripRows][tile_stride]                 kPair == 2 only
  float* strip_dp;       ///< [kStripRows][tile_stride]                 kPair == 2 only
  float* bias;           ///< [kStripRows][tile_stride]: the mask tensor, -inf hides
  float* dk;             ///< [block_keys][padded_dim] sums
  float* dv;             ///< [block_keys][padded_dim_v] sums
  Element* staging;      ///< [kPanel][max(row_elements, row_elements_v)] rows to be transposed
  TileRow* rows;         ///< [query_rows]
  float* statistics;     ///< [2][query_rows] maxima and sums of the rows' scores
  int32_t* bad_keys;     ///< [block_keys] keys of the block whose k holds NaN or infinity

  /// Lays the arrays out from `base` (null to measure); returns the bytes used.
  size_t carve(void* base, const BackwardTiles& t, int64_t head_dim, int64_t head_dim_v) {
    uintptr_t next = reinterpret_cast<uintptr_t>(base);
    const auto take = [&](auto*& pointer, int64_t count) {
      pointer = reinterpret_cast<decltype(+pointer)>(next);
      next += static_cast<uintptr_t>(round_up(count * static_cast<int64_t>(sizeof *pointer), 64));
    };
    padded_dim = round_up(head_dim, kLanes);
    padded_dim_v = round_up(head_dim_v, kLanes);
    depth = (head_dim + kPair - 1) / kPair;
    depth_v = (head_dim_v + kPair - 1) / kPair;
    row_elements = (padded_dim + kPair - 1) / kPair;
    row_elements_v = (padded_dim_v + kPair - 1) / kPair;
    tile_stride = tile_stride_of(t);
    const int64_t query_pairs = (t.query_rows + kPair - 1) / kPair;
    const int64_t key_pairs = (t.block_keys + kPair - 1) / kPair;

    take(k_panels, t.block_keys * depth);
    take(v_panels, t.block_keys * depth_v);
    // Panels of columns, where there are any, are whole.
    const int64_t column = kPacksPanels<Multiply> ? kPanel : kLanes;
    take(k_rows, key_pairs * round_up(padded_dim, column));
    take(q_rows, t.query_rows * row_elements);
    take(d_o_rows, t.query_rows * row_elements_v);
    take(p, query_pairs * tile_stride);
    take(ds, query_pairs * tile_stride);
    q_columns = q_rows;
    d_o_columns = d_o_rows;
    ds_rows = ds;
    strip_s = strip_dp = nullptr;
    if constexpr (kPair == 2 || kPacksPanels<Multiply>) {
      take(q_columns, query_pairs * round_up(padded_dim, column));
      take(d_o_columns, query_pairs * round_up(padded_dim_v, column));
    }
    if constexpr (kPair == 2) {
      take(ds_rows, t.query_rows * tile_stride / kPair);
      take(strip_s, kStripRows * tile_stride);
      take(strip_dp, kStripRows * tile_stride);
    }
    take(bias, kStripRows * tile_stride);
    take(dk, t.block_keys * padded_dim);
    take(dv, t.block_keys * padded_dim_v);
    take(staging, kPanel * most(row_elements, row_elements_v));
    take(rows, t.query_rows);
    take(bad_keys, t.block_keys);
    take(statistics, 2 * t.query_rows);
    return static_cast<size_t>(next - reinterpret_cast<uintptr_t>(base));
  }
};

/// dim elements of type kType -> Elements [padded / kDepthPer], zeros beyond dim.
/// Returns whether all are finite.
template <class Multiply, DType kType>
HWY_INLINE bool copy_row(const char* HWY_RESTRICT source, int64_t dim, int64_t padded,
                         typename Multiply::Element* HWY_RESTRICT target) {
  constexpr int kStep = kLanes * element_bytes(kType);
  const int64_t whole = dim / kLanes;
  if constexpr (Multiply::kDepthPer == 2 && kType == DType::kBf16) {
    // PERF: bits are copied, not widened and rounded again; all exponent bits set is NaN or
    // infinity.
    const Halves halves;
    const auto exponent = hn::Set(halves, uint16_t{0x7f80});
    auto largest = hn::Zero(halves);
    auto* out = reinterpret_cast<uint16_t*>(target);
    for (int64_t n = 0; n < whole; ++n) {
      const auto x = hn::LoadU(halves, reinterpret_cast<const uint16_t*>(source + n * kStep));
      largest = hn::Max(largest, hn::And(x, exponent));
      hn::StoreU(x, halves, out + n * kLanes);
    }
    if (whole * kLanes < padded) {
      alignas(64) uint16_t tail[kLanes] = {};
      memcpy(tail, source + whole * kStep, static_cast<size_t>(dim - whole * kLanes) * 2);
      const auto x = hn::Load(halves, tail);
      largest = hn::Max(largest, hn::And(x, exponent));
      hn::StoreU(x, halves, out + whole * kLanes);
    }
    return hn::AllFalse(halves, hn::Eq(largest, exponent));
  } else {
    // x * 0 is NaN for NaN and infinity and 0 otherwise: one FMA per vector finds both.
    Floats poison = zero();
    const auto put = [&](Floats x, int64_t d) {
      poison = hn::MulAdd(x, zero(), poison);
      if constexpr (Multiply::kDepthPer == 1) {
        store(x, target + d);
      } else {
        store_as<DType::kBf16>(x, reinterpret_cast<uint16_t*>(target) + d);
      }
    };
    for (int64_t n = 0; n < whole; ++n) put(load_as<kType>(source + n * kStep), n * kLanes);
    if (whole * kLanes < padded) {
      put(load_as<kType>(source + whole * kStep, dim - whole * kLanes), whole * kLanes);
    }
    return hn::AllFalse(FloatTag(), hn::IsNaN(poison));
  }
}

/// Copies rows [begin, begin + count) of one (batch, head): row i to target + i * stride, and
/// report(i, whether it is finite). Rows for which skip(i) holds are left alone.
template <class Multiply, class Skip, class Report>
HWY_INLINE void copy_rows(const RowsView& view, int64_t batch, int64_t head, int64_t begin,
                          int64_t count, int64_t dim, int64_t padded,
                          typename Multiply::Element* target, int64_t stride, const Skip& skip,
                          const Report& report) {
  const char* source = row_at(view, batch, begin, head);
  with_dtype(view.dtype, [&]<DType kType>() {
    const int64_t step = view.row_stride * element_bytes(kType);
    for (int64_t i = 0; i < count; ++i) {
      if (skip(i)) continue;
      report(i, copy_row<Multiply, kType>(source + i * step, dim, padded, target + i * stride));
    }
  });
}

/// Rows [rows][stride] -> one panel [depth][kPanel]; columns beyond `rows` are zero.
template <class Element>
HWY_INLINE void transpose_to_panel(const Element* rows, int64_t count, int64_t stride,
                                   int64_t depth, Element* panel) {
  for (int64_t d = 0; d < depth; ++d) {
    for (int64_t j = 0; j < count; ++j) panel[d * kPanel + j] = rows[j * stride + d];
    for (int64_t j = count; j < kPanel; ++j) panel[d * kPanel + j] = 0;
  }
}

/// Rows [count][stride] -> panels [padded / kPanel][panel_rows][kPanel], to rows first.. of each
/// panel.
HWY_INLINE void rows_to_panels(const float* HWY_RESTRICT rows, int64_t count, int64_t stride,
                               int64_t padded, int64_t panel_rows, int64_t first,
                               float* HWY_RESTRICT panels) {
  for (int64_t d = 0; d < padded; d += kLanes) {
    float* column = panels + d / kPanel * panel_rows * kPanel + first * kPanel + d % kPanel;
    for (int64_t r = 0; r < count; ++r) store(load(rows + r * stride + d), column + r * kPanel);
  }
}

/// Two rows of bf16 -> pairs: low half from `even`, high half from `odd` (null: zeros).
HWY_INLINE void pair_rows(const uint16_t* HWY_RESTRICT even, const uint16_t* HWY_RESTRICT odd,
                          int64_t count, uint32_t* HWY_RESTRICT pairs) {
  if (odd == nullptr) {
    for (int64_t d = 0; d < count; ++d) pairs[d] = even[d];
    return;
  }
  for (int64_t d = 0; d < count; ++d) {
    pairs[d] = even[d] | (static_cast<uint32_t>(odd[d]) << 16);
  }
}

}  // namespace
}  // namespace FLASHLAB_ISA
}  // namespace flashlab::internal::simd
