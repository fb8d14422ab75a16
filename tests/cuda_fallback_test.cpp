// The fallbacks of kernels (runtime/kernel_store/compile.h) compute the same: on a GPU the
// acceptance rule takes them in place of their first choices. Which of the two a user gets depends
// on the compiler, so both are tested whatever this one makes of them. Without a GPU they must
// compile.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "api/context_state.h"
#include "cuda_compiler.h"
#include "cuda_gpu.h"
#include "cuda_mutants.h"
#include "lab/check/check.h"
#include "runtime/cuda/known_gpus.h"

namespace flashlab::testing {
namespace {

using cases::Case;
using ::testing::Contains;

// Lengths beside the edges of all tiles, grouped heads; among them every kind of fallback.
std::vector<Case> problems() {
  std::vector<Case> out;
  const auto add = [&](std::int64_t head_dim, std::int64_t head_dim_v, cases::MaskKind mask,
                       Causal causal, cases::Layout layout, bool deterministic = false,
                       DType dtype = DType::kBf16) {
    Case c;
    c.batch = 1;
    c.heads_q = 4;
    c.heads_k = 2;
    c.seqlen_q = c.seqlen_k = 300;
    c.head_dim = head_dim;
    c.head_dim_v = head_dim_v;
    c.dtype = dtype;
    c.mask = mask;
    c.causal = causal;
    c.layout = layout;
    c.deterministic = deterministic;
    c.lse_gradient = true;
    c.name = "fallback " + c.describe();
    out.push_back(c);
  };
  using enum cases::MaskKind;
  const auto whole = cases::Layout::kContiguous, odd = cases::Layout::kPaddedRows;
  for (const std::int64_t dim : {64, 128, 256}) {
    add(dim, dim, kNone, Causal::kBottomRight, whole);
    add(dim, dim, kNone, Causal::kBottomRight, odd);
    add(dim, dim, kNone, Causal::kNone, whole, /*deterministic=*/true);
    add(dim, dim, kAdditive, Causal::kNone, whole);
    add(dim, dim, kBool, Causal::kTopLeft, odd);
  }
  add(64, 128, kAdditive, Causal::kNone, whole);
  add(96, 96, kAdditive, Causal::kNone, whole);
  add(192, 128, kBool, Causal::kBottomRight, whole);
  add(64, 128, kAdditive, Causal::kBottomRight, whole, false, DType::kFp32);
  add(128, 128, kNone, Causal::kNone, odd, false, DType::kFp32);
  add(8, 8, kNone, Causal::kNone, odd, false, DType::kFp32);
  add(256, 256, kBool, Causal::kBottomRight, whole, /*deterministic=*/true, DType::kFp32);
  add(3, 72, kNone, Causal::kTopLeft, whole);
  return out;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> out;
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

// The members in which two printed Configs differ, without their values.
std::vector<std::string> differences(const std::string& config, const std::string& other) {
  const auto lines = lines_of(config), others = lines_of(other);
  EXPECT_EQ(lines.size(), others.size());
  std::vector<std::string> out;
  for (std::size_t i = 0; i < std::min(lines.size(), others.size()); ++i) {
    if (lines[i] == others[i]) continue;
    const std::string left = lines[i].substr(0, lines[i].find(" ="));
    out.push_back(left.substr(left.rfind(' ') + 1));
  }
  return out;
}

class Fallback : public ::testing::TestWithParam<std::tuple<Case, Pass>> {
 protected:
  const Case& problem() const { return std::get<0>(GetParam()); }
  Pass pass() const { return std::get<1>(GetParam()); }
  Mutant fallback(int number) const {
    return {.implementation = "sm80", .pass = pass(), .fallback = number};
  }
  /// The kernels with their first choices and the fallbacks beside them.
  std::vector<cuda::KernelSpec> kernels(int number = 0) const {
    const auto gpu = cuda::GpuDevice::described(*cuda::known_gpu("sm_90a"));
    ContextOptions options;
    options.device = kGpu;
    options.threads = 1;
    return kernels_of(internal::ContextState(options, gpu.get()), fallback(number), problem());
  }
  int most_fallbacks() const {
    std::size_t most = 0;
    for (const cuda::KernelSpec& kernel : kernels()) {
      most = std::max(most, kernel.fallbacks.size());
    }
    return static_cast<int>(most);
  }
};

const std::vector<std::string> kMayDiffer = {"kFewRegisters", "kGradQPasses", "kPrefetch",
                                             "kSteadyLoop",   "kMinBlocks",   "kPieceK",
                                             "kQuerySteps",   "kSharedBytes", "kTileK"};

// Machine code takes several times as long as PTX, but only there ptxas sees the kernel: a few
// problems stand for all.
std::string architecture_for(const Case& problem) {
  const bool wide_16_bit = problem.dtype != DType::kFp32 && problem.head_dim == 128;
  const bool repeatable_fp32 = problem.dtype == DType::kFp32 && problem.deterministic;
  return wide_16_bit || repeatable_fp32 ? "sm_90a" : "compute_80";
}

TEST_P(Fallback, KeepsTheLaunch) {
  const auto first = kernels();
  for (int number = 1; number <= most_fallbacks(); ++number) {
    const auto second = kernels(number);
    ASSERT_EQ(first.size(), second.size());
    for (std::size_t i = 0; i < first.size(); ++i) {
      if (first[i].fallbacks.size() < static_cast<std::size_t>(number)) continue;
      EXPECT_EQ(second[i].config, first[i].fallbacks[number - 1]);
      const auto changed = differences(first[i].config, second[i].config);
      EXPECT_FALSE(changed.empty());
      for (const std::string& member : changed) EXPECT_THAT(kMayDiffer, Contains(member));
    }
  }
}

TEST_P(Fallback, Compiles) {
  NEED_COMPILER();
  for (const cuda::KernelSpec& kernel : kernels()) {
    for (const std::string& config : kernel.fallbacks) {
      cuda::KernelSpec alone = kernel;
      alone.config = config;
      alone.fallbacks.clear();  // this one, however much it spills
      const auto image = cuda::compile_image(alone, architecture_for(problem()));
      EXPECT_TRUE(image.ok()) << kernel.entry << ": " << image.status().message();
    }
  }
}

TEST_P(Fallback, NoTwoAreTheSame) {
  for (const cuda::KernelSpec& kernel : kernels()) {
    std::set<std::string> configs(kernel.fallbacks.begin(), kernel.fallbacks.end());
    configs.insert(kernel.config);
    EXPECT_EQ(configs.size(), kernel.fallbacks.size() + 1) << kernel.entry;
  }
}

TEST_P(Fallback, IsAccepted) {
  const auto context = Context::create({.device = kGpu});
  if (!context.ok()) GTEST_SKIP() << "no GPU: " << context.status().message();
  lab::CheckRun run;
  run.cases = {problem()};
  run.implementations = {"sm80"};
  run.options.passes = {pass()};
  for (int number = 1, most = most_fallbacks(); number <= most; ++number) {
    use_mutant(fallback(number));
    const lab::CheckSummary summary = lab::check_cases(*context, run);
    ASSERT_EQ(summary.reports.size(), 1u);
    EXPECT_TRUE(summary.reports[0].passed()) << number << ": " << summary.reports[0].failure();
  }
}

INSTANTIATE_TEST_SUITE_P(Problems, Fallback,
                         ::testing::Combine(::testing::ValuesIn(problems()),
                                            ::testing::Values(Pass::kForward, Pass::kBackward)),
                         [](const auto& info) {
                           std::string name;
                           for (const char c : std::get<0>(info.param).name) {
                             name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
                           }
                           return name + (std::get<1>(info.param) == Pass::kForward ? "_forward"
                                                                                    : "_backward");
                         });

}  // namespace
}  // namespace flashlab::testing
