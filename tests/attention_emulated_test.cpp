// Attention's GPU kernels, their own text, on an emulated block: every branch of them against the
// oracle on a machine without a GPU. FLASHLAB_EMULATED=all takes all small cases instead of a
// selection; a part of names instead of `all` takes the cases whose names have it.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "attention_emulated.h"

namespace flashlab::testing {
namespace {

using cases::Case;

struct Selection {
  const char* name;
  const char* implementation;
  Pass pass;
  DType dtype;
  std::vector<const char*> cases;  ///< names behind the type's
  friend void PrintTo(const Selection& each, std::ostream* out) { *out << each.name; }
};

const char* asked() {
  return std::getenv("FLASHLAB_EMULATED");
}

std::vector<Case> cases_of(const Selection& selection) {
  std::vector<Case> out;
  const std::string prefix = std::string(to_string(selection.dtype)) + "-";
  const std::string_view part = asked() == nullptr ? "" : asked();
  std::size_t found = 0;
  for (const Case& each : cases::conformance_cases(selection.dtype)) {
    const bool named = std::any_of(selection.cases.begin(), selection.cases.end(),
                                   [&](const char* name) { return each.name == prefix + name; });
    found += named ? 1 : 0;
    const bool wanted = part == "all" || each.name.find(part) != std::string::npos;
    if (asked() != nullptr ? wanted : named) out.push_back(each);
  }
  EXPECT_EQ(found, selection.cases.size()) << "a case has another name now";
  return out;
}

class AttentionEmulated : public ::testing::TestWithParam<Selection> {};

TEST_P(AttentionEmulated, KernelsAreTheOracle) {
  const Selection& selection = GetParam();
  const std::vector<Case> list = cases_of(selection);
  emulated::Kernels kernels;
  use_gpu({.kernels = &kernels});
  const Context context = emulated_context();
  kernels.build(kernels_of(context, list, selection.implementation, {selection.pass}));
  lab::CheckOptions options;
  options.passes = {selection.pass};
  options.trap_reads_past_end = true;
  int ran = 0;
  for (const Case& each : list) {
    options.memory = emulated_memory();
    // Backward adds in an order of its own unless it is deterministic: one call says as much.
    options.repeat = selection.pass == Pass::kForward || each.deterministic;
    const auto truth = lab::CaseTruth::create(each, options);
    ASSERT_TRUE(truth.ok()) << each.name << ": " << truth.status().message();
    const auto report = lab::check_case(context, *truth, selection.implementation, options);
    EXPECT_FALSE(report.failed()) << report.failure();
    ran += report.status == lab::RunStatus::kOk ? 1 : 0;
    if (asked() != nullptr && report.status == lab::RunStatus::kOk) {
      fmt::print("{} {}: {:.2f} s\n", selection.name, report.problem.name, report.seconds);
    }
  }
  EXPECT_GE(ran, asked() != nullptr ? 1 : static_cast<int>(list.size()));
}

constexpr Pass kForward = Pass::kForward, kBackward = Pass::kBackward;

// Rows are repaired; a diagonal, a group, two slabs of features; tails of tiles.
Selection hopper_rung(const char* name, const char* implementation, DType dtype) {
  return {name, implementation, kForward, dtype, {"growing-full", "group-of-8"}};
}

INSTANTIATE_TEST_SUITE_P(
    Cases, AttentionEmulated,
    ::testing::Values(
        Selection{"sm90_forward",
                  "sm90",
                  kForward,
                  DType::kBf16,
                  {"fill-1-causal", "additive-mask-own-type", "bool-mask-form-1", "growing-full",
                   "softcap-mask", "alibi-unequal", "window-both", "group-of-8", "dropout-window",
                   "empty-rows-bottom-right"}},
        Selection{"sm90_forward_fp16",
                  "sm90",
                  kForward,
                  DType::kFp16,
                  {"additive-mask-own-type", "growing-causal"}},
        Selection{"sm90_backward",
                  "sm90",
                  kBackward,
                  DType::kBf16,
                  {"unseen-keys-top-left", "group-of-8", "empty-rows-bottom-right",
                   "window-wide-heads", "fill-3", "fill-4-causal"}},
        Selection{"sm90_backward_fp16", "sm90", kBackward, DType::kFp16, {"fill-1-causal"}},
        Selection{"sm90_backward_features",
                  "sm90",
                  kBackward,
                  DType::kBf16,
                  {"dropout-half", "alibi-both-sides", "alibi-dropout"}},
        Selection{"sm80_forward",
                  "sm80",
                  kForward,
                  DType::kBf16,
                  {"fill-1-causal", "additive-mask-own-type", "growing-full", "dropout-mask"}},
        Selection{"sm80_forward_fp16", "sm80", kForward, DType::kFp16, {"features-unequal"}},
        Selection{"sm80_backward", "sm80", kBackward, DType::kBf16, {"features-unequal"}},
        Selection{"sm80_backward_fp16", "sm80", kBackward, DType::kFp16, {"dropout-window"}},
        Selection{"fp32_forward", "sm80", kForward, DType::kFp32, {"features-unequal"}},
        Selection{"fp32_backward", "sm80", kBackward, DType::kFp32, {"features-unequal"}},
        Selection{"fa1_mma", "fa1-mma", kForward, DType::kFp16, {"fill-1-causal"}},
        Selection{"fa2_mma", "fa2-mma", kForward, DType::kFp16, {"fill-1-causal"}},
        Selection{"fa2_mma_backward", "fa2-mma", kBackward, DType::kFp16, {"fill-1-causal"}},
        hopper_rung("fa2_tma", "fa2-tma", DType::kBf16),
        hopper_rung("fa2_wgmma", "fa2-wgmma", DType::kFp16),
        hopper_rung("fa3", "fa3", DType::kBf16),
        hopper_rung("fa3_turns", "fa3-turns", DType::kFp16),
        hopper_rung("fa3_frozen", "fa3-frozen", DType::kFp16)),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace flashlab::testing
