#pragma once

#include "../numbers.h"

namespace flashlab::ptx {

/// Subnormal numbers are zeros of their sign.
inline float flushed(float x) {
  return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x;
}
inline float exp2_fast(float x) {
  return flushed(std::exp2(flushed(x)));
}
inline float reciprocal_fast(float x) {
  return flushed(1 / flushed(x));
}
/// As sm_90 has it: what is larger than a sum that is not negative becomes that.
inline float clear_if_negative(float value, unsigned a, unsigned b) {
  const int sum = std::bit_cast<int>(a + b);
  return std::bit_cast<float>(std::max(0, std::min(sum, std::bit_cast<int>(value))));
}
inline unsigned clear_if_negative_2(unsigned value, unsigned a, unsigned b) {
  const auto half = [&](int shift) {
    const auto sum = static_cast<short>((a >> shift) + (b >> shift));
    const auto own = static_cast<short>(value >> shift);
    return static_cast<unsigned>(std::max<short>(0, std::min(sum, own))) << shift;
  };
  return half(0) | half(16);
}
inline unsigned dot_bytes(unsigned a, unsigned b, unsigned sum) {
  for (int shift = 0; shift < 32; shift += 8) sum += (a >> shift & 255) * (b >> shift & 255);
  return sum;
}
inline float log2_fast(float x) {
  return std::log2(flushed(x));
}
inline float max_nan(float a, float b) {
  return a != a || b != b ? std::nanf("") : std::fmax(a, b);
}

template <float (*kFloat)(unsigned short)>
unsigned larger_halves(unsigned a, unsigned b) {
  const auto larger = [](unsigned x, unsigned y) {
    return kFloat(static_cast<unsigned short>(x)) < kFloat(static_cast<unsigned short>(y)) ? y : x;
  };
  return larger(a >> 16, b >> 16) << 16 | larger(a & 0xffff, b & 0xffff);
}
inline unsigned max_bf16_2(unsigned a, unsigned b) {
  return larger_halves<emulated::float_of_bf16>(a, b);
}
inline unsigned max_fp16_2(unsigned a, unsigned b) {
  return larger_halves<emulated::float_of_fp16>(a, b);
}

}  // namespace flashlab::ptx
