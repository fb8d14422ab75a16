// The scalar kernel table with a deliberate fault in backward. Linked into a test before the
// library, it takes the place of the library's own table.

#define HWY_COMPILE_ONLY_SCALAR
#define FLASHLAB_SIMD_NAMESPACE scalar

#include "cpu/simd/backward-inl.h"

namespace flashlab::testing {
extern const int kCompiledMutation;
const int kCompiledMutation = static_cast<int>(internal::simd::kMutation);
}  // namespace flashlab::testing

namespace flashlab::internal::simd::scalar {

const KernelTable kKernels = {
    .name = "scalar",
    .isa = CpuIsa::kScalar,
    .depth_per = MultiplyFp32::kDepthPer,
    .lanes = kLanes,
    .strip_rows = kStripRows,
    .panel = kPanel,
    .pack = {},
    .forward = {},
    .backward = &kBackwardKernels<MultiplyFp32>,
    .roof = nullptr,
};

}  // namespace flashlab::internal::simd::scalar
