// How the portable forward kernel cuts problems: pure functions of sizes and of what a device
// grants; and what workspace its plans ask for.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "api/problem.h"
#include "cuda/kernels/sm80/forward/plan.h"
#include "cuda/launch/config.h"
#include "cuda/launch/gpu_plan.h"
#include "cuda_described_plan.h"

namespace flashlab::cuda {
namespace {

constexpr int kHopper = 232448, kAmpere = 166912, kAda = 101376;  // bytes a block may have

TEST(ForwardTiling, FitsEveryHeadDimOnEveryDevice) {
  for (const int limit : {kHopper, kAmpere, kAda}) {
    for (const bool few_rows : {false, true}) {
      for (int dim = 1; dim <= 256; ++dim) {
        for (const int dim_v : {1, dim, 256}) {
          for (int needs = 0; needs < 64; ++needs) {
            const auto bit = [&](int i) { return (needs >> i & 1) != 0; };
            const ForwardTiling t =
                choose_forward_tiling({.few_rows = few_rows,
                                       .head_dim = dim,
                                       .head_dim_v = dim_v,
                                       .transformed = bit(0),
                                       .bounded = bit(1),
                                       .by_element = bit(2),
                                       .window = bit(3),
                                       .features = bit(0) ? 0 : bit(4) + 2 * bit(5)},
                                      limit);
            EXPECT_LE(shared_bytes(t, dim, dim_v), limit)
                << dim << " " << dim_v << " few rows " << few_rows;
            EXPECT_EQ(t.tile_k % t.piece_k, 0);
            EXPECT_GE(t.stages, 2);
            EXPECT_LE(t.warps, 8);
          }
        }
      }
    }
  }
}

TEST(ForwardTiling, FewRowsGetSmallTiles) {
  EXPECT_EQ(choose_forward_tiling({true, 128, 128, false}, kHopper).tile_q(), 64);
  EXPECT_EQ(choose_forward_tiling({false, 128, 128, false}, kHopper).tile_q(), 128);
}

TEST(ForwardTiling, MaskedTilesFollowBoundsAndWhatTheDeviceHolds) {
  const auto masked = [](int dim, bool bounded, int limit) {
    return choose_forward_tiling({false, dim, dim, true, bounded}, limit);
  };
  EXPECT_EQ(masked(64, false, kHopper).warp_rows, 32);
  EXPECT_EQ(masked(64, true, kHopper).warp_rows, 16);
  EXPECT_EQ(masked(128, false, kHopper).warp_rows, 32);
  EXPECT_EQ(masked(128, false, kAda).warp_rows, 16);  // two blocks of 32 rows do not fit
  EXPECT_EQ(masked(256, true, kHopper).tile_k, 32);
  EXPECT_EQ(masked(256, true, kAda).tile_k, 16);
  EXPECT_EQ(choose_forward_tiling({true, 256, 256, true, false}, kHopper).tile_k, 16);
  for (const int dim : {8, 64, 128, 256}) EXPECT_FALSE(masked(dim, false, kHopper).steady_loop);
}

// Softcap, ALiBi, dropout and windows keep the loop for tiles without an edge, on smaller pieces.
TEST(ForwardTiling, FeaturesKeepTheSteadyLoop) {
  for (const int dim : {64, 128, 256}) {
    const ForwardNeeds plain{.head_dim = dim, .head_dim_v = dim, .bounded = true};
    const ForwardTiling base = choose_forward_tiling(plain, kHopper);
    for (const int features : {0, 1, 3}) {
      ForwardNeeds needs = plain;
      needs.window = true;
      needs.features = features;
      const ForwardTiling t = choose_forward_tiling(needs, kHopper);
      EXPECT_TRUE(t.steady_loop) << dim << " " << features;
      EXPECT_EQ(t.tile_q(), base.tile_q());
      EXPECT_LE(t.piece_k, base.piece_k);
    }
  }
}

TEST(ForwardTiling, CopiesByElementTakeTheRegistersOfQ) {
  EXPECT_EQ(choose_forward_tiling({false, 127, 127, false, false, true}, kHopper).query_steps, 0);
  EXPECT_GT(choose_forward_tiling({false, 127, 127, false, false, false}, kHopper).query_steps, 0);
}

TEST(ForwardTiling, ResidentBlocksAreWhatSharedMemoryHolds) {
  ForwardTiling t;
  t.min_blocks = 3;
  EXPECT_EQ(forward_resident_blocks(t, 10'000, kHopper), 3);
  EXPECT_EQ(forward_resident_blocks(t, 100'000, kHopper), 2);
  EXPECT_EQ(forward_resident_blocks(t, 101'376, kAda), 1);
  EXPECT_EQ(forward_resident_blocks(t, 50'176, kAda), 2);
}

// The Config of a forward with a mask of these elements, a row of which stands for all rows of q.
std::string config_with_mask(DType dtype, std::int64_t keys_of_mask, std::int64_t row_stride) {
  const Device device{DeviceKind::kCuda, 0};
  Problem problem;
  problem.q = contiguous_spec(DType::kBf16, {1, 8, 2, 64}, device);
  problem.k = contiguous_spec(DType::kBf16, {1, 16, 2, 64}, device);
  problem.v = problem.k;
  problem.o = problem.q;
  problem.mask = contiguous_spec(dtype, {1, 1, 8, keys_of_mask}, device);
  problem.mask->strides[2] = row_stride;
  Problem normalised;
  const auto geometry = internal::validate(problem, &normalised);
  EXPECT_TRUE(geometry.ok()) << geometry.status().message();
  ConfigPrinter config;
  if (geometry.ok()) print_call(config, normalised, *geometry);
  return config.text();
}

TEST(MaskConfig, DenseUnlessOneElementStandsForAllKeys) {
  EXPECT_THAT(config_with_mask(DType::kBool, 16, 16), ::testing::HasSubstr("kMaskDense = true"));
  EXPECT_THAT(config_with_mask(DType::kBool, 1, 1), ::testing::HasSubstr("kMaskDense = false"));
}

TEST(MaskConfig, PairsWhereEveryRowIsAlignedToTwoElements) {
  const std::string pairs = "kMaskPairs = true", single = "kMaskPairs = false";
  EXPECT_THAT(config_with_mask(DType::kBool, 16, 18), ::testing::HasSubstr(pairs));
  EXPECT_THAT(config_with_mask(DType::kBool, 16, 17), ::testing::HasSubstr(single));
  EXPECT_THAT(config_with_mask(DType::kFp32, 16, 18), ::testing::HasSubstr(pairs));
  EXPECT_THAT(config_with_mask(DType::kFp32, 16, 17), ::testing::HasSubstr(single));
  EXPECT_THAT(config_with_mask(DType::kBool, 1, 1), ::testing::HasSubstr(single));
}

TEST(KeySplits, FillTheDeviceAndNoMore) {
  EXPECT_EQ(choose_key_splits(1000, 264, 64'000, 64), 1);
  EXPECT_EQ(choose_key_splits(132, 264, 64'000, 64), 2);
  EXPECT_EQ(choose_key_splits(133, 264, 64'000, 64), 1);  // half of the device has work
  EXPECT_EQ(choose_key_splits(64, 396, 4096, 16), 6);
  EXPECT_EQ(choose_key_splits(1, 264, 640'000, 64), 256);
  EXPECT_EQ(choose_key_splits(1, 264, 512, 64), 2);  // at least four tiles of keys each
  EXPECT_EQ(choose_key_splits(1, 264, 511, 64), 1);
  EXPECT_EQ(choose_key_splits(8, 264, 0, 64), 1);
}

constexpr const char* kGpus[] = {"sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"};
constexpr std::int64_t kLong = 65536;

TEST(Sm80ForwardPlan, ALongHeadTakesNoWorkspace) {
  for (const char* gpu : kGpus) {
    for (const DType dtype : {DType::kBf16, DType::kFp16}) {
      for (const Causal causal : {Causal::kNone, Causal::kTopLeft}) {
        const auto plan = testing::plan_on(
            plan_sm80_forward, gpu,
            testing::described_problem(dtype, Pass::kForward, {1, kLong, kLong, 1, 128},
                                       {.causal = causal}));
        ASSERT_NE(plan, nullptr) << gpu;
        EXPECT_EQ(plan->workspace_bytes, 0u) << gpu;
        EXPECT_EQ(plan->steps.size(), 1u) << gpu;
      }
    }
  }
}

// Split keys take a partial O and LSE per part: s B Hq Sq (Dv + 1) floats, each region rounded up.
TEST(Sm80ForwardPlan, OnlySplitKeysTakeWorkspace) {
  int split = 0;
  for (const char* gpu : kGpus) {
    for (const std::int64_t seqlen_q : {std::int64_t{1}, std::int64_t{128}, kLong}) {
      for (const std::int64_t heads : {1, 8, 64}) {
        const auto plan =
            testing::plan_on(plan_sm80_forward, gpu,
                             testing::described_problem(DType::kBf16, Pass::kForward,
                                                        {1, seqlen_q, kLong, heads, 128},
                                                        {.causal = Causal::kBottomRight}));
        ASSERT_NE(plan, nullptr) << gpu;
        const int parts = dynamic_cast<const GpuPlan&>(*plan).parts;
        const std::size_t floats = static_cast<std::size_t>(parts * heads * seqlen_q) * (128 + 1);
        if (parts == 1) {
          EXPECT_EQ(plan->workspace_bytes, 0u);
        } else {
          EXPECT_LE(plan->workspace_bytes, floats * 4 + 1024);
          ++split;
        }
      }
    }
  }
  EXPECT_GT(split, 0) << "one query against 65536 keys is split everywhere";
}

}  // namespace
}  // namespace flashlab::cuda
