// How the decode kernel shares out keys, and what its plans take and refuse.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/kernels/decode/plan.h"
#include "cuda/kernels/decode/tiles.h"
#include "cuda/launch/gpu_plan.h"
#include "cuda_described_plan.h"

namespace flashlab::cuda {
namespace {

using device::EqualRanges;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::PlannedSizes;

TEST(DecodeRanges, AreEqualAndCoverEveryGrainOnce) {
  for (const int ranges : {1, 2, 16, 131, 132}) {
    for (const int grains : {132, 133, 1000, 4096, 99991, 1 << 30}) {
      const EqualRanges shares(ranges, grains);
      EXPECT_EQ(shares.begin(0), 0);
      EXPECT_EQ(shares.begin(ranges), grains);
      for (int range = 0; range < ranges; ++range) {
        const int begin = shares.begin(range), end = shares.begin(range + 1);
        EXPECT_GE(end - begin, grains / ranges);
        EXPECT_LE(end - begin, grains / ranges + 1);
        EXPECT_EQ(shares.of(begin), range);
        EXPECT_EQ(shares.of(end - 1), range);
      }
    }
  }
}

TEST(DecodeDivisor, IsAProduct) {
  for (const int size : {1, 2, 3, 7, 16, 48, 255, 256, 4096, 65537, 1 << 30, INT32_MAX}) {
    const auto divisor = device::Divisor::of(size);
    for (const std::int64_t quotient : {0, 1, 2, 5, 31, 1000, 65535, 1 << 20, 1 << 30}) {
      for (const std::int64_t rest : {0, 1, size / 2, size - 1}) {
        const std::int64_t all = quotient * size + rest;
        if (rest >= size || all > INT32_MAX) continue;
        EXPECT_EQ(divisor.divide(static_cast<int>(all)).quotient, quotient);
        EXPECT_EQ(divisor.divide(static_cast<int>(all)).rest, rest);
      }
    }
  }
}

TEST(DecodeTiling, FitsWhatDevicesGrant) {
  device::DecodeTiling few{4, 1, 16, 16, 5, 1};
  few.sums = 4;
  EXPECT_EQ(few.rows(), 16);
  EXPECT_EQ(few.unit_keys(), 64);
  EXPECT_EQ(few.threads(), 128 + 64);
  EXPECT_EQ(device::kFixedPartKeys % few.unit_keys(), 0);
  // Sums of four teams' 16 rows; a place for operands that is not used; statistics of the teams and
  // of all; barriers of five places and two segments; the segments.
  const int all = 4 * 16 * 136 * 4 + 16 + 5 * 16 * 8 + 7 * 16 +
                  device::kDecodeSegments * device::kDecodeSegmentBytes + 16;
  // Five units of 64 rows of K and of V, at an odd pitch of chunks or in slabs.
  EXPECT_EQ(device::shared_bytes(few, 128, 128), 5 * 2 * 64 * 272 + all);
  device::DecodeTiling boxes = few;
  boxes.box_rows = 64;
  EXPECT_EQ(boxes.threads(), 128 + 32);
  EXPECT_EQ(device::shared_bytes(boxes, 128, 128), 5 * 2 * 64 * 256 + all);
}

Problem grouped(const PlannedSizes& sizes, std::int64_t heads_k, Options options = {}) {
  options.implementation = "decode";
  Problem problem = testing::described_problem(DType::kBf16, Pass::kForward, sizes, options);
  problem.k = contiguous_spec(DType::kBf16, {sizes.batch, sizes.seqlen_k, heads_k, sizes.dim},
                              problem.k.device);
  problem.v = problem.k;
  return problem;
}

std::shared_ptr<internal::PlanState> planned(const Problem& problem,
                                             const char* architecture = "sm_90a") {
  return testing::plan_on(decode_implementation().make_plan, architecture, problem);
}

std::int64_t blocks_of(const internal::PlanState& plan) {
  const LaunchShape& shape = plan.program()->kernels().back().kernel->shape;
  return std::int64_t{shape.grid_x} * shape.grid_y;
}

// Blocks of one range have a key head each.
TEST(DecodePlan, SharesKeysOverAllMultiprocessors) {
  EXPECT_EQ(blocks_of(*planned(grouped({1, 1, 8192, 32, 128}, 8))), 128);
  EXPECT_EQ(blocks_of(*planned(grouped({1, 1, 8192, 32, 128}, 1))), 128);  // units of keys
  EXPECT_EQ(blocks_of(*planned(grouped({1, 1, 65536, 32, 128}, 1))), 132);
  EXPECT_EQ(blocks_of(*planned(grouped({4, 1, 8192, 96, 128}, 96))), 128);
  EXPECT_EQ(blocks_of(*planned(grouped({4, 1, 8192, 200, 128}, 200))), 120);
  EXPECT_EQ(blocks_of(*planned(grouped({1, 1, 64, 32, 128}, 8))), 8);
}

TEST(DecodePlan, HasPartsForEveryBlock) {
  const auto plan = planned(grouped({8, 1, 32768, 32, 128}, 8));
  ASSERT_EQ(plan->regions.size(), 3u);
  EXPECT_EQ(plan->regions[0].bytes, 2u * 128 * 4 * 128 * 4);  // a group's four rows
  EXPECT_EQ(plan->regions[1].bytes, 2u * 128 * 4 * 8);
  EXPECT_EQ(plan->regions[2].bytes, 128u * 8);
  Options fixed;
  fixed.deterministic = true;
  const auto repeated = planned(grouped({8, 1, 32768, 32, 128}, 8, fixed));
  EXPECT_EQ(repeated->regions[0].bytes, 8u * 8 * 8 * 4 * 128 * 4);  // parts of 4,096 keys
}

// The kernels of a call do not depend on how many keys, sequences or multiprocessors there are.
TEST(DecodePlan, HasOneKernelForAllLengths) {
  const auto text = [](const PlannedSizes& sizes) {
    return planned(grouped(sizes, 8))->program()->kernels().back().kernel->spec.config;
  };
  const std::string one = text({1, 1, 8192, 32, 128});
  EXPECT_EQ(text({64, 1, 131072, 32, 128}), one);
  EXPECT_EQ(text({1, 4, 1, 32, 128}), one);
  EXPECT_EQ(text({1, 16, 77, 8, 128}), one);
  EXPECT_NE(text({1, 5, 8192, 32, 128}), one);  // 20 rows
  EXPECT_EQ(text({1, 5, 8192, 32, 128}), text({3, 8, 1000, 32, 128}));
  EXPECT_NE(text({1, 9, 8192, 32, 128}), text({1, 8, 8192, 32, 128}));  // 36 rows and 32
  EXPECT_EQ(text({1, 9, 8192, 32, 128}), text({3, 16, 1000, 32, 128}));
}

// Boxes of whole pages; threads copy where a row is no multiple of 8 in its page, or rows of two
// entries lie at no multiple of a row's stride.
TEST(DecodePlan, CopiesInBoxesWhereRowsAllow) {
  const auto box = [](std::int64_t page_size, const char* architecture = "sm_90a",
                      bool padding = false) {
    Problem problem = grouped({2, 1, 256, 32, 128}, 8);
    const Device gpu = problem.k.device;
    problem.k = problem.v = contiguous_spec(DType::kBf16, {512, page_size, 8, 128}, gpu);
    problem.block_table = contiguous_spec(DType::kInt32, {2, 256 / page_size}, gpu);
    problem.seqused_k = contiguous_spec(DType::kInt32, {2}, gpu);
    if (padding) problem.leftpad_k = problem.seqused_k;
    const std::string config =
        planned(problem, architecture)->program()->kernels().back().kernel->spec.config;
    const std::size_t at = config.find("kBoxRows = ");
    return config.substr(at + 11, config.find(';', at) - at - 11);
  };
  EXPECT_EQ(box(256), "128");
  EXPECT_EQ(box(64), "64");
  EXPECT_EQ(box(16), "16");
  EXPECT_EQ(box(8), "8");
  EXPECT_EQ(box(4), "0");
  EXPECT_EQ(box(1), "0");
  EXPECT_EQ(box(16, "sm_90a", true), "0");
  EXPECT_EQ(box(16, "sm_80"), "0");
}

// One box has all columns of its rows where a head is whole slabs of 64; 64 rows of a group are
// multiplied by warpgroups, which read the rows of a unit slab by slab.
TEST(DecodePlan, TakesWholeRowsAndWarpgroupsWhereItCan) {
  const auto config = [](const PlannedSizes& sizes, const char* architecture = "sm_90a") {
    return planned(grouped(sizes, 8), architecture)
        ->program()
        ->kernels()
        .back()
        .kernel->spec.config;
  };
  constexpr const char *kAtOnce = "kSlabsAtOnce = true", *kGroups = "kWarpgroups = true";
  EXPECT_THAT(config({2, 1, 256, 32, 128}), HasSubstr(kAtOnce));
  EXPECT_THAT(config({2, 1, 256, 32, 64}), HasSubstr(kAtOnce));
  EXPECT_THAT(config({2, 1, 256, 32, 96}), Not(HasSubstr(kAtOnce)));
  EXPECT_THAT(config({2, 1, 256, 32, 128}, "sm_80"), Not(HasSubstr(kAtOnce)));
  EXPECT_THAT(config({2, 8, 256, 32, 128}), Not(HasSubstr(kGroups)));
  EXPECT_THAT(config({2, 9, 256, 32, 128}), AllOf(HasSubstr(kGroups), Not(HasSubstr(kAtOnce))));
  EXPECT_THAT(config({2, 9, 256, 32, 128}, "sm_80"), Not(HasSubstr(kGroups)));
  Problem between = grouped({2, 1, 256, 32, 128}, 8);  // heads are no whole slabs apart
  between.k.strides = {256 * 8 * 136, 8 * 136, 136, 1};
  EXPECT_THAT(planned(between)->program()->kernels().back().kernel->spec.config,
              Not(HasSubstr(kAtOnce)));
}

TEST(DecodePlan, RefusesWhatItCannotServe) {
  const auto refusal = [](const Problem& problem, const char* architecture = "sm_90a") {
    return testing::refusal_on(decode_implementation().make_plan, architecture, problem);
  };
  EXPECT_THAT(refusal(grouped({1, 17, 8192, 32, 128}, 8)), HasSubstr("at most 16"));
  EXPECT_THAT(refusal(grouped({1, 1, 8192, 32, 100}, 8)), HasSubstr("multiple of 8"));
  EXPECT_THAT(refusal(grouped({1, 1, 8192, 32, 128}, 8), "sm_75"), HasSubstr("8.0 or later"));
  Problem shifted = grouped({1, 1, 8192, 32, 128}, 8);
  shifted.k.strides[1] += 4;
  EXPECT_THAT(refusal(shifted), HasSubstr("k aligned to 8 bytes"));
  EXPECT_EQ(refusal(grouped({1, 16, 8192, 32, 128}, 8)), "");
  // A table of one page a sequence, whose stride is never used.
  Problem one_page = grouped({2, 1, 64, 32, 128}, 8);
  one_page.k.shape[0] = one_page.v.shape[0] = 3;
  one_page.block_table = contiguous_spec(DType::kInt32, {2, 1}, one_page.k.device);
  one_page.seqused_k = contiguous_spec(DType::kInt32, {2}, one_page.k.device);
  EXPECT_EQ(refusal(one_page), "");
}

}  // namespace
}  // namespace flashlab::cuda
