#pragma once

// Scalar arithmetic that C++ has no word for.

namespace flashlab::ptx {

/// 2^x by the special-function unit: relative error at most 2^-22.5 over the full range, results
/// below 2^-126 are flushed to 0, exp2(-inf) = 0 exactly. PTX ISA, "ex2.approx.ftz".
__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// 1 / x by the special-function unit: relative error at most 2^-23, 0 for +-inf. PTX ISA,
/// "rcp.approx.ftz.f32".
__device__ inline float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Of both halves, numbers of 16 bits with a sign: `value` or, where a + b is negative, 0. Values
/// are not negative, and where a + b is not it is not below the value. One instruction on sm_90.
__device__ inline unsigned clear_if_negative_2(unsigned value, unsigned a, unsigned b) {
#if __CUDA_ARCH__ >= 900
  return __viaddmin_s16x2_relu(a, b, value);
#else
  unsigned negative;
  asm("prmt.b32 %0, %1, 0, 0xBB99;" : "=r"(negative) : "r"(a + b));
  return value & ~negative;
#endif
}

/// The same of the bits of a float, and of numbers of 32 bits.
__device__ inline float clear_if_negative(float value, unsigned a, unsigned b) {
#if __CUDA_ARCH__ >= 900
  return __int_as_float(
      __viaddmin_s32_relu(static_cast<int>(a), static_cast<int>(b), __float_as_int(value)));
#else
  return static_cast<int>(a + b) < 0 ? 0.0f : value;
#endif
}

/// sum + the products of the bytes of a and b, without signs.
__device__ inline unsigned dot_bytes(unsigned a, unsigned b, unsigned sum) {
  unsigned out;
  asm("dp4a.u32.u32 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(sum));
  return out;
}

/// log2 by the special-function unit: absolute error at most 2^-22 near 1, log2(0) = -inf.
__device__ inline float log2_fast(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// The larger of two; NaN if either is NaN (sm_80). fmaxf drops NaN.
__device__ inline float max_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

/// Of both halves the larger of two numbers, bf16 or fp16 (sm_80). NaN is dropped.
__device__ inline unsigned max_bf16_2(unsigned a, unsigned b) {
  unsigned y;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}
__device__ inline unsigned max_fp16_2(unsigned a, unsigned b) {
  unsigned y;
  asm("max.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}

}  // namespace flashlab::ptx
