#pragma once

// The register-tile micro kernel and the loops over row strips and packed panels around it.
//
//   C [rows, columns] = start + A [rows, depth] B [depth, columns]
//
// A is read one element at a time and broadcast, so it may be walked along its rows or its columns:
// element (i, k) lies at a[i * a_row_stride + k * a_depth_stride], which serves A and A^T alike.
// B is packed in panels of kPanel columns: element (k, j) of a panel at b[k * b_depth_stride + j].
// "Depth" counts elements of the Multiply policy: floats, or pairs of bf16 along the reduction.

#include "cpu/simd/vector-inl.h"

#if defined(FLASHLAB_SIMD_BF16)
#include <immintrin.h>
#endif

namespace flashlab::internal::simd {
namespace FLASHLAB_ISA {
namespace {

/// What C holds before the products are added.
enum class Start {
  kZero,           ///< nothing: C is overwritten
  kAdd,            ///< C
  kScale,          ///< row_scale[i] * C[i, :]
  kSum,            ///< C, added once the products are summed from zero
  kZeroAndMaxima,  ///< nothing; lane_max takes in what C becomes
};

/// fp32 products and sums.
struct MultiplyFp32 {
  using Element = float;               ///< one step of the reduction
  static constexpr int kDepthPer = 1;  ///< values of the reduction in one Element
  static constexpr int kExpDegree = 5;
  using Operand = Floats;
  static HWY_INLINE Operand load_b(const Element* p) { return load(p); }
  static HWY_INLINE Operand broadcast(const Element* p) { return set(*p); }
  static HWY_INLINE Floats multiply_add(Operand a, Operand b, Floats c) {
    return hn::MulAdd(a, b, c);
  }
};

#if defined(FLASHLAB_SIMD_BF16)
/// Pairs of bf16 along the reduction, fp32 sums: the element's low half is the even index.
/// HW: vdpbf16ps treats subnormal inputs as zero and flushes subnormal sums to zero, whatever MXCSR
/// says. It needs AVX512_BF16; Highway 1.0.3 has no operation for it, hence the intrinsics.
struct MultiplyBf16 {
  using Element = uint32_t;
  static constexpr int kDepthPer = 2;
  /// bf16 rounds P to 2e-3, so degree 3 (1e-4) would do for O; but LSE must hold 1e-5.
  static constexpr int kExpDegree = 4;
  using Operand = __m512i;
  static HWY_INLINE Operand load_b(const Element* p) { return _mm512_loadu_si512(p); }
  static HWY_INLINE Operand broadcast(const Element* p) {
    return _mm512_set1_epi32(static_cast<int>(*p));
  }
  static HWY_INLINE Floats multiply_add(Operand a, Operand b, Floats c) {
    return Floats{
        _mm512_dpbf16_ps(c.raw, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b))};
  }
};
#endif

/// One register tile's operands; see the head of this file.
template <class Multiply>
struct TileArguments {
  using Element = typename Multiply::Element;
  int64_t depth;  ///< in Elements
  const Element* a;
  int64_t a_row_stride;
  int64_t a_depth_stride;
  const Element* b;
  int64_t b_depth_stride;
  float* c;
  int64_t c_row_stride;
  const float* row_scale;     ///< [rows], Start::kScale only
  float* lane_max = nullptr;  ///< [rows, kLanes], Start::kZeroAndMaxima only
};

/// Nothing is done beside a register tile's products.
struct NothingBeside {
  template <class Step>
  HWY_INLINE void run(int64_t&, const Step&) const {}
};

/// C [kRows, kVectors * kLanes]. All accumulators live in registers; kRows <= kStripRows and
/// kVectors <= kPanelVectors keep them there. `beside` may do other work between steps of the
/// reduction, which it takes by calling step() and counts down in `left`.
template <class Multiply, int kRows, int kVectors, Start kStart, class Beside = NothingBeside>
HWY_INLINE void micro_kernel(const TileArguments<Multiply>& t, const Beside& beside = {}) {
  Floats sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) {
      const float* c = t.c + i * t.c_row_stride + j * kLanes;
      sum[i][j] = zero();
      if constexpr (kStart == Start::kAdd) sum[i][j] = load(c);
      if constexpr (kStart == Start::kScale) sum[i][j] = hn::Mul(set(t.row_scale[i]), load(c));
    }
  }
  const typename Multiply::Element* HWY_RESTRICT a = t.a;
  const typename Multiply::Element* HWY_RESTRICT b = t.b;
  const auto step = [&]() HWY_ATTR __attribute__((always_inline)) {
    typename Multiply::Operand column[kVectors];
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) column[j] = Multiply::load_b(b + j * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const typename Multiply::Operand row = Multiply::broadcast(a + i * t.a_row_stride);
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; ++j) {
        sum[i][j] = Multiply::multiply_add(row, column[j], sum[i][j]);
      }
    }
    a += t.a_depth_stride;
    b += t.b_depth_stride;
  };
  int64_t left = t.depth;
  beside.run(left, step);
  // PERF: 12 products of AVX2's tile come with 8 loads; four steps share what the loop itself
  // costs.
#pragma GCC unroll 4
  for (; left > 0; --left) step();
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) {
      float* c = t.c + i * t.c_row_stride + j * kLanes;
      store(kStart == Start::kSum ? hn::Add(load(c), sum[i][j]) : sum[i][j], c);
    }
    if constexpr (kStart == Start::kZeroAndMaxima) {
      Floats max = load(t.lane_max + i * kLanes);
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; ++j) max = hn::Max(max, sum[i][j]);
      store(max, t.lane_max + i * kLanes);
    }
  }
}

/// C [kRows, vectors * kLanes] over consecutive panels.
template <class Multiply, Start kStart, int kRows>
HWY_NOINLINE void panels_of_rows(int64_t vectors, int64_t panel_stride, TileArguments<Multiply> t) {
  for (; vectors >= kPanelVectors; vectors -= kPanelVectors) {
    micro_kernel<Multiply, kRows, kPanelVectors, kStart>(t);
    t.b += panel_stride;
    t.c += kPanel;
  }
  if (vectors == 1) micro_kernel<Multiply, kRows, 1, kStart>(t);
  if constexpr (kPanelVectors > 2) {
    if (vectors == 2) micro_kernel<Multiply, kRows, 2, kStart>(t);
    if (vectors == 3) micro_kernel<Multiply, kRows, 3, kStart>(t);
  }
}

/// C [rows, columns rounded up to kLanes] over consecutive panels: panel p at t.b + p *
/// panel_stride, its columns at t.c + p * kPanel. rows in 1..kStripRows. C has room for the
/// rounding.
template <class Multiply, Start kStart>
HWY_INLINE void multiply_panels(int rows, int64_t columns, int64_t panel_stride,
                                TileArguments<Multiply> t) {
  const int64_t vectors = (columns + kLanes - 1) / kLanes;
  switch (rows) {
    case 1:
      return panels_of_rows<Multiply, kStart, 1>(vectors, panel_stride, t);
    case 2:
      return panels_of_rows<Multiply, kStart, 2>(vectors, panel_stride, t);
    case 3:
      return panels_of_rows<Multiply, kStart, 3>(vectors, panel_stride, t);
    case 4:
      return panels_of_rows<Multiply, kStart, 4>(vectors, panel_stride, t);
    case 5:
      return panels_of_rows<Multiply, kStart, 5>(vectors, panel_stride, t);
    default:
      return panels_of_rows<Multiply, kStart, 6>(vectors, panel_stride, t);
  }
}

/// Terms of a sum in fp32 before the next sum begins: the error of a score grows with the terms of
/// its longest sum (head dim 256 in one sum: 1.8 to 2.1 times the formula's; 192: up to 1.4).
constexpr int64_t kLongestSum = 128;

/// Scores: C [rows, columns] = A B along t.depth, in sums of at most kLongestSum terms for fp32.
/// delta (backward_row_delta) is summed in the same order.
template <class Multiply>
HWY_INLINE void multiply_scores(int rows, int64_t columns, int64_t panel_stride,
                                TileArguments<Multiply> t) {
  const int64_t depth = t.depth;
  if (Multiply::kDepthPer == 1 && depth > kLongestSum) t.depth = kLongestSum;
  multiply_panels<Multiply, Start::kZero>(rows, columns, panel_stride, t);
  if constexpr (Multiply::kDepthPer == 1) {
    for (int64_t k = kLongestSum; k < depth; k += kLongestSum) {
      t.a += kLongestSum * t.a_depth_stride;
      t.b += kLongestSum * t.b_depth_stride;
      t.depth = depth - k < kLongestSum ? depth - k : kLongestSum;
      multiply_panels<Multiply, Start::kSum>(rows, columns, panel_stride, t);
    }
  }
}

}  // namespace
}  // namespace FLASHLAB_ISA
}  // namespace flashlab::internal::simd
