// The fp32 forward: every head dim gets a tiling that fits on small and large devices, and plans
// for described GPUs keep their promises about workspace and determinism.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cuda/kernels/sm80/forward_fp32/plan.h"
#include "cuda_described_plan.h"

namespace flashlab::cuda {
namespace {

// Shared memory of one block: sm_86, sm_89 and sm_120; sm_80; sm_90.
constexpr int kLimits[] = {101376, 166912, 232448};

TEST(Sm80ForwardFp32Tiling, FitsEveryHeadDimOnEveryDevice) {
  for (const int limit : kLimits) {
    for (int terms = 1; terms <= 2; ++terms) {
      for (int dim = 1; dim <= 256; ++dim) {
        for (const int dim_v : {1, dim, 256}) {
          for (const bool short_loop : {false, true}) {
            const auto t = choose_fp32_forward_tiling(4096, dim, dim_v, terms, short_loop, limit);
            EXPECT_LE(shared_bytes(t, dim, dim_v, terms), limit)
                << "head dims " << dim << " and " << dim_v << ", " << terms << " terms";
            EXPECT_EQ(64 % t.keys, 0);
          }
        }
      }
    }
  }
}

TEST(Sm80ForwardFp32Tiling, SharedMemoryIsWhatTheKernelLaysOut) {
  // K and V: 2 stages, 2 terms, 64 rows of 72 halves; a scale per query; what the block works on.
  const Fp32ForwardTiling t{.warps = 4, .keys = 64, .stages = 2};
  EXPECT_EQ(shared_bytes(t, 64, 64, 2), 2 * 2 * 2 * 64 * 72 * 2 + 16 + 64 * 4 + 64);
}

TEST(Sm80ForwardFp32Tiling, FewQueriesTakeFewWarps) {
  EXPECT_EQ(choose_fp32_forward_tiling(1, 64, 64, 2, true, 232448).tile_q(), 16);
  EXPECT_EQ(choose_fp32_forward_tiling(17, 64, 64, 2, true, 232448).tile_q(), 64);
  EXPECT_EQ(choose_fp32_forward_tiling(64, 64, 64, 2, true, 232448).tile_q(), 64);
}

Problem problem_of(std::int64_t batch, std::int64_t seqlen_q, std::int64_t seqlen_k,
                   std::int64_t heads, std::int64_t dim, Options options) {
  return testing::described_problem(DType::kFp32, Pass::kForward,
                                    {batch, seqlen_q, seqlen_k, heads, dim}, std::move(options));
}

std::shared_ptr<internal::PlanState> plan_on(const char* architecture, int multiprocessors,
                                             const Problem& problem) {
  return testing::plan_on(plan_sm80_forward_fp32, architecture, problem, multiprocessors);
}

std::size_t input_bytes(const Problem& p) {
  return static_cast<std::size_t>(p.q.bytes() + p.k.bytes() + p.v.bytes());
}

// One head of up to 2048 tokens may take more, under a mebibyte: its keys are split, and the parts
// of O come on top.
TEST(Sm80ForwardFp32Plan, WorkspaceStaysBelowOneAndAHalfTimesTheInputs) {
  for (const char* architecture : {"sm_80", "sm_89", "sm_90a", "sm_120a"}) {
    for (const std::int64_t batch : {1, 8}) {
      for (const std::int64_t seqlen : {1024, 2048, 4096, 65536}) {
        for (const std::int64_t dim : {16, 32, 64, 128, 256}) {
          const Problem problem =
              problem_of(batch, seqlen, seqlen, 1, dim, {.causal = Causal::kTopLeft});
          const auto plan = plan_on(architecture, 0, problem);
          ASSERT_NE(plan, nullptr);
          const std::size_t small = batch == 1 && seqlen <= 2048 ? std::size_t{1} << 20 : 0;
          EXPECT_LE(plan->workspace_bytes, std::max(input_bytes(problem) * 3 / 2, small))
              << architecture << " " << batch << " x " << seqlen << " x " << dim;
        }
      }
    }
  }
}

TEST(Sm80ForwardFp32Plan, FewBlocksSplitTheKeysAndManyDoNot) {
  const auto steps = [](std::int64_t batch, std::int64_t seqlen) {
    const auto plan = plan_on(
        "sm_90a", 132, problem_of(batch, seqlen, seqlen, 1, 64, {.causal = Causal::kTopLeft}));
    return plan == nullptr ? 0 : static_cast<int>(plan->steps.size());
  };
  EXPECT_EQ(steps(8, 1024), 4);   // split, forward, guarded, merge
  EXPECT_EQ(steps(8, 16384), 3);  // split, forward, guarded
}

TEST(Sm80ForwardFp32Plan, DeterministicPlansDoNotDependOnTheDevicesSize) {
  for (const std::int64_t seqlen : {256, 1024, 2048, 4096}) {
    const Problem problem =
        problem_of(4, seqlen, seqlen, 2, 64, {.causal = Causal::kTopLeft, .deterministic = true});
    const auto small = plan_on("sm_90a", 20, problem), large = plan_on("sm_90a", 200, problem);
    ASSERT_TRUE(small != nullptr && large != nullptr);
    ASSERT_EQ(small->steps.size(), large->steps.size()) << seqlen;
    for (std::size_t i = 0; i < small->steps.size(); ++i) {
      EXPECT_EQ(small->steps[i].configuration, large->steps[i].configuration);
    }
  }
}

TEST(Sm80ForwardFp32Plan, NoKeysNeedNoPrePass) {
  const auto plan = plan_on("sm_80", 0, problem_of(1, 5, 0, 2, 64, {}));
  ASSERT_NE(plan, nullptr);
  ASSERT_EQ(plan->steps.size(), 2u);
  EXPECT_EQ(plan->steps[0].name, "flash_fwd_fp32");
}

}  // namespace
}  // namespace flashlab::cuda
