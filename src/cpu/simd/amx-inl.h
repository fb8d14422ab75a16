#pragma once

// bf16 products on tile registers (Intel AMX, Sapphire Rapids and later): a policy in the place of
// MultiplyBf16. Packing, softmax, masks and the loops over blocks are those of forward-inl.h, with
// strips of 32 rows instead of 6.
//
//             B  [16 pairs][16 columns] x 2          The panels [k / 2][64] of bf16 pairs that
//                +------+ +------+                   vdpbf16ps reads are, 16 columns at a time,
//                |tile 6| |tile 7|                   exactly B tiles with a stride of 256 bytes.
//   A            +------+ +------+                   Rows of packed Q and of P are A tiles as they
//   [16 rows]    +------+ +------+                   lie. 2 x 2 tiles of C: each step of 32 values
//   +------+     |tile 0| |tile 1|  C  [32][32]      loads four tiles for four products, 8 cycles
//   |tile 4|     +------+ +------+     fp32          against 16 each.
//   +------+     +------+ +------+
//   |tile 5|     |tile 2| |tile 3|
//   +------+     +------+ +------+
//
// Include before forward-inl.h: the overloads below must be known there.

#include "cpu/simd/gemm-inl.h"

#if !defined(FLASHLAB_SIMD_BF16)
#error "the softmax of this file rounds with AVX512_BF16"
#endif

namespace flashlab::internal::simd {
namespace FLASHLAB_ISA {
namespace {

/// HW: as vdpbf16ps, tdpbf16ps takes subnormals as zero and flushes subnormal results.
template <class TileRegisters>
struct MultiplyTiles {
  using Element = uint32_t;  ///< a pair of bf16 along the reduction, the even index in the low half
  static constexpr int kDepthPer = 2;
  /// Degree 3 would be as good for O, but its 1e-4 reaches LSE, which is promised to 1e-5.
  static constexpr int kExpDegree = 5;
  using Tiles = TileRegisters;
};

constexpr int kTileRows = 16;     ///< of A and C
constexpr int kTileDepth = 16;    ///< pairs: columns of A, rows of B
constexpr int kTileColumns = 16;  ///< floats of C, pairs of B
static_assert(kStripRows == 2 * kTileRows && kPanel % (2 * kTileColumns) == 0 &&
              kLanes == kTileColumns);

/// The last depth % 16 pairs, zero up to a whole tile: what follows them in memory belongs to the
/// next row, panel or head, and 0 times its NaN would be NaN.
struct DepthTail {
  int64_t pairs = 0;
  alignas(64) uint32_t a[kStripRows][kTileDepth];
  alignas(64) uint32_t b[kTileDepth][kPanel];

  template <class Multiply>
  void take_a(int rows, const TileArguments<Multiply>& t) {
    pairs = t.depth % kTileDepth;
    if (pairs == 0) return;
    memset(a, 0, sizeof a);
    for (int i = 0; i < rows; ++i) {
      memcpy(a[i], t.a + i * t.a_row_stride + (t.depth - pairs),
             static_cast<size_t>(pairs) * sizeof a[0][0]);
    }
  }
  template <class Multiply>
  void take_b(const TileArguments<Multiply>& t) {
    if (pairs == 0) return;
    memset(b, 0, sizeof b);
    for (int64_t k = 0; k < pairs; ++k) {
      memcpy(b[k], t.b + (t.depth - pairs + k) * t.b_depth_stride, sizeof b[0]);
    }
  }
};

/// kRows x kColumns tiles of A and B into the tiles of C.
template <class Tiles, int kRows, int kColumns>
HWY_INLINE void multiply_step(const uint32_t* a, int64_t a_row_stride, const uint32_t* b,
                              int64_t b_depth_stride) {
  Tiles::template load<4>(a, a_row_stride * 4);
  if constexpr (kRows == 2) Tiles::template load<5>(a + kTileRows * a_row_stride, a_row_stride * 4);
  Tiles::template load<6>(b, b_depth_stride * 4);
  if constexpr (kColumns == 2) Tiles::template load<7>(b + kTileColumns, b_depth_stride * 4);
  Tiles::template multiply_add<0, 0>();
  if constexpr (kColumns == 2) Tiles::template multiply_add<0, 1>();
  if constexpr (kRows == 2) Tiles::template multiply_add<1, 0>();
  if constexpr (kRows == 2 && kColumns == 2) Tiles::template multiply_add<1, 1>();
}

/// C [kRows * 16, kColumns * 16], `column` floats into the panel.
template <class Multiply, Start kStart, int kRows, int kColumns>
HWY_INLINE void multiply_block(const TileArguments<Multiply>& t, const DepthTail& tail,
                               int64_t column) {
  using Tiles = typename Multiply::Tiles;
  float* c0 = t.c + column;
  float* c1 = c0 + kTileRows * t.c_row_stride;
  const int64_t stride = t.c_row_stride * 4;
  if constexpr (kStart == Start::kZero) {
    Tiles::template zero<0>();
    if constexpr (kColumns == 2) Tiles::template zero<1>();
    if constexpr (kRows == 2) Tiles::template zero<2>();
    if constexpr (kRows == 2 && kColumns == 2) Tiles::template zero<3>();
  } else {
    Tiles::template load<0>(c0, stride);
    if constexpr (kColumns == 2) Tiles::template load<1>(c0 + kTileColumns, stride);
    if constexpr (kRows == 2) Tiles::template load<2>(c1, stride);
    if constexpr (kRows == 2 && kColumns == 2) Tiles::template load<3>(c1 + kTileColumns, stride);
  }
  const int64_t whole = t.depth - tail.pairs;
  for (int64_t k = 0; k < whole; k += kTileDepth) {
    multiply_step<Tiles, kRows, kColumns>(t.a + k, t.a_row_stride,
                                          t.b + k * t.b_depth_stride + column, t.b_depth_stride);
  }
  if (tail.pairs > 0) {
    multiply_step<Tiles, kRows, kColumns>(tail.a[0], kTileDepth, tail.b[0] + column, kPanel);
  }
  Tiles::template store<0>(c0, stride);
  if constexpr (kColumns == 2) Tiles::template store<1>(c0 + kTileColumns, stride);
  if constexpr (kRows == 2) Tiles::template store<2>(c1, stride);
  if constexpr (kRows == 2 && kColumns == 2) Tiles::template store<3>(c1 + kTileColumns, stride);
}

/// All columns of one panel, `count` of them (rounded up to tiles).
template <class Multiply, Start kStart, int kRows>
HWY_NOINLINE void multiply_panel(int64_t count, const TileArguments<Multiply>& t,
                                 const DepthTail& tail) {
  int64_t column = 0;
  for (; column + kTileColumns < count; column += 2 * kTileColumns) {
    multiply_block<Multiply, kStart, kRows, 2>(t, tail, column);
  }
  if (column < count) multiply_block<Multiply, kStart, kRows, 1>(t, tail, column);
}

/// C *= row_scale. A tile cannot be scaled in a register; most blocks after the first few raise no
/// row's maximum, and then there is nothing to do.
template <class Multiply>
void scale_rows(int rows, int64_t columns, const TileArguments<Multiply>& t) {
  for (int i = 0; i < rows; ++i) {
    if (t.row_scale[i] == 1.0f) continue;
    float* row = t.c + i * t.c_row_stride;
    const Floats factor = set(t.row_scale[i]);
    for (int64_t j = 0; j < columns; j += kLanes) store(hn::Mul(load(row + j), factor), row + j);
  }
}

/// As gemm-inl.h's multiply_panels, chosen for this policy by its constraint. Rows up to the next
/// multiple of 16 of A are read and of C are written: callers' arrays hold whole strips. Their
/// values are arbitrary and stay in their own rows. Requires a_depth_stride == 1 and a Session.
template <class Multiply, Start kStart>
requires requires {
  typename Multiply::Tiles;
}
void multiply_panels(int rows, int64_t columns, int64_t panel_stride, TileArguments<Multiply> t) {
  if constexpr (kStart == Start::kScale) scale_rows(rows, columns, t);
  constexpr Start kTileStart = kStart == Start::kScale ? Start::kAdd : kStart;
  DepthTail tail;
  tail.take_a(rows, t);
  for (int64_t left = columns; left > 0; left -= kPanel) {
    const int64_t count = left < kPanel ? left : kPanel;
    tail.take_b(t);
    if (rows > kTileRows) {
      multiply_panel<Multiply, kTileStart, 2>(count, t, tail);
    } else {
      multiply_panel<Multiply, kTileStart, 1>(count, t, tail);
    }
    t.b += panel_stride;
    t.c += kPanel;
  }
}

/// Two vectors of probabilities as bf16, where the softmax wants them (forward_scores-inl.h).
template <class TileRegisters>
HWY_INLINE void store_weights(MultiplyTiles<TileRegisters>, Floats low, Floats high, uint32_t* row,
                              int64_t j) {
  _mm512_storeu_si512(row + j / 2,
                      reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high.raw, low.raw)));
}

}  // namespace
}  // namespace FLASHLAB_ISA
}  // namespace flashlab::internal::simd
