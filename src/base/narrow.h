#pragma once

// Runs of bf16 and fp16 <-> fp32, inline so that the compiler makes vectors of them.

#include <cstdint>
#include <cstring>

namespace flashlab::base {

inline void widen_bf16(const std::uint16_t* from, float* to, std::int64_t count) noexcept {
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t bits = static_cast<std::uint32_t>(from[i]) << 16;
    std::memcpy(to + i, &bits, sizeof bits);
  }
}

/// Nearest, ties to even; NaN stays NaN (its payload may round to none: the quiet bit is set).
inline void round_to_bf16(const float* from, std::uint16_t* to, std::int64_t count) noexcept {
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, from + i, sizeof bits);
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    const std::uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    to[i] = static_cast<std::uint16_t>((nan ? bits | 0x400000u : rounded) >> 16);
  }
}

inline void widen_fp16(const std::uint16_t* from, float* to, std::int64_t count) noexcept {
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t sign = (from[i] & 0x8000u) << 16, rest = from[i] & 0x7fffu;
    // The exponent is 112 too small for a float: a product mends it, subnormals too.
    std::uint32_t bits = rest << 13;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    value *= 0x1p112f;
    std::memcpy(&bits, &value, sizeof bits);
    bits = sign | (rest >= 0x7c00u ? 0x7f800000u | (rest << 13) : bits);
    std::memcpy(to + i, &bits, sizeof bits);
  }
}

/// Nearest, ties to even; what is too large becomes an infinity.
inline void round_to_fp16(const float* from, std::uint16_t* to, std::int64_t count) noexcept {
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, from + i, sizeof bits);
    const std::uint32_t sign = (bits >> 16) & 0x8000u, rest = bits & 0x7fffffffu;
    // Below 2^-14 the places are those of 0.5 in fp32: the sum rounds there.
    float small;
    std::memcpy(&small, &rest, sizeof small);
    small += 0.5f;
    std::uint32_t small_bits;
    std::memcpy(&small_bits, &small, sizeof small_bits);
    const std::uint32_t normal = (rest + 0xc8000fffu + ((rest >> 13) & 1u)) >> 13;
    const std::uint32_t value = rest > 0x7f800000u    ? 0x7e00u
                                : rest >= 0x477ff000u ? 0x7c00u
                                : rest < 0x38800000u  ? small_bits - 0x3f000000u
                                                      : normal;
    to[i] = static_cast<std::uint16_t>(sign | value);
  }
}

}  // namespace flashlab::base
