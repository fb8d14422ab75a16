#pragma once

namespace flashlab::ptx {

inline void mma_bf16_16816(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  emulated::multiply_warp(emulated::Number::kBf16, 16, d, a, b);
}
inline void mma_fp16_16816(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  emulated::multiply_warp(emulated::Number::kFp16, 16, d, a, b);
}
inline void mma_fp16_1688(float (&d)[4], const unsigned (&a)[2], unsigned b) {
  emulated::multiply_warp(emulated::Number::kFp16, 8, d, a, &b);
}
inline void mma_tf32_1688(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  emulated::multiply_warp(emulated::Number::kTf32, 8, d, a, b);
}

}  // namespace flashlab::ptx
