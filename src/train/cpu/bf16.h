#pragma once

// Runs of bf16 <-> fp32, inline so that the compiler makes vectors of them.

#include <cstdint>
#include <cstring>

namespace flashlab::train::cpu {

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

}  // namespace flashlab::train::cpu
