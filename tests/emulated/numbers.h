#pragma once

// Numbers of 16 bits and floats, as the GPU's conversions have them: to the nearest, ties to even.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace emulated {

inline float float_of_bits(std::uint32_t bits) {
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}
inline std::uint32_t bits_of(float value) {
  std::uint32_t out;
  std::memcpy(&out, &value, 4);
  return out;
}

inline float float_of_bf16(std::uint16_t bits) {
  return float_of_bits(std::uint32_t{bits} << 16);
}
inline std::uint16_t bf16_of(float value) {
  if (value != value) return 0x7fff;
  const std::uint32_t bits = bits_of(value);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float float_of_fp16(std::uint16_t bits) {
  const std::uint32_t sign = std::uint32_t{bits} >> 15 << 31, rest = bits & 0x7fffu;
  if (rest >= 0x7c00) return float_of_bits(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
  // The exponent's bias differs by 112; below the normal numbers the product normalises.
  const float magnitude = float_of_bits(rest << 13) * 0x1p112f;
  return float_of_bits(sign | bits_of(magnitude));
}
inline std::uint16_t fp16_of(float value) {
  if (value != value) return 0x7fff;
  const auto sign = static_cast<std::uint16_t>(bits_of(value) >> 16 & 0x8000u);
  const float magnitude = std::fabs(value);
  if (magnitude >= 65520.0f) return static_cast<std::uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x1p-14f) {
    return static_cast<std::uint16_t>(sign |
                                      static_cast<unsigned>(std::lrint(magnitude * 0x1p24f)));
  }
  const std::uint32_t bits = bits_of(magnitude) - (112u << 23);
  return static_cast<std::uint16_t>(sign | (bits + 0xfff + (bits >> 13 & 1)) >> 13);
}

}  // namespace emulated
