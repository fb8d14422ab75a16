// The runner of `check`: what it reports, and that a wrong output in any place is a failure.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>

#include "flashlab/flashlab.h"
#include "lab/check/check.h"
#include "reference/view.h"

namespace flashlab::lab {
namespace {

using cases::Case;
using testing::HasSubstr;

Case plain_case(const char* name = "small") {
  Case c;
  c.name = name;
  c.batch = 1;
  c.heads_q = 4;
  c.heads_k = 2;
  c.seqlen_q = 7;
  c.seqlen_k = 11;
  c.head_dim = 5;
  c.head_dim_v = 6;
  return c;
}

Context context() {
  return std::move(Context::create({.threads = 2}).value());
}

TEST(CheckCase, TheReferencePassesAndSaysWhatWasChecked) {
  Case c = plain_case();
  c.deterministic = true;
  const CheckReport report = check_case(context(), c, "reference");
  EXPECT_TRUE(report.passed()) << report.failure();
  EXPECT_EQ(report.sample, "all");
  std::vector<std::string> what;
  for (const CheckItem& item : report.items) what.push_back(item.what);
  for (const char* expected : {"forward o", "forward lse", "forward guards", "forward repeat",
                               "forward threads", "backward dq", "backward dk", "backward dv",
                               "backward guards", "backward repeat", "backward threads"}) {
    EXPECT_THAT(what, testing::Contains(expected));
  }
}

TEST(CheckCase, PassesCanBeChosen) {
  CheckOptions options;
  options.passes = {Pass::kForward};
  options.repeat = false;
  const CheckReport report = check_case(context(), plain_case(), "reference", options);
  EXPECT_TRUE(report.passed());
  EXPECT_EQ(report.items.size(), 3u);  // o, lse, guards
  options.passes = {Pass::kBackward};
  for (const CheckItem& item : check_case(context(), plain_case(), "reference", options).items) {
    EXPECT_THAT(item.what, HasSubstr("backward"));
  }
}

TEST(CheckCase, ARefusalIsNoFailureAndAnErrorIs) {
  Case c = plain_case();
  c.precision = Precision::kTf32;
  CheckReport report = check_case(context(), c, "reference");
  EXPECT_EQ(report.status, RunStatus::kUnsupported);
  EXPECT_FALSE(report.failed());
  EXPECT_FALSE(report.passed());
  EXPECT_THAT(report.message, HasSubstr("tf32"));

  report = check_case(context(), plain_case(), "no-such-implementation");
  EXPECT_EQ(report.status, RunStatus::kError);
  EXPECT_TRUE(report.failed());
  EXPECT_THAT(report.failure(), HasSubstr("no-such-implementation"));

  CheckOptions options;
  options.memory_limit_bytes = 100;
  report = check_case(context(), plain_case(), "reference", options);
  EXPECT_EQ(report.status, RunStatus::kOutOfMemory);
  EXPECT_TRUE(report.failed());
}

TEST(CheckCases, ReportsInOrderWithProgress) {
  const Context ctx = context();
  CheckRun run;
  for (int n = 0; n < 6; ++n)
    run.cases.push_back(plain_case(("case-" + std::to_string(n)).c_str()));
  run.implementations = {"reference", "no-such-implementation"};
  run.jobs = 3;
  int calls = 0, last = 0;
  run.progress = [&](int done, int planned, const CheckReport&) {
    ++calls;
    EXPECT_EQ(planned, 12);
    EXPECT_EQ(done, last + 1);
    last = done;
  };
  const CheckSummary summary = check_cases(ctx, run);
  EXPECT_EQ(calls, 12);
  ASSERT_EQ(summary.reports.size(), 12u);
  for (std::size_t n = 0; n < 12; ++n) {
    EXPECT_EQ(summary.reports[n].problem.name, "case-" + std::to_string(n / 2));
    EXPECT_EQ(summary.reports[n].implementation, run.implementations[n % 2]);
  }
  EXPECT_EQ(summary.passed, 6);
  EXPECT_EQ(summary.failed, 6);
  EXPECT_FALSE(summary.ok());
}

TEST(CheckCases, CancellationKeepsWhatWasDone) {
  const Context ctx = context();
  std::atomic<bool> cancel{false};
  CheckRun run;
  run.cases.assign(10, plain_case());
  run.implementations = {"reference"};
  run.jobs = 1;
  run.cancel = &cancel;
  run.progress = [&](int done, int, const CheckReport&) { cancel = done == 3; };
  const CheckSummary summary = check_cases(ctx, run);
  EXPECT_TRUE(summary.cancelled);
  EXPECT_EQ(summary.reports.size(), 3u);
  EXPECT_FALSE(summary.ok());
}

TEST(CheckCases, TheRulerIsMeasuredWhenAsked) {
  CheckRun run;
  run.ruler = true;
  const CheckSummary summary = check_cases(context(), run);
  EXPECT_FALSE(summary.ruler.empty());
  for (const RulerReading& reading : summary.ruler) EXPECT_GT(reading.expected, 0) << reading.name;
}

// Runs the reference so that `data` holds right outputs.
void run_reference(const CaseData& data) {
  const Context ctx = context();
  Options options = data.problem().options();
  options.implementation = "reference";
  ASSERT_TRUE(forward(ctx, {}, data.forward_tensors(), options).ok());
  ASSERT_TRUE(backward(ctx, {}, data.backward_tensors(), options).ok());
}

TEST(ErrorVsFp64, SeesOneWrongElementOfAnyOutput) {
  const CaseData data = CaseData::create(plain_case()).value();
  run_reference(data);
  const ErrorVsFp64 right = error_vs_fp64(data, Pass::kForward).value();
  EXPECT_TRUE(right.accepted) << right.worst;
  EXPECT_EQ(right.sample, "all");
  EXPECT_LT(right.error, 1e-6);
  EXPECT_GT(right.naive_error, 0);
  EXPECT_TRUE(error_vs_fp64(data, Pass::kBackward).value().accepted);

  struct Output {
    Tensor tensor;
    Pass pass;
    const char* name;
  };
  const ForwardTensors f = data.forward_tensors();
  const BackwardTensors b = data.backward_tensors();
  for (const Output& output : {Output{f.o, Pass::kForward, "o["},
                               {*f.lse, Pass::kForward, "lse["},
                               {b.dq, Pass::kBackward, "dq["},
                               {b.dk, Pass::kBackward, "dk["},
                               {b.dv, Pass::kBackward, "dv["}}) {
    auto* values = static_cast<float*>(output.tensor.data);
    for (std::int64_t n :
         {std::int64_t{0}, output.tensor.spec.elements() / 2, output.tensor.spec.elements() - 1}) {
      const float before = values[n];
      for (float wrong : {before + 0.01f, -before, std::nanf("")}) {
        values[n] = wrong;
        const ErrorVsFp64 got = error_vs_fp64(data, output.pass).value();
        EXPECT_FALSE(got.accepted) << output.name << n << " = " << wrong;
        EXPECT_THAT(got.worst, HasSubstr(output.name));
      }
      values[n] = before;
    }
  }
}

TEST(ErrorVsFp64, TakesASampleOfLargeProblemsAndSaysSo) {
  Case c;
  c.batch = 1;
  c.heads_q = 2;
  c.heads_k = 1;
  c.seqlen_q = 2048;
  c.seqlen_k = 8256;  // 2 x 2048 x 8256 x 128 = 2^32 + 1 % multiply-adds
  const CaseData data = CaseData::create(c).value();
  // Right values in every row would take the full oracle: only the sampled rows can be looked at,
  // and none of them has been written.
  const ErrorVsFp64 unwritten = error_vs_fp64(data, Pass::kForward).value();
  EXPECT_EQ(unwritten.sample, "64 rows of 2 heads, seed 1");
  EXPECT_FALSE(unwritten.accepted);
}

TEST(ErrorVsFp64, RefusesWhatItCannotKnow) {
  Case c = plain_case();
  c.gradient_mode = GradientMode::kAccumulate;
  const CaseData data = CaseData::create(c).value();
  EXPECT_EQ(error_vs_fp64(data, Pass::kBackward).status().code(), StatusCode::kInvalidArgument);
}

TEST(Accounting, AddsTheWorkspaceOfAnImplementation) {
  const Context ctx = context();
  const auto list = accounting(ctx, plain_case(), Pass::kForward, "reference");
  ASSERT_TRUE(list.ok()) << list.status().message();
  EXPECT_EQ(list->size(), 5u);
  Case c = plain_case();
  c.head_dim = 0;
  EXPECT_FALSE(accounting(ctx, c, Pass::kForward, "reference").ok());
}

}  // namespace
}  // namespace flashlab::lab
