// fp32 kernels for AVX2 with FMA and F16C (Haswell, Zen and later); 6 x 16 register tile.

#define FLASHLAB_SIMD_NAMESPACE avx2

#include "cpu/simd/forward-inl.h"
#include "cpu/simd/roof-inl.h"
#if __has_include("cpu/simd/backward-inl.h")
#include "cpu/simd/backward-inl.h"
#endif

static_assert(HWY_TARGET == HWY_AVX2, "the compile flags of this file name another target");

namespace flashlab::internal::simd::avx2 {

const KernelTable kKernels = {
    .name = "avx2",
    .isa = CpuIsa::kAvx2,
    .depth_per = MultiplyFp32::kDepthPer,
    .lanes = kLanes,
    .strip_rows = kStripRows,
    .panel = kPanel,
    .pack = pack_kernels<MultiplyFp32>(),
    .forward = forward_kernels<MultiplyFp32>(),
    .backward = &kBackwardKernels<MultiplyFp32>,
    .roof = &roof<MultiplyFp32>,
};

}  // namespace flashlab::internal::simd::avx2
