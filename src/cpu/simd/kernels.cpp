// Which table serves an instruction set and a type.

#include "cpu/simd/kernels.h"

namespace flashlab::internal::simd {

// HW: processors with AMX issue vdpbf16ps at half the rate per value of their fp32 FMA (Xeon family
// 6 model 207, 16 threads, 2026-11-21: 1796 against 3046 GFLOP/s), so what AMX does not serve is
// widened to fp32: backward at d 64, S 4096 ran 2422 instead of 1432 GFLOP/s.
const KernelTable& kernels_for(CpuIsa isa, DType dtype) {
#if defined(__x86_64__)
  if (isa == CpuIsa::kAvx512Bf16 && dtype == DType::kBf16) return avx512_bf16::kKernels;
#endif
  (void)dtype;
  return FLASHLAB_ISA_TABLE(isa, kKernels);
}

const KernelTable& forward_kernels_for(CpuIsa isa, DType dtype) {
#if defined(__x86_64__)
  if (isa == CpuIsa::kAmx && dtype == DType::kBf16) return amx::kKernels;
#endif
  return kernels_for(isa, dtype);
}

}  // namespace flashlab::internal::simd
