#pragma once

// The roof: multiply-adds in registers only, as fast as the instruction set issues them.

#include "cpu/simd/gemm-inl.h"

namespace flashlab::internal::simd {
namespace FLASHLAB_ISA {
namespace {

// HW: "v" is any vector register of x86, "w" of ARM.
#if defined(__aarch64__)
#define FLASHLAB_VECTOR_REGISTER "+w"
#else
#define FLASHLAB_VECTOR_REGISTER "+v"
#endif

/// Hides a register's value from the optimiser, so that products of it are not loop invariants.
HWY_INLINE void opaque(Floats& v) {
  asm volatile("" : FLASHLAB_VECTOR_REGISTER(v.raw));
}
#if defined(FLASHLAB_SIMD_BF16)
HWY_INLINE void opaque(__m512i& v) {
  asm volatile("" : FLASHLAB_VECTOR_REGISTER(v));
}
#endif
#undef FLASHLAB_VECTOR_REGISTER

/// Twelve independent sums hide the latency of four cycles on two pipes with room to spare, and
/// with the two operands still fit AVX2's sixteen registers.
template <class Multiply>
double roof(int64_t iterations) {
  constexpr int kSums = 12;
  constexpr int kUnroll = 8;
  alignas(64) typename Multiply::Element operands[2][16] = {};
  Floats sum[kSums];
  for (int i = 0; i < kSums; ++i) sum[i] = zero();
  auto a = Multiply::load_b(operands[0]);
  auto b = Multiply::load_b(operands[1]);
  for (int64_t n = 0; n < iterations; n += kUnroll) {
    opaque(a);
    opaque(b);
#pragma GCC unroll 8
    for (int u = 0; u < kUnroll; ++u) {
#pragma GCC unroll 16
      for (int i = 0; i < kSums; ++i) sum[i] = Multiply::multiply_add(a, b, sum[i]);
    }
  }
  Floats total = sum[0];
  for (int i = 1; i < kSums; ++i) total = hn::Add(total, sum[i]);
  opaque(total);
  const int64_t rounds = (iterations + kUnroll - 1) / kUnroll * kUnroll;
  return 2.0 * Multiply::kDepthPer * kLanes * kSums * static_cast<double>(rounds);
}

}  // namespace
}  // namespace FLASHLAB_ISA
}  // namespace flashlab::internal::simd
