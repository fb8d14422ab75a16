// Hopper's backward where the order of steps follows from how many multiprocessors there are: heads
// of a group abreast, wave after wave to and fro, and tiles of keys cut into parts.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "attention_emulated.h"

namespace flashlab::testing {
namespace {

cases::Case causal_group(std::int64_t head_dim, DType dtype) {
  cases::Case out;
  out.name = fmt::format("causal-group-{}", head_dim);
  out.batch = 1;
  out.heads_q = 8;
  out.heads_k = 2;
  out.seqlen_q = 130;
  out.seqlen_k = 600;
  out.head_dim = out.head_dim_v = head_dim;
  out.dtype = dtype;
  out.causal = Causal::kBottomRight;
  return out;
}

bool any_config_has(const std::vector<cuda::KernelSpec>& kernels, const char* text) {
  return std::any_of(kernels.begin(), kernels.end(), [&](const cuda::KernelSpec& each) {
    return each.config.find(text) != std::string::npos;
  });
}

// Two multiprocessors have five waves of tiles of keys, 64 have too few of them.
TEST(EmulatedSm90Backward, OrderAndPartsAreTheOracle) {
  emulated::Kernels kernels;
  lab::CheckOptions options;
  options.passes = {Pass::kBackward};
  for (const auto& problem : {causal_group(64, DType::kBf16), causal_group(128, DType::kFp16),
                              causal_group(40, DType::kBf16)}) {
    options.memory = emulated_memory();
    const auto truth = lab::CaseTruth::create(problem, options);
    ASSERT_TRUE(truth.ok()) << truth.status().message();
    for (const int multiprocessors : {2, 64}) {
      use_gpu({.multiprocessors = multiprocessors, .kernels = &kernels});
      const Context context = emulated_context();
      const auto list = kernels_of(context, {problem}, "sm90", {Pass::kBackward});
      EXPECT_TRUE(any_config_has(list, "kAbreast = true"));
      EXPECT_EQ(any_config_has(list, "kParts = true"), multiprocessors == 64);
      kernels.build(list);
      const auto report = lab::check_case(context, *truth, "sm90", options);
      EXPECT_TRUE(report.passed())
          << problem.name << ", " << multiprocessors << " multiprocessors: " << report.failure();
    }
  }
}

}  // namespace
}  // namespace flashlab::testing
