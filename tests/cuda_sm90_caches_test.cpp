// Which calls with a cache Hopper's own forward kernel serves, with which copies: on any machine.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <string>

#include "api/backend.h"
#include "cuda/kernels/sm90/forward/launch_arguments.h"
#include "cuda/kernels/sm90/plan.h"
#include "cuda_described_plan.h"
#include "runtime/program/program.h"

namespace flashlab::cuda {
namespace {

using ::testing::HasSubstr;

struct CacheSizes {
  std::int64_t batch = 1, queries = 2048, capacity = 32768, page_size = 64;
  std::int64_t heads_q = 32, heads_k = 8, dim = 128;
};

// Queries of each entry of the batch before pages, or a cache with entries by index.
Problem cached(const CacheSizes& s, Options options = {.causal = Causal::kBottomRight}) {
  const Device device{DeviceKind::kCuda, 0};
  Problem problem = testing::described_problem(
      DType::kBf16, Pass::kForward,
      {.batch = s.batch, .seqlen_q = s.queries, .seqlen_k = 1, .heads = s.heads_q, .dim = s.dim},
      std::move(options));
  problem.seqused_k = contiguous_spec(DType::kInt32, {s.batch}, device);
  if (s.page_size == 0) {
    problem.k = contiguous_spec(DType::kBf16, {s.batch + 1, s.capacity, s.heads_k, s.dim}, device);
    problem.cache_batch_idx = contiguous_spec(DType::kInt32, {s.batch}, device);
  } else {
    const std::int64_t pages = s.capacity / s.page_size;
    problem.k =
        contiguous_spec(DType::kBf16, {pages * s.batch + 1, s.page_size, s.heads_k, s.dim}, device);
    problem.block_table = contiguous_spec(DType::kInt32, {s.batch, pages}, device);
  }
  problem.v = problem.k;
  return problem;
}

// The same with ragged queries of so many sequences.
Problem ragged(const CacheSizes& s, std::int64_t total, Options options = {}) {
  Problem problem = cached(s, std::move(options));
  problem.q = problem.o =
      contiguous_spec(DType::kBf16, {total, s.heads_q, s.dim}, problem.q.device);
  problem.cu_seqlens_q = contiguous_spec(DType::kInt32, {s.batch + 1}, problem.q.device);
  return problem;
}

std::shared_ptr<internal::PlanState> chosen(const Problem& problem) {
  return testing::plan_on(
      [](const auto& context, const auto& normalised, const auto& geometry) {
        return internal::plan_with_first(
            context, internal::backend_of(DeviceKind::kCuda).candidates(&context.gpu()->info()),
            normalised, geometry);
      },
      "sm_90a", problem);
}

std::string name_of(const Problem& problem) {
  const auto made = chosen(problem);
  return made ? std::string(made->implementation) : "none";
}

std::string refusal(const Problem& problem) {
  return testing::refusal_on(sm90_implementation().make_plan, "sm_90a", problem);
}

TEST(Sm90Caches, HaveManyTilesOrStayWithDecode) {
  EXPECT_EQ(name_of(cached({})), "sm90");
  EXPECT_EQ(name_of(cached({.page_size = 0})), "sm90");
  EXPECT_EQ(name_of(cached({.queries = 1})), "decode");
  EXPECT_EQ(name_of(cached({.batch = 64, .queries = 4})), "decode");   // 16 rows of a group
  EXPECT_EQ(name_of(cached({.batch = 64, .queries = 16})), "decode");  // one tile a head
  EXPECT_EQ(name_of(cached({.batch = 8, .queries = 17})), "sm90");     // 128 tiles
  EXPECT_EQ(name_of(cached({.batch = 7, .queries = 17})), "decode");
  EXPECT_EQ(name_of(cached({.batch = 1, .queries = 240})), "decode");  // 120 tiles
  EXPECT_EQ(name_of(cached({.batch = 1, .queries = 241})), "sm90");
  // A chunk of prefill and 63 decodes.
  EXPECT_EQ(name_of(ragged({.batch = 64}, 4159)), "sm90");
  EXPECT_EQ(name_of(ragged({.batch = 64}, 64)), "decode");
  const auto few = chosen(cached({.queries = 1}));
  ASSERT_TRUE(few);
  std::string reasons;
  for (const std::string& reason : few->reasons) reasons += reason;
  EXPECT_THAT(reasons, HasSubstr("sm90 (queries before a cache for 'sm90'"));
}

// What a deterministic call runs with depends on what each sequence has alone.
TEST(Sm90Caches, AreChosenBySequencesAloneIfDeterministic) {
  const Options sure{.causal = Causal::kBottomRight, .deterministic = true};
  for (const std::int64_t batch : {1, 64}) {
    EXPECT_EQ(name_of(cached({.batch = batch}, sure)), "sm90");
    EXPECT_EQ(name_of(cached({.batch = batch, .queries = 64}, sure)), "decode");
    EXPECT_EQ(name_of(ragged({.batch = batch}, 2048 * batch, sure)), "decode");
  }
}

// Few queries before keys of which only the device knows how many there are.
TEST(Sm90Caches, AreNotNeededForKeysToBeSharedOut) {
  for (const bool deterministic : {false, true}) {
    const auto name = [&](std::int64_t queries) {
      Problem problem = cached({.batch = 8, .queries = queries, .page_size = 0},
                               {.deterministic = deterministic});
      problem.cache_batch_idx.reset();
      problem.k.shape[0] = problem.v.shape[0] = 8;
      return name_of(problem);
    };
    EXPECT_EQ(name(1), "decode");
    EXPECT_EQ(name(16), "decode");
    EXPECT_EQ(name(64), "sm90");
  }
}

TEST(Sm90Caches, LeaveWhatTheyLackToDecodeOrSm80) {
  EXPECT_EQ(name_of(cached({.queries = 128, .page_size = 4})), "decode");
  EXPECT_EQ(name_of(cached({.queries = 129, .page_size = 4})), "sm80");
  EXPECT_EQ(name_of(cached({.page_size = 4}, {.deterministic = true})), "decode");
  EXPECT_THAT(refusal(cached({.page_size = 4})), HasSubstr("a multiple of 8"));
  Problem padded = cached({});
  padded.leftpad_k = contiguous_spec(DType::kInt32, {1}, padded.q.device);
  EXPECT_EQ(name_of(padded), "sm80");
  EXPECT_THAT(refusal(padded), HasSubstr("leftpad_k of implementation 'sm90'"));
  padded = cached({.page_size = 0});
  padded.leftpad_k = contiguous_spec(DType::kInt32, {1}, padded.q.device);
  EXPECT_EQ(name_of(padded), "sm90");
  // Masks of few queries are decode's, but for one element for all keys.
  Problem masked = cached({.queries = 1}, {});
  masked.mask = contiguous_spec(DType::kBf16, {1, 1, 1, 32768}, masked.q.device);
  EXPECT_EQ(name_of(masked), "decode");
  masked.mask = contiguous_spec(DType::kBf16, {1, 1, 1, 1}, masked.q.device);
  EXPECT_EQ(name_of(masked), "sm90") << "decode reads an element for every key";
  masked = cached({.queries = 17}, {});
  masked.mask = contiguous_spec(DType::kBool, {1, 1, 17, 32768}, masked.q.device);
  EXPECT_EQ(name_of(masked), "sm90");
}

// Rows of a box: a page's, or, as far as they have a divisor in common, a step's.
TEST(Sm90Caches, CopyPartsOfPages) {
  const auto box_of = [](std::int64_t page_size, std::int64_t dim) {
    const auto made = chosen(cached({.capacity = 960 * 32, .page_size = page_size, .dim = dim}));
    if (!made) return 0u;
    const auto& kernels = made->program()->kernels();
    for (const auto& patch : kernels.back().kernel->parameters.tensor_maps()) {
      if (patch.offset == offsetof(device::Sm90ForwardArguments, k)) return patch.map.box[1];
    }
    return 0u;
  };
  EXPECT_EQ(box_of(8, 128), 8u);
  EXPECT_EQ(box_of(16, 128), 16u);
  EXPECT_EQ(box_of(24, 128), 8u);
  EXPECT_EQ(box_of(64, 128), 64u);
  EXPECT_EQ(box_of(256, 128), 64u);
  EXPECT_EQ(box_of(256, 64), 128u);
}

// Lengths, pages and their number change no kernel.
TEST(Sm90Caches, HaveOneKernelForAllSizes) {
  const auto text = [](const CacheSizes& sizes) {
    return chosen(cached(sizes))->program()->kernels().back().kernel->spec.config;
  };
  const std::string one = text({});
  EXPECT_EQ(text({.page_size = 16}), one);
  EXPECT_EQ(text({.page_size = 0}), one);
  EXPECT_EQ(text({.batch = 7, .queries = 513, .capacity = 4096}), one);
}

}  // namespace
}  // namespace flashlab::cuda
