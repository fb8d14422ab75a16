#pragma once

namespace flashlab::ptx {

inline void wgmma_fence() {
  emulated::warpgroup_fence();
}
inline void wgmma_commit() {
  emulated::warpgroup_commit();
}
template <int kPending>
void wgmma_wait() {
  emulated::warpgroup_wait(kPending);
}
/// Registers are memory here, which calls may change.
inline void pin(float&) {}
inline void pin(unsigned&) {}
inline void pin(int&) {}

template <int kCount>
void wgmma_shared_bf16(float (&d)[kCount], unsigned long long a, unsigned long long b,
                       bool accumulate) {
  emulated::multiply_warpgroup({emulated::Number::kBf16, 2 * kCount, d, nullptr, a, b,
                                /*a_by_rows=*/false, /*b_by_rows=*/false, accumulate});
}
template <int kCount>
void wgmma_shared_fp16(float (&d)[kCount], unsigned long long a, unsigned long long b,
                       bool accumulate) {
  emulated::multiply_warpgroup({emulated::Number::kFp16, 2 * kCount, d, nullptr, a, b,
                                /*a_by_rows=*/false, /*b_by_rows=*/false, accumulate});
}
template <int kCount>
void wgmma_shared_rows_bf16(float (&d)[kCount], unsigned long long a, unsigned long long b,
                            bool accumulate) {
  emulated::multiply_warpgroup({emulated::Number::kBf16, 2 * kCount, d, nullptr, a, b,
                                /*a_by_rows=*/true, /*b_by_rows=*/true, accumulate});
}
template <int kCount>
void wgmma_shared_rows_fp16(float (&d)[kCount], unsigned long long a, unsigned long long b,
                            bool accumulate) {
  emulated::multiply_warpgroup({emulated::Number::kFp16, 2 * kCount, d, nullptr, a, b,
                                /*a_by_rows=*/true, /*b_by_rows=*/true, accumulate});
}
template <int kCount>
void wgmma_registers_bf16(float (&d)[kCount], const unsigned (&a)[4], unsigned long long b) {
  emulated::multiply_warpgroup({emulated::Number::kBf16, 2 * kCount, d, a, 0, b,
                                /*a_by_rows=*/false, /*b_by_rows=*/true, /*accumulate=*/true});
}
template <int kCount>
void wgmma_registers_fp16(float (&d)[kCount], const unsigned (&a)[4], unsigned long long b) {
  emulated::multiply_warpgroup({emulated::Number::kFp16, 2 * kCount, d, a, 0, b,
                                /*a_by_rows=*/false, /*b_by_rows=*/true, /*accumulate=*/true});
}

}  // namespace flashlab::ptx
