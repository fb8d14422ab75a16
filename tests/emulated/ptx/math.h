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
inline float clear_if(float value, unsigned word, unsigned mask) {
  return (word & mask) != 0 ? 0.0f : value;
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
