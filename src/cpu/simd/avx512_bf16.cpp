// bf16 kernels for AVX512_BF16 (Cooper Lake, Zen 4 and later): vdpbf16ps, fp32 sums.

#define FLASHLAB_SIMD_BF16
#define FLASHLAB_SIMD_NAMESPACE avx512_bf16

#include "cpu/simd/forward-inl.h"
#include "cpu/simd/roof-inl.h"
#if __has_include("cpu/simd/backward-inl.h")
#include "cpu/simd/backward-inl.h"
#endif

static_assert(HWY_TARGET == HWY_AVX3, "the compile flags of this file name another target");

namespace flashlab::internal::simd::avx512_bf16 {

const KernelTable kKernels = {
    .name = "avx512_bf16",
    .isa = CpuIsa::kAvx512Bf16,
    .depth_per = MultiplyBf16::kDepthPer,
    .lanes = kLanes,
    .strip_rows = kStripRows,
    .panel = kPanel,
    .pack = pack_kernels<MultiplyBf16>(),
    .forward = forward_kernels<MultiplyBf16>(),
    .backward = &kBackwardKernels<MultiplyBf16>,
    .roof = &roof<MultiplyBf16>,
};

}  // namespace flashlab::internal::simd::avx512_bf16
