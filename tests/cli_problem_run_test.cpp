// One problem through several implementations: what fails is a row, the others go on.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lab/measure/cpu_roof.h"
#include "lab/subjects/attention/problem_run.h"
#include "lab/subjects/weighted_sum/weighted_sum_bench.h"

namespace flashlab::lab {
namespace {

using testing::HasSubstr;

cases::Case small_case() {
  cases::Case out;
  out.batch = 1;
  out.heads_q = out.heads_k = 2;
  out.seqlen_q = out.seqlen_k = 256;
  out.head_dim = out.head_dim_v = 16;
  return out;
}

const std::vector<Pass> kBoth = {Pass::kForward, Pass::kBackward};

struct Fixture {
  TrackingAllocator allocator;
  Context context = std::move(Context::create({.threads = 1, .allocator = &allocator})).value();

  std::vector<Measurement> run(const cases::Case& problem, const std::vector<Pass>& passes,
                               const std::vector<std::string>& names, ProblemRunOptions options) {
    options.measure.warmup = 1;
    options.measure.repeats = 3;
    options.measure.min_sample_ms = 0;
    options.roof = false;
    return run_problem(context, allocator, problem, passes, names, options);
  }
};

TEST(CliProblemRun, MeasuresPassesFirst) {
  Fixture fixture;
  ProblemRunOptions options;
  options.error = true;
  const auto results = fixture.run(small_case(), kBoth, {"cpu", "naive"}, options);
  ASSERT_EQ(results.size(), 4u);
  EXPECT_EQ(results[1].implementation, "naive");
  EXPECT_EQ(results[1].pass, "forward");
  EXPECT_EQ(results[2].pass, "backward");
  for (const Measurement& r : results) {
    EXPECT_EQ(r.status, RunStatus::kOk) << r.message;
    EXPECT_EQ(r.samples, 3);
    EXPECT_GT(*r[kMedianMs], 0);
    EXPECT_LT(*r[kError], 1e-4);
    EXPECT_FALSE(r[kRoofShare].has_value());
    EXPECT_FALSE(r.plan.empty());
  }
  // fp32 [1, 256, 2, 16]: 32 KiB a tensor; lse 2 KiB.
  constexpr std::int64_t kTensor = 256 * 2 * 16 * 4, kLse = 2 * 256 * 4;
  for (const Measurement& r : results) {
    const std::int64_t tensors = r.pass == "forward" ? 4 * kTensor + kLse : 8 * kTensor + kLse;
    EXPECT_EQ(*r[kPeakBytes], tensors + *r[kWorkspaceBytes]) << r.implementation << " " << r.pass;
  }
  EXPECT_EQ(*results[2][kSavedBytes], 4 * kTensor + kLse);
  EXPECT_FALSE(results[0][kSavedBytes].has_value());
  ASSERT_EQ(results[1].parts.size(), 3u);
  EXPECT_EQ(results[1].parts[0].name, "scores");
  EXPECT_EQ(fixture.allocator.current_bytes(), 0) << "the workspace was given back";
}

TEST(CliProblemRun, OfCandidatesAPassHasTheFirstThatServesIt) {
  Fixture fixture;
  ProblemRunOptions options;
  options.first_that_serves = true;
  auto results = fixture.run(small_case(), kBoth, {"sm90", "cpu", "naive"}, options);
  ASSERT_EQ(results.size(), 2u);
  for (const Measurement& r : results) {
    EXPECT_EQ(r.implementation, "cpu");
    EXPECT_EQ(r.status, RunStatus::kOk) << r.message;
  }
  EXPECT_EQ(results[1].pass, "backward");
  results = fixture.run(small_case(), {Pass::kForward}, {"sm90", "sm80"}, options);
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].implementation, "sm80");
  EXPECT_NE(results[0].status, RunStatus::kOk);
}

TEST(CliProblemRun, OutOfMemoryOfOneLeavesTheOthers) {
  Fixture fixture;
  ProblemRunOptions options;
  // Tensors and tiles fit; naive's two score matrices of 256 x 256 x 2 heads do not.
  options.memory_limit_bytes = 700 << 10;
  const auto results =
      fixture.run(small_case(), {Pass::kForward}, {"naive", "fa2-plain", "cpu"}, options);
  ASSERT_EQ(results.size(), 3u);
  EXPECT_EQ(results[0].status, RunStatus::kOutOfMemory);
  EXPECT_THAT(results[0].message, HasSubstr("iB"));
  EXPECT_FALSE(results[0][kMedianMs].has_value());
  EXPECT_EQ(results[1].status, RunStatus::kOk) << results[1].message;
  EXPECT_EQ(results[2].status, RunStatus::kOk) << results[2].message;
}

TEST(CliProblemRun, TensorsThatDoNotFitAreRowsToo) {
  Fixture fixture;
  ProblemRunOptions options;
  options.memory_limit_bytes = 4096;
  const auto results = fixture.run(small_case(), kBoth, {"cpu"}, options);
  ASSERT_EQ(results.size(), 2u);
  for (const Measurement& r : results) {
    EXPECT_EQ(r.status, RunStatus::kOutOfMemory);
    EXPECT_THAT(r.message, HasSubstr("q fp32 [1, 256, 2, 16]"));
  }
}

TEST(CliProblemRun, RefusalsSayWhatIsMissing) {
  Fixture fixture;
  cases::Case problem = small_case();
  problem.precision = Precision::kTf32;
  const auto results = fixture.run(problem, {Pass::kForward}, {"cpu", "naive"}, {});
  ASSERT_EQ(results.size(), 2u);
  for (const Measurement& r : results) {
    EXPECT_EQ(r.status, RunStatus::kUnsupported);
    EXPECT_THAT(r.message, HasSubstr("tf32"));
  }
}

TEST(CliProblemRun, InterruptedRunsKeepOnlyWhatWasMeasured) {
  Fixture fixture;
  std::atomic<bool> cancel = true;
  ProblemRunOptions options;
  options.measure.cancel = &cancel;
  EXPECT_TRUE(fixture.run(small_case(), kBoth, {"cpu"}, options).empty());

  cancel = false;
  options.stage = [&](std::string_view stage) {
    if (stage.find("first call of cpu backward") != std::string_view::npos) cancel = true;
  };
  const auto results = fixture.run(small_case(), kBoth, {"cpu"}, options);
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].pass, "forward");
  EXPECT_TRUE(results[0][kMedianMs].has_value());
}

TEST(CliProblemRun, AnInterruptedRowKeepsItsSamplesAndSaysThatItIsCutShort) {
  Fixture fixture;
  std::atomic<bool> cancel = false;
  std::vector<Measurement> so_far;
  ProblemRunOptions options;
  options.error = true;
  options.measure.cancel = &cancel;
  options.measure.progress = [&](int samples, int) { cancel = samples >= 2; };
  const auto results = fixture.run(small_case(), {Pass::kForward}, {"cpu"}, options);
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].samples, 2);
  EXPECT_TRUE(results[0].cut_short);

  // All samples are there, the error against fp64 is not.
  cancel = false;
  options.measure.progress = {};
  options.stage = [&](std::string_view stage) { cancel = stage.starts_with("error"); };
  options.so_far = [&](const std::vector<Measurement>& known) { so_far = known; };
  const auto timed = fixture.run(small_case(), {Pass::kForward}, {"cpu"}, options);
  ASSERT_EQ(timed.size(), 1u);
  EXPECT_EQ(timed[0].samples, 3);
  EXPECT_TRUE(timed[0].cut_short);
  // What a call that never ends would leave behind.
  ASSERT_EQ(so_far.size(), 1u);
  EXPECT_TRUE(so_far[0].cut_short);
  EXPECT_EQ(so_far[0].samples, 3);
}

TEST(CliProblemRun, GivenValuesAreRun) {
  Fixture fixture;
  cases::Case problem = small_case();
  std::vector<float> values(256 * 2 * 16, 1.0f);
  const ConstTensor tensor = flashlab::tensor(values.data(), {1, 256, 2, 16});
  ProblemRunOptions options;
  options.values = CaseValues{tensor, tensor, tensor, std::nullopt};
  options.error = true;
  const auto results = fixture.run(problem, {Pass::kForward}, {"cpu"}, options);
  ASSERT_EQ(results.size(), 1u);
  // All values equal: o is exactly 1 and there is hardly any error to find.
  EXPECT_LT(*results[0][kError], 1e-6);
}

TEST(CliProblemRun, RoofIsAboveTheKernels) {
  Fixture fixture;
  const RoofWindow window = cpu_roof_window(fixture.context, DType::kFp32);
  ASSERT_TRUE(window);
  EXPECT_GT(window(0.01), 1e9);
  EXPECT_FALSE(cpu_roof_window(fixture.context, DType::kFp64));
}

TEST(CliWeightedSum, FormsAgreeWithFp64) {
  Fixture fixture;
  WeightedSumOptions options;
  options.rows = 33;
  options.dim = 65;
  options.check = true;
  options.measure.warmup = 1;
  options.measure.repeats = 2;
  options.measure.min_sample_ms = 0;
  const auto results = bench_weighted_sum(fixture.context, options);
  ASSERT_EQ(results.size(), 4u);
  for (const Measurement& r : results) {
    EXPECT_EQ(r.status, RunStatus::kOk) << r.message;
    EXPECT_LT(*r[kError], 1e-4) << r.implementation << " " << r.pass;
    EXPECT_GT(*r[kGbPerS], 0);
  }
  options.rows = std::int64_t{1} << 40;
  options.dim = std::int64_t{1} << 30;
  for (const Measurement& r : bench_weighted_sum(fixture.context, options)) {
    EXPECT_EQ(r.status, RunStatus::kOutOfMemory);
    EXPECT_THAT(r.message, HasSubstr("fewer rows"));
  }
}

}  // namespace
}  // namespace flashlab::lab
