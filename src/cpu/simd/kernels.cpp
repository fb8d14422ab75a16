// Which table serves an instruction set and a type.

#include "cpu/simd/kernels.h"

namespace flashlab::internal::simd {

const KernelTable& kernels_for(CpuIsa isa, DType dtype) {
#if defined(__x86_64__)
  const bool bf16 = dtype == DType::kBf16;
  switch (isa) {
    case CpuIsa::kAvx2:
      return avx2::kKernels;
    case CpuIsa::kAvx512:
      return avx512::kKernels;
    case CpuIsa::kAvx512Bf16:
      return bf16 ? avx512_bf16::kKernels : avx512::kKernels;
    // HW: processors with AMX issue vdpbf16ps at half the rate per value of their fp32 FMA (Xeon
    // family 6 model 207, 16 threads, 2026-11-21: 1796 against 3046 GFLOP/s), so what AMX does not
    // serve is widened to fp32: backward at d 64, S 4096 ran 2422 instead of 1432 GFLOP/s.
    case CpuIsa::kAmx:
      return avx512::kKernels;
    default:
      return scalar::kKernels;
  }
#elif defined(__aarch64__)
  (void)dtype;
  return isa == CpuIsa::kNeon ? neon::kKernels : scalar::kKernels;
#else
  (void)isa;
  (void)dtype;
  return scalar::kKernels;
#endif
}

const KernelTable& forward_kernels_for(CpuIsa isa, DType dtype) {
#if defined(__x86_64__)
  if (isa == CpuIsa::kAmx && dtype == DType::kBf16) return amx::kKernels;
#endif
  return kernels_for(isa, dtype);
}

}  // namespace flashlab::internal::simd
