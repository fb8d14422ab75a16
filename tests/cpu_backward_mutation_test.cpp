// Proves that the gradient tests can fail: with a fault compiled into the scalar kernels
// (cpu_backward_mutant.cpp, numbered as in cpu/simd/mutation.h) the oracle must object; without one
// it must not.

#include <gtest/gtest.h>

#include "cpu_backward_trial.h"

namespace flashlab::testing {

extern const int kCompiledMutation;  // of the kernel table this executable was linked with

namespace {

TEST(CpuBackwardMutation, IsCaught) {
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
  if (kCompiledMutation == 0) {
    EXPECT_EQ(verdict, "");
  } else {
    EXPECT_NE(verdict, "") << "nobody noticed mutation " << kCompiledMutation;
  }
}

}  // namespace
}  // namespace flashlab::testing
