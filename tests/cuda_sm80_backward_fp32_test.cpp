// The fp32 backward's tiling: every head dim gets one that fits, on small and large devices;
// and its plans take a workspace of O(S).

#include <gtest/gtest.h>

#include "cuda/kernels/sm80/backward_fp32/plan.h"
#include "cuda_described_plan.h"

namespace flashlab::cuda {
namespace {

// Shared memory of one block: sm_86 and sm_89, sm_80, sm_90.
constexpr int kLimits[] = {101376, 166912, 232448};

TEST(Sm80BackwardFp32Tiling, FitsEveryHeadDimOnEveryDevice) {
  for (const int limit : kLimits) {
    for (int terms = 1; terms <= 2; ++terms) {
      for (int dim = 1; dim <= 256; ++dim) {
        for (const int dim_v : {1, dim, 256}) {
          const BackwardFp32Tiling t = choose_backward_fp32_tiling(dim, dim_v, terms, limit);
          EXPECT_LE(backward_fp32_shared_bytes(t, dim, dim_v, terms), limit)
              << "head dims " << dim << " and " << dim_v << ", " << terms << " terms";
          EXPECT_EQ(64 % t.rows, 0);
          EXPECT_TRUE(64 % t.keys() == 0 || t.keys() % 64 == 0);
          EXPECT_EQ(t.parts, dim > 128 || dim_v > 128 ? 2 : 1);
        }
      }
    }
  }
}

TEST(Sm80BackwardFp32Tiling, TwoBlocksShareAMultiprocessorUpToHeadDim128) {
  for (const int dim : {16, 32, 64, 96, 128}) {
    const BackwardFp32Tiling t = choose_backward_fp32_tiling(dim, dim, 2, 232448);
    EXPECT_EQ(t.warps, 4);
    EXPECT_LE(2 * (backward_fp32_shared_bytes(t, dim, dim, 2) + 1024), 232448 + 1024) << dim;
  }
}

TEST(Sm80BackwardFp32Tiling, SharedMemoryIsWhatTheKernelLaysOut) {
  // K and V 2 x 64 rows of 72 halves in two terms, two steps of 32 queries with their scalars, dS,
  // what the block keeps about its keys.
  const BackwardFp32Tiling t{.warps = 4, .rows = 32, .stages = 2};
  const int keys = 2 * 2 * 64 * 72 * 2, step = 2 * 2 * 32 * 72 * 2 + 2 * 32 * 4 + 32;
  EXPECT_EQ(backward_fp32_shared_bytes(t, 64, 64, 2), keys + 2 * step + 2 * 64 * 40 * 2 + 80);
}

TEST(Sm80BackwardFp32Tiling, ThreeTermsFitUpToHeadDim192EverywhereAndTo256OnDataCentreGpus) {
  for (const int limit : kLimits) {
    for (int dim = 8; dim <= (limit == kLimits[0] ? 192 : 256); ++dim) {
      const BackwardFp32Tiling t = choose_backward_fp32_tiling(dim, dim, 3, limit);
      EXPECT_LE(backward_fp32_shared_bytes(t, dim, dim, 3), limit) << dim;
      EXPECT_EQ(64 % t.keys(), 0);
      EXPECT_GE(t.rows / t.groups, 16);
      // A block of it lies within one of the main kernel.
      EXPECT_EQ(choose_backward_fp32_tiling(dim, dim, 2, limit).keys() % t.keys(), 0) << dim;
    }
  }
}

// The guard sends each block of keys to one of three kernels: only a fixed order of additions to dQ
// puts them behind each other.
TEST(Sm80BackwardFp32Plan, StepsNameWhatTheyNeed) {
  const auto needs = [](bool deterministic) {
    const auto plan = testing::plan_on(
        plan_sm80_backward_fp32, "sm_90a",
        testing::described_problem(DType::kFp32, Pass::kBackward, {1, 128, 128, 1, 64},
                                   {.deterministic = deterministic}));
    return plan == nullptr ? std::vector<std::vector<int>>() : testing::needs(*plan);
  };
  using Needs = std::vector<std::vector<int>>;
  // split, rows, guard, three kernels, result
  EXPECT_EQ(needs(false), (Needs{{}, {0}, {1}, {2}, {2}, {2}, {3, 4, 5}}));
  // zeros of the turns first
  EXPECT_EQ(needs(true), (Needs{{}, {}, {1}, {2}, {3, 0}, {4}, {5}, {4, 5, 6}}));
}

// Twice the length, at most twice the workspace, and less than six tensors in fp32: Q, K, V and dO
// in two terms of 16 bits, the sums of dQ, scalars per row.
TEST(Sm80BackwardFp32Plan, WorkspaceGrowsWithTheLengthAndNoFaster) {
  const auto workspace = [](const char* gpu, std::int64_t seqlen, bool deterministic) {
    const Problem problem =
        testing::described_problem(DType::kFp32, Pass::kBackward, {1, seqlen, seqlen, 1, 128},
                                   {.causal = Causal::kTopLeft, .deterministic = deterministic});
    const auto plan = testing::plan_on(plan_sm80_backward_fp32, gpu, problem);
    EXPECT_NE(plan, nullptr) << gpu;
    return plan == nullptr ? 0 : plan->workspace_bytes;
  };
  for (const char* gpu : {"sm_80", "sm_89", "sm_90a", "sm_120a"}) {
    for (const bool deterministic : {false, true}) {
      const std::size_t once = workspace(gpu, 32768, deterministic);
      const std::size_t twice = workspace(gpu, 65536, deterministic);
      EXPECT_GT(once, 0u);
      EXPECT_LE(twice, 2 * once) << gpu << (deterministic ? " deterministic" : "");
      EXPECT_LE(twice, 6 * 65536u * 128u * sizeof(float)) << gpu;
    }
  }
}

}  // namespace
}  // namespace flashlab::cuda
