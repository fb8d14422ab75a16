// The fallbacks of kernels (cuda/jit/compile.h) compute the same: on a GPU the acceptance rule
// takes them in place of their first choices. Which of the two a user gets depends on the compiler,
// so both are tested whatever this one makes of them. Without a GPU they must compile.

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "api/context_state.h"
#include "cuda/driver/known_gpus.h"
#include "cuda/jit/nvrtc.h"
#include "cuda_gpu.h"
#include "cuda_mutants.h"
#include "lab/check.h"

namespace flashlab::testing {
namespace {

using cases::Case;

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
    if (lines[i] != others[i]) out.push_back(lines[i].substr(0, lines[i].find(" =")));
  }
  return out;
}

class Fallback : public ::testing::TestWithParam<std::tuple<Case, Pass>> {
 protected:
  const Case& problem() const { return std::get<0>(GetParam()); }
  Pass pass() const { return std::get<1>(GetParam()); }
  Mutant fallbacks() const { return {.implementation = "sm80", .pass = pass(), .fallback = true}; }
};

TEST_P(Fallback, CompilesAndKeepsTheLaunch) {
  const auto gpu = cuda::GpuDevice::described(*cuda::known_gpu("sm_90a"));
  ContextOptions options;
  options.device = kGpu;
  options.threads = 1;
  const internal::ContextState context(options, gpu.get());
  const auto first = kernels_of(context, {.implementation = "sm80", .pass = pass()}, problem());
  const auto second = kernels_of(context, fallbacks(), problem());
  ASSERT_EQ(first.size(), second.size());
  for (std::size_t i = 0; i < first.size(); ++i) {
    if (first[i].fallback.empty()) continue;
    EXPECT_EQ(second[i].config, first[i].fallback);
    const auto changed = differences(first[i].config, second[i].config);
    EXPECT_FALSE(changed.empty());
    for (const std::string& member : changed) {
      EXPECT_TRUE(member.ends_with(" kFewRegisters") || member.ends_with(" kGradQPasses") ||
                  member.ends_with(" kPrefetch") || member.ends_with(" kSteadyLoop") ||
                  member.ends_with(" kMinBlocks"))
          << member;
    }
    if (auto nvrtc = cuda::Nvrtc::get(); !nvrtc.ok()) GTEST_SKIP() << nvrtc.status().message();
    const auto image = cuda::compile_image(second[i], "compute_80");
    EXPECT_TRUE(image.ok()) << image.status().message();
  }
}

TEST_P(Fallback, IsAccepted) {
  const auto context = Context::create({.device = kGpu});
  if (!context.ok()) GTEST_SKIP() << "no GPU: " << context.status().message();
  use_mutant(fallbacks());
  lab::CheckRun run;
  run.cases = {problem()};
  run.implementations = {"sm80"};
  run.options.passes = {pass()};
  const lab::CheckSummary summary = lab::check_cases(*context, run);
  ASSERT_EQ(summary.reports.size(), 1u);
  EXPECT_TRUE(summary.reports[0].passed()) << summary.reports[0].failure();
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
