// How the Hopper forward kernel cuts problems, and which calls it leaves to sm80: on any machine.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "api/backend.h"
#include "cuda/launch/sm90_forward.h"
#include "cuda_described_plan.h"
#include "tile/slab.h"

namespace flashlab::cuda {
namespace {

using testing::PlannedSizes;

constexpr int kSharedLimit = 232448;  // bytes a block may have

TEST(Sm90ForwardTiling, FitsEveryHeadDim) {
  for (int dim = 8; dim <= 256; dim += 8) {
    for (const int dim_v : {8, dim, 256}) {
      for (const bool bounded : {false, true}) {
        for (const std::int64_t seqlen_k : {1, 1024, 65536}) {
          const auto t = choose_sm90_forward_tiling({dim, dim_v, seqlen_k, bounded}, kSharedLimit);
          EXPECT_LE(sm90_forward_shared_bytes(t, dim, dim_v), kSharedLimit) << dim << " " << dim_v;
          EXPECT_GE(t.stages_k, 2);
          EXPECT_GE(t.stages_v, 2);
          EXPECT_EQ(t.consumers, dim_v <= 128 ? 3 : 2);
          EXPECT_FALSE(t.turns && bounded);  // turns need equally many steps
        }
      }
    }
  }
}

std::shared_ptr<internal::PlanState> plan(const Problem& problem, const char* architecture) {
  return testing::plan_on(
      [](const auto& context, const auto& normalised, const auto& geometry) {
        return internal::plan_with_first(
            context, internal::backend_of(DeviceKind::kCuda).candidates(&context.gpu()->info()),
            normalised, geometry);
      },
      architecture, problem);
}

Problem usual(DType dtype, Options options = {}) {
  return testing::described_problem(dtype, Pass::kForward,
                                    {.batch = 8, .seqlen_q = 2048, .seqlen_k = 2048, .heads = 16},
                                    std::move(options));
}

std::string reasons(const internal::PlanState& plan) {
  std::string text;
  for (const std::string& reason : plan.reasons) text += reason + "\n";
  return text;
}

TEST(Sm90Forward, ServesWhatItWasMadeFor) {
  for (const DType dtype : {DType::kBf16, DType::kFp16}) {
    const auto made = plan(usual(dtype), "sm_90a");
    ASSERT_TRUE(made);
    EXPECT_EQ(made->implementation, "sm90");
    EXPECT_EQ(made->steps.size(), 1u);
    const auto causal = plan(usual(dtype, {.causal = Causal::kTopLeft}), "sm_90a");
    ASSERT_TRUE(causal);
    EXPECT_EQ(causal->steps.size(), 2u) << "a memset of the counter and the kernel";
    EXPECT_EQ(plan(usual(dtype), "sm_80")->implementation, "sm80");
    EXPECT_EQ(plan(usual(dtype), "sm_100a")->implementation, "sm80");
  }
}

TEST(Sm90Forward, LeavesTheRestToSm80AndSaysWhy) {
  using ::testing::HasSubstr;
  const auto expect_sm80 = [](const Problem& problem, const char* why) {
    const auto made = plan(problem, "sm_90a");
    ASSERT_TRUE(made) << why;
    EXPECT_EQ(made->implementation, "sm80") << why;
    EXPECT_THAT(reasons(*made), HasSubstr(why));
  };
  expect_sm80(usual(DType::kFp32), "lacks fp32");
  Problem problem = usual(DType::kBf16);
  problem.mask = contiguous_spec(DType::kBool, {1, 1, 2048, 2048}, problem.q.device);
  expect_sm80(problem, "mask");
  expect_sm80(usual(DType::kBf16, {.scale = -1.0}), "scale");
  problem = testing::described_problem(
      DType::kBf16, Pass::kForward,
      {.batch = 8, .seqlen_q = 2048, .seqlen_k = 2048, .heads = 16, .dim = 20}, {});
  expect_sm80(problem, "head_dim");
  problem = usual(DType::kBf16);
  problem.k.alignment_bytes = 8;
  expect_sm80(problem, "k aligned to 8 bytes");
  PlannedSizes few{.batch = 1, .seqlen_q = 16, .seqlen_k = 16384, .heads = 8};
  expect_sm80(testing::described_problem(DType::kBf16, Pass::kForward, few, {}), "queries");
  few.seqlen_q = 512;
  expect_sm80(testing::described_problem(DType::kBf16, Pass::kForward, few, {}), "query tiles");
  // Asked for by name it serves them all the same.
  Options named;
  named.implementation = "sm90";
  const auto made =
      testing::plan_on(plan_sm90_forward, "sm_90a",
                       testing::described_problem(DType::kBf16, Pass::kForward, few, named));
  EXPECT_TRUE(made);
}

}  // namespace

namespace {

// The copy engine puts the byte at a linear place where bits 4 to 6 are changed by bits 7 to 9, and
// products read the same way: what a tile calls an offset must be that.
template <class Tile>
void expect_hardware_swizzle() {
  std::set<int> places;
  for (int slab = 0; slab < Tile::kSlabs; ++slab) {
    for (int row = 0; row < Tile::kRows; ++row) {
      for (int chunk = 0; chunk < 8; ++chunk) {
        const int linear = device::kChunkBytes * chunk + device::kSlabRowBytes * row;
        const int at = slab * Tile::kSlabBytes + (linear ^ (linear >> 7 & 7) << 4);
        EXPECT_EQ(Tile::offset(row, 8 * slab + chunk), at);
        EXPECT_TRUE(places.insert(at).second);
        // A k16 step of a K-major operand starts two chunks further.
        const int start = Tile::step_offset(4 * slab + chunk / 2);
        const int inside = start % Tile::kSlabBytes + device::kSlabRowBytes * row +
                           chunk % 2 * device::kChunkBytes;
        EXPECT_EQ(start / Tile::kSlabBytes * Tile::kSlabBytes + (inside ^ (inside >> 7 & 7) << 4),
                  at);
      }
    }
  }
  EXPECT_EQ(places.size() * device::kChunkBytes, static_cast<std::size_t>(Tile::kBytes));
}

TEST(SlabTile, OffsetsAreTheHardwaresSwizzle) {
  expect_hardware_swizzle<device::SlabTile<64, 64>>();
  expect_hardware_swizzle<device::SlabTile<128, 40>>();
  expect_hardware_swizzle<device::SlabTile<64, 256>>();
  using Tile = device::SlabTile<128, 128>;
  for (int step = 0; step < 8; ++step) {
    for (int slab = 0; slab < 2; ++slab) {
      EXPECT_EQ(Tile::step_offset_rows(step, slab), Tile::offset(16 * step, 8 * slab));
    }
  }
  EXPECT_EQ(device::slab_descriptor(0x12400), 0x4000004000011240ull);
}

}  // namespace
}  // namespace flashlab::cuda
