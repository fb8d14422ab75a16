// Which calls Hopper's backward for head dims above 128 serves, and in which parts: anywhere.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "api/backend.h"
#include "cuda/kernels/sm90/backward_wide/plan.h"
#include "cuda/kernels/sm90/plan.h"
#include "cuda_described_plan.h"

namespace flashlab::cuda {
namespace {

constexpr int kSharedLimit = 232448;  // bytes a block may have
constexpr std::int64_t kTileBytes = 64 * 64 * 2;

Problem usual(std::int64_t dim, Options options = {}) {
  return testing::described_problem(
      DType::kBf16, Pass::kBackward,
      {.batch = 2, .seqlen_q = 300, .seqlen_k = 500, .heads = 4, .dim = dim}, std::move(options));
}

std::shared_ptr<internal::PlanState> planned(const Problem& problem) {
  return testing::plan_on(sm90_implementation().make_plan, "sm_90a", problem);
}

internal::Geometry geometry(std::int64_t heads_k, std::int64_t group, std::int64_t seqlen,
                            std::int64_t dim = 256, std::int64_t dim_v = 256) {
  internal::Geometry g;
  g.batch = 1;
  g.heads_q = heads_k * group;
  g.heads_k = heads_k;
  g.seqlen_q = g.seqlen_k = seqlen;
  g.head_dim = dim;
  g.head_dim_v = dim_v;
  return g;
}

TEST(Sm90BackwardWide, FitsSharedMemory) {
  for (const int dim : {136, 192, 256}) {
    for (const int dim_v : {8, 128, 192, 256}) {
      const WideTiling tiling = choose_wide_tiling(geometry(1, 1, 64, dim, dim_v));
      EXPECT_LE(shared_bytes(tiling), kSharedLimit);
      EXPECT_LE(grad_q_shared_bytes(tiling), kSharedLimit);
      EXPECT_GE(tiling.stages, 2);
    }
  }
}

TEST(Sm90BackwardWide, AddsInAFixedOrder) {
  Options options;
  options.implementation = "sm90";
  options.deterministic = true;
  const auto made = planned(usual(256, options));
  ASSERT_NE(made, nullptr);
  ASSERT_EQ(made->steps.size(), 3u);
  EXPECT_EQ(made->steps[0].name, "flash_bwd_sm80_prepare");
  EXPECT_EQ(made->steps[1].name, "flash_bwd_sm90_wide");
  EXPECT_EQ(made->steps[2].name, "flash_bwd_sm90_wide_grad_q");
  ASSERT_EQ(made->regions.size(), 4u);
  EXPECT_EQ(made->regions[1].bytes, 2u * 4 * 320 * 4);
  EXPECT_EQ(made->regions[2].bytes, 0u);
  EXPECT_EQ(made->regions[3].bytes, 2u * 4 * 5 * 8 * kTileBytes);
}

TEST(Sm90BackwardWide, IsChosenUnlessTheCallNeedsWhatItLacks) {
  const auto choose = [](const internal::ContextState& context, const Problem& problem,
                         const internal::Geometry& geometry) {
    return internal::plan_with_first(
        context, internal::backend_of(DeviceKind::kCuda).candidates(&context.gpu()->info()),
        problem, geometry);
  };
  for (const int dim : {136, 192, 256}) {
    const auto made = testing::plan_on(choose, "sm_90a", usual(dim));
    ASSERT_NE(made, nullptr);
    EXPECT_EQ(made->implementation, "sm90");
  }
  Options options;
  options.softcap = 30.0f;
  const auto made = testing::plan_on(choose, "sm_90a", usual(256, options));
  ASSERT_NE(made, nullptr);
  EXPECT_EQ(made->implementation, "sm80");
  std::string reasons;
  for (const std::string& reason : made->reasons) reasons += reason + "\n";
  EXPECT_THAT(reasons, ::testing::HasSubstr("softcap"));
}

TEST(Sm90BackwardWide, LeavesTheRestToSm80) {
  Options options;
  options.implementation = "sm90";
  EXPECT_NE(planned(usual(256, options)), nullptr);
  EXPECT_EQ(planned(usual(264, options)), nullptr);
  EXPECT_EQ(planned(usual(150, options)), nullptr) << "rows of 300 bytes";
  Options dropped = options;
  dropped.dropout = 0.1f;
  EXPECT_EQ(planned(usual(256, dropped)), nullptr);
  Problem problem = usual(256, options);
  problem.mask = contiguous_spec(DType::kBool, {1, 1, 300, 500}, problem.q.device);
  EXPECT_EQ(planned(problem), nullptr);
  problem = usual(256, options);
  problem.d_o->dtype = DType::kFp32;
  EXPECT_EQ(planned(problem), nullptr);
}

TEST(Sm90BackwardWide, PartsAreEqualAndHoldNoMoreThanAsked) {
  const WideParts whole = choose_wide_parts(geometry(8, 1, 8192));
  EXPECT_EQ(whole.count, 1);
  EXPECT_EQ(whole.bytes, std::int64_t{8} * 8192 * 8192 * 2);
  const WideParts heads = choose_wide_parts(geometry(9, 1, 8192));
  EXPECT_EQ(heads.count, 2);
  EXPECT_EQ(heads.heads, 5) << "not 8 and 1";
  const WideParts keys = choose_wide_parts(geometry(2, 4, 16384));
  EXPECT_EQ(keys.heads, 1);
  EXPECT_EQ(keys.count, 2 * 2);
  EXPECT_EQ(keys.tiles, 128);
  EXPECT_EQ(keys.bytes, kWideScoresBytes);
  EXPECT_EQ(choose_wide_parts(geometry(1, 1, 640), 10 * kTileBytes - 1).count, 0);
  EXPECT_EQ(choose_wide_parts(geometry(1, 1, 640), 10 * kTileBytes).count, 10);
}

}  // namespace
}  // namespace flashlab::cuda
