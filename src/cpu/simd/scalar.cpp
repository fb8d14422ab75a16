// Kernels for any processor: one float at a time, no instruction set assumed.

#define HWY_COMPILE_ONLY_SCALAR
#define FLASHLAB_SIMD_NAMESPACE scalar

#include "cpu/simd/forward-inl.h"
#include "cpu/simd/roof-inl.h"
#if __has_include("cpu/simd/backward-inl.h")
#include "cpu/simd/backward-inl.h"
#endif

static_assert(HWY_TARGET == HWY_SCALAR, "the compile flags of this file name another target");

namespace flashlab::internal::simd::scalar {

const KernelTable kKernels = {
    .name = "scalar",
    .isa = CpuIsa::kScalar,
    .depth_per = MultiplyFp32::kDepthPer,
    .lanes = kLanes,
    .strip_rows = kStripRows,
    .panel = kPanel,
    .pack = pack_kernels<MultiplyFp32>(),
    .forward = forward_kernels<MultiplyFp32>(),
    .backward = &kBackwardKernels<MultiplyFp32>,
    .roof = &roof<MultiplyFp32>,
};

}  // namespace flashlab::internal::simd::scalar
