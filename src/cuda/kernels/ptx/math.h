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

/// 0 where `word` has a bit of `mask`: one test and one selection. The compiler takes a shift and a
/// comparison more.
__device__ inline float clear_if(float value, unsigned word, unsigned mask) {
  float out;
  asm("{\n\t.reg .pred has;\n\t.reg .b32 bits;\n\t"
      "and.b32 bits, %2, %3;\n\tsetp.ne.u32 has, bits, 0;\n\t"
      "selp.f32 %0, 0f00000000, %1, has;\n\t}"
      : "=f"(out)
      : "f"(value), "r"(word), "r"(mask));
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
