#pragma once

#include "../numbers.h"

namespace flashlab::ptx {

inline unsigned pack_bf16(float low, float high) {
  return emulated::bf16_of(low) | static_cast<unsigned>(emulated::bf16_of(high)) << 16;
}
inline unsigned pack_fp16(float low, float high) {
  return emulated::fp16_of(low) | static_cast<unsigned>(emulated::fp16_of(high)) << 16;
}
inline unsigned short fp16_bits(float value) {
  return emulated::fp16_of(value);
}
inline unsigned short bf16_bits(float value) {
  return emulated::bf16_of(value);
}
inline float float_of_fp16(unsigned short bits) {
  return emulated::float_of_fp16(bits);
}
inline unsigned permute_bytes(unsigned low, unsigned high, unsigned selector) {
  const unsigned long long both = static_cast<unsigned long long>(high) << 32 | low;
  unsigned out = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned nibble = selector >> 4 * i & 15;
    auto byte = static_cast<unsigned>(both >> 8 * (nibble & 7)) & 0xff;
    if ((nibble & 8) != 0) byte = (byte & 0x80) != 0 ? 0xff : 0;
    out |= byte << 8 * i;
  }
  return out;
}

}  // namespace flashlab::ptx
