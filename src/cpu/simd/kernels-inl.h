// The table of one instruction set: fp32 kernels, or bf16 kernels where FLASHLAB_SIMD_BF16 says so.
// Compiled once per set (cmake/InstructionSets.cmake); AMX has a table of its own in amx.cpp.

#include "cpu/simd/backward-inl.h"
#include "cpu/simd/forward-inl.h"
#include "cpu/simd/roof-inl.h"

namespace flashlab::internal::simd {
namespace FLASHLAB_ISA {
namespace {

namespace isa_named {
constexpr CpuIsa scalar = CpuIsa::kScalar, neon = CpuIsa::kNeon, avx2 = CpuIsa::kAvx2,
                 avx512 = CpuIsa::kAvx512, avx512_bf16 = CpuIsa::kAvx512Bf16;
}

constexpr CpuIsa kIsa = isa_named::FLASHLAB_ISA;
static_assert(HWY_TARGET == (kIsa == CpuIsa::kScalar ? HWY_SCALAR
                             : kIsa == CpuIsa::kNeon ? HWY_NEON
                             : kIsa == CpuIsa::kAvx2 ? HWY_AVX2
                                                     : HWY_AVX3),
              "the compile flags of this file name another target");

#if defined(FLASHLAB_SIMD_BF16)
using Multiply = MultiplyBf16;
#else
using Multiply = MultiplyFp32;
#endif

}  // namespace

const KernelTable kKernels = {
    .name = FLASHLAB_ISA_NAME,
    .isa = kIsa,
    .depth_per = Multiply::kDepthPer,
    .lanes = kLanes,
    .strip_rows = kStripRows,
    .panel = kPanel,
    .pack = pack_kernels<Multiply>(),
    .forward = forward_kernels<Multiply>(),
    .backward = &kBackwardKernels<Multiply>,
    .roof = &roof<Multiply>,
};

}  // namespace FLASHLAB_ISA
}  // namespace flashlab::internal::simd
