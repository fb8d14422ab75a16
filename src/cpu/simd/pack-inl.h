#pragma once

// Packing: strided rows in memory -> the layouts that the micro kernel streams (kernels.h draws
// them). Costs O(rows columns) against the products' O(rows columns Sq); about 1% of a forward pass
// at 1536 queries.

#include "cpu/simd/gemm-inl.h"

namespace flashlab::internal::simd {
namespace FLASHLAB_ISA {
namespace {

template <class Multiply>
constexpr int64_t depth_of(int64_t n) {
  return (n + Multiply::kDepthPer - 1) / Multiply::kDepthPer;
}

HWY_INLINE int64_t row_offset(const MatrixView& source, int64_t i) {
  return source.offsets != nullptr ? source.offsets[i] : i * source.row_stride;
}

/// Rows [begin, end) of the matrix, as far as there are any, are fetched into L2 beside what is
/// done meanwhile. PERF: a row of one head is too short a piece of memory for the hardware's own
/// prefetching. Not into L1: there they would take the buffers that panels pass through.
HWY_INLINE void prefetch_rows(const MatrixView& source, int64_t begin, int64_t end) {
  const int64_t bytes = source.columns * element_bytes(source.dtype);
  for (int64_t i = begin; i < end && i < source.rows; ++i) {
    const char* row = element_at(source.data, row_offset(source, i), source.dtype);
    for (int64_t byte = 0; byte < bytes; byte += 64) __builtin_prefetch(row + byte, 0, 2);
  }
}

/// How far ahead of the rows that are packed others are fetched.
constexpr int64_t kRowsAhead = 32;

/// Element k of a row of `columns` values: a float, or values 2k and 2k + 1 as bf16. Past the end:
/// 0.
template <class Multiply, DType kType>
HWY_INLINE typename Multiply::Element packed_element(const void* row, int64_t k, int64_t columns) {
  constexpr int kPer = Multiply::kDepthPer;
  const int64_t left = columns - k * kPer;
  const char* p = element_at(row, k * kPer, kType);
  typename Multiply::Element element = 0;
  if (left <= 0) return element;
  if constexpr (kPer == 1) {
    element = hn::GetLane(load_as<kType>(p, 1));
  } else {
    alignas(64) uint16_t pair[2 * kLanes];
    store_as<DType::kBf16>(load_as<kType>(p, left < kPer ? left : kPer), pair);
    memcpy(&element, pair, sizeof element);
  }
  return element;
}

#if HWY_TARGET != HWY_SCALAR
/// Four Elements of a row as 32-bit lanes: elements k..k+3, all inside the row.
using Block = hn::Full128<uint32_t>;
template <class Multiply, DType kType>
HWY_INLINE hn::Vec<Block> packed_four(const void* row, int64_t k) {
  const char* p = element_at(row, k * Multiply::kDepthPer, kType);
  if constexpr (Multiply::kDepthPer == 2 && kType == DType::kBf16) {
    return hn::LoadU(Block(), reinterpret_cast<const uint32_t*>(p));
#if defined(FLASHLAB_SIMD_BF16)
  } else if constexpr (Multiply::kDepthPer == 2) {
    const hn::CappedTag<float, 8> eight;
    hn::Vec<decltype(eight)> v;
    if constexpr (kType == DType::kFp32) {
      v = hn::LoadU(eight, reinterpret_cast<const float*>(p));
    } else {
      const hn::Rebind<hwy::float16_t, decltype(eight)> halves;
      v = hn::PromoteTo(eight, hn::LoadU(halves, reinterpret_cast<const hwy::float16_t*>(p)));
    }
    return hn::Vec<Block>{reinterpret_cast<__m128i>(_mm256_cvtneps_pbh(v.raw))};
#endif
  } else if constexpr (kType == DType::kFp32) {
    return hn::LoadU(Block(), reinterpret_cast<const uint32_t*>(p));
  } else if constexpr (kType == DType::kBf16) {
    const hn::Rebind<uint16_t, Block> halves;
    const auto bits = hn::LoadU(halves, reinterpret_cast<const uint16_t*>(p));
    return hn::ShiftLeft<16>(hn::PromoteTo(Block(), bits));
  } else {
    const hn::Full128<float> four;
    const hn::Rebind<hwy::float16_t, decltype(four)> halves;
    const auto bits = hn::LoadU(halves, reinterpret_cast<const hwy::float16_t*>(p));
    return hn::BitCast(Block(), hn::PromoteTo(four, bits));
  }
}

/// 4 rows x 4 Elements from `rows`, transposed to destination[k * kPanel + row].
template <class Multiply, DType kType>
HWY_INLINE void transpose_four(const char* const rows[4], int64_t k, uint32_t* destination) {
  const Block d;
  const hn::Repartition<uint64_t, Block> d64;
  const auto r0 = packed_four<Multiply, kType>(rows[0], k);
  const auto r1 = packed_four<Multiply, kType>(rows[1], k);
  const auto r2 = packed_four<Multiply, kType>(rows[2], k);
  const auto r3 = packed_four<Multiply, kType>(rows[3], k);
  const auto low01 = hn::BitCast(d64, hn::InterleaveLower(d, r0, r1));
  const auto low23 = hn::BitCast(d64, hn::InterleaveLower(d, r2, r3));
  const auto high01 = hn::BitCast(d64, hn::InterleaveUpper(d, r0, r1));
  const auto high23 = hn::BitCast(d64, hn::InterleaveUpper(d, r2, r3));
  const auto out0 = hn::BitCast(d, hn::InterleaveLower(d64, low01, low23));
  const auto out1 = hn::BitCast(d, hn::InterleaveUpper(d64, low01, low23));
  const auto out2 = hn::BitCast(d, hn::InterleaveLower(d64, high01, high23));
  const auto out3 = hn::BitCast(d, hn::InterleaveUpper(d64, high01, high23));
  hn::StoreU(out0, d, destination);
  hn::StoreU(out1, d, destination + kPanel);
  hn::StoreU(out2, d, destination + 2 * kPanel);
  hn::StoreU(out3, d, destination + 3 * kPanel);
}
#endif

template <class Multiply, DType kType>
HWY_INLINE void pack_transposed_as(const MatrixView& source, void* destination) {
  using Element = typename Multiply::Element;
  const int64_t depth = depth_of<Multiply>(source.columns);
  [[maybe_unused]] const int64_t whole =
      source.columns / Multiply::kDepthPer;             // Elements without padding
  Element* panel = static_cast<Element*>(destination);  // [depth, kPanel]
  for (int64_t first = 0; first < source.rows; first += kPanel, panel += depth * kPanel) {
    int64_t j = 0;
#if HWY_TARGET != HWY_SCALAR
    for (; j + 4 <= kPanel && first + j + 4 <= source.rows; j += 4) {
      if (source.far) prefetch_rows(source, first + j + kRowsAhead, first + j + kRowsAhead + 4);
      const char* rows[4];
      for (int i = 0; i < 4; ++i) {
        rows[i] = element_at(source.data, row_offset(source, first + j + i), kType);
      }
      int64_t k = 0;
      for (; k + 4 <= whole; k += 4) {
        transpose_four<Multiply, kType>(rows, k,
                                        reinterpret_cast<uint32_t*>(panel + k * kPanel + j));
      }
      for (; k < depth; ++k) {
        for (int i = 0; i < 4; ++i) {
          panel[k * kPanel + j + i] = packed_element<Multiply, kType>(rows[i], k, source.columns);
        }
      }
    }
#endif
    for (; j < kPanel; ++j) {
      const bool inside = first + j < source.rows;
      const char* row =
          inside ? element_at(source.data, row_offset(source, first + j), kType) : nullptr;
      for (int64_t k = 0; k < depth; ++k) {
        panel[k * kPanel + j] =
            inside ? packed_element<Multiply, kType>(row, k, source.columns) : Element(0);
      }
    }
  }
}

template <class Multiply>
void pack_transposed(const MatrixView& source, void* destination) {
  with_dtype(source.dtype,
             [&]<DType kType>() { pack_transposed_as<Multiply, kType>(source, destination); });
}

/// The first `count` (0..kLanes) 16-bit elements as the low halves of lanes, zeros beyond.
HWY_INLINE Uints load_bits(const void* p, int64_t count) {
  if (count >= kLanes) {
    return hn::PromoteTo(UintTag(), hn::LoadU(Halves(), static_cast<const uint16_t*>(p)));
  }
  alignas(64) uint16_t buffer[kLanes] = {};
  memcpy(buffer, p, static_cast<size_t>(count) * 2);
  return hn::PromoteTo(UintTag(), hn::Load(Halves(), buffer));
}

/// kLanes Elements across columns [column, column + count) of reduction step k.
template <class Multiply, DType kType>
HWY_INLINE Uints straight_elements(const MatrixView& source, int64_t k, int64_t column,
                                   int64_t count) {
  const auto at = [&](int64_t row) {
    return element_at(source.data, row_offset(source, row) + column, kType);
  };
  if constexpr (Multiply::kDepthPer == 1) {
    return hn::BitCast(UintTag(), load_as<kType>(at(k), count));
  } else {
    const auto bits = [&](int64_t row) HWY_ATTR {
      if constexpr (kType == DType::kBf16) return load_bits(at(row), count);
      return bf16_bits(load_as<kType>(at(row), count));
    };
    const Uints even = bits(2 * k);
    if (2 * k + 1 >= source.rows) return even;
    return hn::Or(even, hn::ShiftLeft<16>(bits(2 * k + 1)));
  }
}

/// Steps [begin, end) of the reduction.
template <class Multiply, DType kType>
HWY_INLINE void pack_straight_steps(const MatrixView& source, void* destination,
                                    int64_t panel_stride, int64_t begin, int64_t end) {
  for (int64_t first = 0; first < source.columns; first += kPanel) {
    uint32_t* panel = static_cast<uint32_t*>(destination) + first / kPanel * panel_stride;
    for (int64_t k = begin; k < end; ++k) {
      for (int64_t j = 0; j < kPanel; j += kLanes) {
        const int64_t left = source.columns - first - j;
        const Uints v = left > 0 ? straight_elements<Multiply, kType>(source, k, first + j, left)
                                 : hn::Zero(UintTag());
        hn::StoreU(v, UintTag(), panel + k * kPanel + j);
      }
    }
  }
}

template <class Multiply, DType kType>
HWY_INLINE void pack_straight_as(const MatrixView& source, void* destination,
                                 int64_t panel_stride) {
  const int64_t depth = depth_of<Multiply>(source.rows);
  if (!source.far) {
    return pack_straight_steps<Multiply, kType>(source, destination, panel_stride, 0, depth);
  }
  // Four rows stay in L1 from one panel to the next; asked for in larger numbers they wait for
  // buffers.
  constexpr int64_t kSteps = 4 / Multiply::kDepthPer;
  for (int64_t begin = 0; begin < depth; begin += kSteps) {
    const int64_t end = begin + kSteps < depth ? begin + kSteps : depth;
    prefetch_rows(source, begin * Multiply::kDepthPer + kRowsAhead,
                  end * Multiply::kDepthPer + kRowsAhead);
    pack_straight_steps<Multiply, kType>(source, destination, panel_stride, begin, end);
  }
}

template <class Multiply>
void pack_straight(const MatrixView& source, void* destination, int64_t panel_stride) {
  with_dtype(source.dtype, [&]<DType kType>() {
    pack_straight_as<Multiply, kType>(source, destination, panel_stride);
  });
}

/// Rows of whole vectors of bf16, multiplied by a sign.
HWY_INLINE void copy_bf16_rows(const MatrixView& source, float sign, uint16_t* destination) {
  const hn::ScalableTag<uint16_t> halves;
  const auto flip = hn::Set(halves, sign < 0 ? uint16_t{0x8000} : uint16_t{0});
  for (int64_t i = 0; i < source.rows; ++i, destination += source.columns) {
    const auto* from = static_cast<const uint16_t*>(source.data) + row_offset(source, i);
    for (int64_t j = 0; j < source.columns; j += 2 * kLanes) {
      hn::StoreU(hn::Xor(hn::LoadU(halves, from + j), flip), halves, destination + j);
    }
  }
}

template <class Multiply, DType kType>
HWY_INLINE void pack_rows_as(const MatrixView& source, float factor, void* destination) {
  constexpr DType kPacked = Multiply::kDepthPer == 1 ? DType::kFp32 : DType::kBf16;
  const int64_t width = depth_of<Multiply>(source.columns) * Multiply::kDepthPer;
  if constexpr (kType == kPacked && kType == DType::kBf16) {
    // PERF: bits are copied: so few instructions a row that several rows are waited for at once.
    if (source.columns % (2 * kLanes) == 0 && (factor == 1.0f || factor == -1.0f)) {
      return copy_bf16_rows(source, factor, static_cast<uint16_t*>(destination));
    }
  }
  for (int64_t i = 0; i < source.rows; ++i) {
    char* row = static_cast<char*>(destination) + i * width * element_bytes(kPacked);
    for (int64_t j = 0; j < width; j += kLanes) {
      const char* from = element_at(source.data, row_offset(source, i) + j, kType);
      const Floats v = hn::Mul(set(factor), load_as<kType>(from, source.columns - j));
      store_as<kPacked>(v, row + j * element_bytes(kPacked), width - j);
    }
  }
}

template <class Multiply>
void pack_rows(const MatrixView& source, float factor, void* destination) {
  with_dtype(source.dtype,
             [&]<DType kType>() { pack_rows_as<Multiply, kType>(source, factor, destination); });
}

template <class Multiply>
constexpr PackKernels pack_kernels() {
  return {&pack_transposed<Multiply>, &pack_straight<Multiply>, &pack_rows<Multiply>};
}

}  // namespace
}  // namespace FLASHLAB_ISA
}  // namespace flashlab::internal::simd
