#pragma once

// Vectors, exp2 and element conversions for one instruction set.
//
// Included once by each translation unit of the kernels, which first defines FLASHLAB_ISA (e.g.
// avx512) and is compiled with that instruction set's -m flags.
//
// INVARIANT: these translation units emit no symbol that another one could also emit. The linker
// keeps one copy of every inline function; if it kept the copy compiled for AVX-512, a machine with
// AVX2 would die of SIGILL. So only C headers and Highway (whose functions are static and always
// inlined) are included, everything lives in the instruction set's own anonymous namespace, and
// tests/cpu_simd_symbols.sh reads the objects' symbol tables.

#ifndef FLASHLAB_ISA
#error "define FLASHLAB_ISA before including cpu/simd/*-inl.h"
#endif

#include <math.h>
#include <stdint.h>
#include <string.h>

// One target per translation unit, the one its -m flags name: no dispatch and nothing to link.
#ifndef HWY_COMPILE_ONLY_SCALAR
#define HWY_COMPILE_ONLY_STATIC
#endif
#include <hwy/highway.h>

#include "cpu/simd/kernels.h"
#include "cpu/simd/mutation.h"
#include "flashlab/tensor.h"

namespace flashlab::internal::simd {
namespace FLASHLAB_ISA {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using IntTag = hn::ScalableTag<int32_t>;
using UintTag = hn::ScalableTag<uint32_t>;
using Halves = hn::Rebind<uint16_t, FloatTag>;  ///< as many 16-bit lanes as a FloatTag has floats
using Floats = hn::Vec<FloatTag>;
using Ints = hn::Vec<IntTag>;
using Uints = hn::Vec<UintTag>;

/// Floats per vector: 16 (AVX-512), 8 (AVX2), 4 (NEON), 1 (scalar).
constexpr int kLanes = static_cast<int>(hn::MaxLanes(FloatTag()));

/// The register tile of the micro kernel: kStripRows x kPanelVectors accumulators.
/// HW: AVX-512 and NEON have 32 registers: 24 accumulators + 4 of B + 1 broadcast of A. AVX2 has
/// 16: 12 + 2 + 1. The scalar build has 16 one-float registers and follows AVX2's shape. AMX
/// multiplies whole tiles and takes strips of 32 rows (amx-inl.h).
#ifndef FLASHLAB_SIMD_STRIP_ROWS
#define FLASHLAB_SIMD_STRIP_ROWS 6
#endif
constexpr int kStripRows = FLASHLAB_SIMD_STRIP_ROWS;
constexpr int kPanelVectors = (kLanes == 16 || HWY_TARGET == HWY_NEON) ? 4 : 2;

/// Columns of a packed panel: 64 (AVX-512), 16 (AVX2, NEON), 2 (scalar).
constexpr int kPanel = kPanelVectors * kLanes;

HWY_INLINE Floats set(float x) {
  return hn::Set(FloatTag(), x);
}
HWY_INLINE Floats zero() {
  return hn::Zero(FloatTag());
}
HWY_INLINE Floats load(const float* p) {
  return hn::LoadU(FloatTag(), p);
}
HWY_INLINE void store(Floats v, float* p) {
  hn::StoreU(v, FloatTag(), p);
}

/// The larger of both, b where either is NaN. The order matters: see clamp_exponent.
HWY_INLINE Floats max_keep_second(Floats a, Floats b) {
#if HWY_TARGET == HWY_SCALAR
  return Floats(a.raw > b.raw ? a.raw : b.raw);
#elif HWY_TARGET == HWY_NEON
  return hn::IfThenElse(hn::Gt(a, b), a, b);
#else
  return hn::Max(a, b);  // HW: vmaxps returns its second operand if either is NaN
#endif
}

/// Nearest integer, ties to even; 0 or INT32_MIN for NaN, so that it shifted left by 23 is 0.
/// hn::NearestInt repairs overflow, which exp2's clamp has already excluded.
HWY_INLINE Ints nearest_int(Floats t) {
#if HWY_TARGET == HWY_SCALAR
  return Ints(t.raw == t.raw ? static_cast<int32_t>(rintf(t.raw)) : 0);
#elif HWY_TARGET == HWY_AVX2
  return Ints{_mm256_cvtps_epi32(t.raw)};
#elif HWY_TARGET <= HWY_AVX3
  return Ints{_mm512_cvtps_epi32(t.raw)};
#else
  return hn::NearestInt(t);
#endif
}

/// t, but at least -127, where 2^t is 0; NaN stays NaN.
HWY_INLINE Floats clamp_exponent(Floats t) {
  return max_keep_second(set(-127.0f), t);
}

/// 2^t for -127 <= t <= 127, polynomial of degree 5 (relative error 1e-7) or 4 (3e-6).
///
/// Exactly 0 for t = -127, so that a masked score (-inf) has probability 0 and not 2^-127; NaN
/// stays NaN whatever its payload. Results below 2^-126 are not accurate (they are at most 2^-126).
///
/// t = n + f with n an integer and |f| <= 1/2; 2^f by a minimax polynomial p with p(0) = 1 exactly,
/// and 2^n by adding n to the exponent bits. At the clamp t = -127 this gives 0x3f800000 - (127 <<
/// 23) = 0: the exact zero costs nothing. A NaN passes the clamp (second operand), and its n << 23
/// is 0, so p's NaN is returned.
/// PERF: max, round and subtract go to the ADD pipes; the polynomial alone occupies FMA slots.
/// vscalefps would cost two of them (Zen 4, 2026-11).
///
/// Several vectors go in step: one needs 13 instructions, each waiting for the one before.
template <int kDegree, int kVectors>
HWY_INLINE void exp2_of_clamped(Floats (&t)[kVectors]) {
  static_assert(kDegree == 4 || kDegree == 5);
  Floats f[kVectors], p[kVectors];
  Ints n[kVectors];
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) f[i] = hn::Round(t[i]);
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) n[i] = nearest_int(t[i]);
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) f[i] = hn::Sub(t[i], f[i]);
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) n[i] = hn::ShiftLeft<23>(n[i]);
  const auto add_term = [&](float coefficient) HWY_ATTR {
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) p[i] = hn::MulAdd(p[i], f[i], set(coefficient));
  };
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) p[i] = set(kDegree == 5 ? 0.001326479507f : 0.009582859579f);
  if constexpr (kDegree == 5) {
    add_term(0.009671537838f);
    add_term(0.05550733819f);
    add_term(0.2402224171f);
    add_term(0.6931469774f);
  } else {
    add_term(0.05590645533f);
    add_term(0.2402409868f);
    add_term(0.6931241899f);
  }
  add_term(1.0f);
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) {
    t[i] = hn::BitCast(FloatTag(), hn::Add(hn::BitCast(IntTag(), p[i]), n[i]));
  }
}

/// 2^t for t <= 127, NaN for NaN.
template <int kDegree>
HWY_INLINE Floats exp2(Floats t) {
  Floats one[1] = {clamp_exponent(t)};
  exp2_of_clamped<kDegree>(one);
  return one[0];
}

// ---------------------------------------------------------------------------------------------
// Elements of memory <-> floats
// ---------------------------------------------------------------------------------------------

/// Bytes of an element: constexpr, unlike flashlab::size_of.
constexpr int element_bytes(DType dtype) {
  return dtype == DType::kFp32 ? 4 : 2;
}

HWY_INLINE const char* element_at(const void* base, int64_t index, DType dtype) {
  return static_cast<const char*>(base) + index * element_bytes(dtype);
}

HWY_INLINE Floats floats_from_bf16(const uint16_t* p) {
  const Uints wide = hn::PromoteTo(UintTag(), hn::LoadU(Halves(), p));
  return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(wide));
}

HWY_INLINE Floats floats_from_fp16(const uint16_t* p) {
#if HWY_TARGET == HWY_SCALAR
  return set(float_from_fp16(*p));
#else
  const hn::Rebind<hwy::float16_t, FloatTag> tag;
  return hn::PromoteTo(FloatTag(), hn::LoadU(tag, reinterpret_cast<const hwy::float16_t*>(p)));
#endif
}

/// kLanes elements of type kType from p, widened.
template <DType kType>
HWY_INLINE Floats load_as(const void* p) {
  if constexpr (kType == DType::kFp32) return load(static_cast<const float*>(p));
  if constexpr (kType == DType::kBf16) return floats_from_bf16(static_cast<const uint16_t*>(p));
  if constexpr (kType == DType::kFp16) return floats_from_fp16(static_cast<const uint16_t*>(p));
}

/// An additive mask value at or below this hides its key: half of the type's lowest number.
template <DType kType>
constexpr float hiding_value() {
  if (kType == DType::kFp16) return -65504.0f / 2;
  if (kType == DType::kBf16) return -0x1.fep127f / 2;
  return -0x1.fffffep127f / 2;
}

/// The first `count` (0..kLanes) elements, zeros beyond; reads nothing beyond.
template <DType kType>
HWY_INLINE Floats load_as(const void* p, int64_t count) {
  if (count >= kLanes) return load_as<kType>(p);
  alignas(64) char buffer[kLanes * 4] = {};
  memcpy(buffer, p, static_cast<size_t>(count) * element_bytes(kType));
  return load_as<kType>(buffer);
}

/// fp32 -> bf16 bits in the low half of each 32-bit lane; to nearest even, NaN stays NaN.
HWY_INLINE Uints bf16_bits(Floats v) {
  const Uints bits = hn::BitCast(UintTag(), v);
  const Uints odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(UintTag(), 1));
  const Uints rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(UintTag(), 0x7fff))));
  const Uints quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(UintTag(), 0x40));
  return hn::IfThenElse(hn::RebindMask(UintTag(), hn::IsNaN(v)), quiet, rounded);
}

/// Writes kLanes floats as elements of type kType.
template <DType kType>
HWY_INLINE void store_as(Floats v, void* p) {
  if constexpr (kType == DType::kFp32) {
    store(v, static_cast<float*>(p));
  } else if constexpr (kType == DType::kBf16) {
    hn::StoreU(hn::TruncateTo(Halves(), bf16_bits(v)), Halves(), static_cast<uint16_t*>(p));
  } else {
#if HWY_TARGET == HWY_SCALAR
    *static_cast<uint16_t*>(p) = fp16_from_float(v.raw);
#else
    const hn::Rebind<hwy::float16_t, FloatTag> tag;
    hn::StoreU(hn::DemoteTo(tag, v), tag, static_cast<hwy::float16_t*>(p));
#endif
  }
}

/// Writes the first `count` (0..kLanes) floats; touches nothing beyond.
template <DType kType>
HWY_INLINE void store_as(Floats v, void* p, int64_t count) {
  if (count >= kLanes) return store_as<kType>(v, p);
  alignas(64) char buffer[kLanes * 4];
  store_as<kType>(v, buffer);
  memcpy(p, buffer, static_cast<size_t>(count) * element_bytes(kType));
}

/// Calls f with std::integral_constant-like tags: f.template operator()<DType>().
template <class F>
HWY_INLINE void with_dtype(DType dtype, const F& f) {
  switch (dtype) {
    case DType::kFp16:
      return f.template operator()<DType::kFp16>();
    case DType::kBf16:
      return f.template operator()<DType::kBf16>();
    default:
      return f.template operator()<DType::kFp32>();
  }
}

}  // namespace
}  // namespace FLASHLAB_ISA
}  // namespace flashlab::internal::simd
