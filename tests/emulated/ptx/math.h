#pragma once

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

}  // namespace flashlab::ptx
