// Proves that the gradient tests can fail: with a fault in the scalar kernels, which take the place
// of the library's here, the oracle must object; without one it must not.

#include <gtest/gtest.h>

#include "cpu/simd/mutation.h"
#include "cpu_backward_trial.h"

namespace flashlab::internal::simd {
Mutation kMutation = Mutation::kNone;
}  // namespace flashlab::internal::simd

namespace flashlab::testing {
namespace {

using internal::simd::kMutation;
using internal::simd::Mutation;

class CpuBackwardMutation : public ::testing::TestWithParam<Mutation> {};

TEST_P(CpuBackwardMutation, IsCaught) {
  kMutation = GetParam();
  Ask ask;
  ask.heads_q = 2;
  ask.heads_k = 1;
  ask.seqlen_q = 230;
  ask.seqlen_k = 420;
  ask.causal = Causal::kBottomRight;
  ask.mask = MaskKind::kBool;
  ask.lse_gradient = true;
  Trial trial(ask);
  const Context context = make_context(CpuIsa::kScalar);
  const Status status = trial.run(context);
  ASSERT_TRUE(status.ok()) << status.message();
  const std::string verdict = trial.judge();
  if (kMutation == Mutation::kNone) {
    EXPECT_EQ(verdict, "");
  } else {
    EXPECT_NE(verdict, "") << "nobody noticed mutation " << static_cast<int>(kMutation);
  }
}

INSTANTIATE_TEST_SUITE_P(Faults, CpuBackwardMutation,
                         ::testing::Values(Mutation::kNone, Mutation::kWrongScale,
                                           Mutation::kShiftedMask, Mutation::kIgnoredMask,
                                           Mutation::kMissingDelta, Mutation::kMissingDlse,
                                           Mutation::kUnscaledDq, Mutation::kUnscaledDk,
                                           Mutation::kDroppedBlock, Mutation::kSingleHeadDkv),
                         [](const auto& info) {
                           return std::to_string(static_cast<int>(info.param));
                         });

}  // namespace
}  // namespace flashlab::testing
