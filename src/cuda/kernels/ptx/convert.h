#pragma once

// Conversions between fp32 and the 16-bit types, as bits. Round to nearest even.

namespace flashlab::ptx {

/// One float to fp16 bits.
__device__ inline unsigned short fp16_bits(float value) {
  unsigned short out;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out) : "f"(value));
  return out;
}

/// One float to bf16 bits, NaN kept, without the instruction that sm_75 lacks.
__device__ inline unsigned short bf16_bits(float value) {
  const unsigned bits = __float_as_uint(value);
  if (value != value) return static_cast<unsigned short>(bits >> 16 | 0x40);
  return static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/// Two floats to packed bf16, `low` in the low half.
__device__ inline unsigned pack_bf16(float low, float high) {
#if __CUDA_ARCH__ >= 800
  unsigned out;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
#else
  return bf16_bits(low) | static_cast<unsigned>(bf16_bits(high)) << 16;
#endif
}

/// Two floats to packed fp16, `low` in the low half.
__device__ inline unsigned pack_fp16(float low, float high) {
#if __CUDA_ARCH__ >= 800
  unsigned out;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
#else
  return fp16_bits(low) | static_cast<unsigned>(fp16_bits(high)) << 16;
#endif
}

/// fp16 bits to float.
__device__ inline float float_of_fp16(unsigned short bits) {
  float out;
  asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(bits));
  return out;
}

/// Four bytes of eight: nibble i of the selector names byte i of the result, 0 to 3 from `low`, 4
/// to 7 from `high`; with 8 added that byte's top bit fills all eight. PTX ISA, "prmt".
__device__ inline unsigned permute_bytes(unsigned low, unsigned high, unsigned selector) {
  unsigned out;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(low), "r"(high), "r"(selector));
  return out;
}

}  // namespace flashlab::ptx
