// The 16-bit backward's tiling: every head dim gets one that fits, on small and large devices;
// and its plans take a workspace of O(S).

#include <gtest/gtest.h>

#include "cuda/kernels/sm80/backward/plan.h"
#include "cuda_described_plan.h"

namespace flashlab::cuda {
namespace {

// Shared memory of one block: sm_86, sm_89 and sm_120; sm_80; sm_90.
constexpr int kSmall = 101376, kAmpere = 166912, kHopper = 232448;
constexpr int kReserved = 1024;  // per block, by the system

TEST(Sm80BackwardTiling, FitsEveryHeadDimOnEveryDevice) {
  for (const int limit : {kSmall, kAmpere, kHopper}) {
    for (const bool mask : {false, true}) {
      for (int dim = 1; dim <= 256; ++dim) {
        for (const int dim_v : {1, dim, 256}) {
          const auto t = choose_backward_tiling(dim, dim_v, mask, mask, limit);
          ASSERT_TRUE(t.has_value()) << "head dims " << dim << " and " << dim_v << " in " << limit;
          EXPECT_LE(t->min_blocks * (shared_bytes(*t, dim, dim_v, 32) + kReserved),
                    limit + kReserved);
        }
      }
    }
  }
}

TEST(Sm80BackwardTiling, LargeDevicesGetTheFastOnes) {
  EXPECT_EQ(*choose_backward_tiling(64, 64, false, false, kHopper),
            (BackwardTiling{.tile_q = 64,
                            .tile_k = 128,
                            .warps_q = 1,
                            .warps_k = 4,
                            .stages = 2,
                            .one_barrier = true,
                            .min_blocks = 2}));
  EXPECT_TRUE(choose_backward_tiling(128, 128, false, false, kHopper)->one_barrier);
  EXPECT_EQ(choose_backward_tiling(256, 256, false, false, kHopper)->tile_q, 64);
  EXPECT_EQ(choose_backward_tiling(64, 64, false, false, kAmpere)->min_blocks, 2);
}

TEST(Sm80BackwardTiling, SharedMemoryIsWhatTheKernelLaysOut) {
  // K, V; two stages of Q, dO; dS^T of two buffers; lse2 and delta; barriers. Rows of 128 bytes, no
  // padding.
  BackwardTiling t{};
  EXPECT_EQ(shared_bytes(t, 64, 64, 32),
            2 * 128 * 128 + 2 * 2 * 64 * 128 + 2 * 128 * 128 + 2 * 2 * 64 * 4 + 128);
  t.one_barrier = false;  // a block barrier, one buffer
  EXPECT_EQ(shared_bytes(t, 64, 64, 32),
            2 * 128 * 128 + 2 * 2 * 64 * 128 + 128 * 128 + 2 * 2 * 64 * 4);
  // Head dim 40 takes 64 columns; 72 takes 96: 12 chunks, padded to 13.
  EXPECT_EQ(shared_bytes(t, 40, 64, 32), shared_bytes(t, 64, 64, 32));
  EXPECT_EQ(shared_bytes(t, 72, 64, 32) - shared_bytes(t, 64, 64, 32),
            (128 + 2 * 64) * (13 * 16 - 128));
}

// Twice the length, at most twice the workspace, and less than two dQ in fp32.
TEST(Sm80BackwardPlan, WorkspaceGrowsWithTheLengthAndNoFaster) {
  const auto workspace = [](const char* gpu, DType dtype, std::int64_t seqlen, bool deterministic) {
    const Problem problem =
        testing::described_problem(dtype, Pass::kBackward, {1, seqlen, seqlen, 1, 128},
                                   {.causal = Causal::kTopLeft, .deterministic = deterministic});
    const auto plan = testing::plan_on(plan_sm80_backward, gpu, problem);
    EXPECT_NE(plan, nullptr) << gpu;
    return plan == nullptr ? 0 : plan->workspace_bytes;
  };
  for (const char* gpu : {"sm_80", "sm_89", "sm_90a", "sm_120a"}) {
    for (const DType dtype : {DType::kBf16, DType::kFp16}) {
      for (const bool deterministic : {false, true}) {
        const std::size_t once = workspace(gpu, dtype, 32768, deterministic);
        const std::size_t twice = workspace(gpu, dtype, 65536, deterministic);
        EXPECT_GT(once, 0u);
        EXPECT_LE(twice, 2 * once) << gpu << (deterministic ? " deterministic" : "");
        EXPECT_LE(twice, 2 * 65536u * 128u * sizeof(float)) << gpu;
      }
    }
  }
}

}  // namespace
}  // namespace flashlab::cuda
