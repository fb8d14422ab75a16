// Every CPU implementation over the conformance list; every other instruction set this machine has
// over a seeded part of it; and backward from merged partial forwards, the property that lets
// attention be split along its keys.

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <mutex>
#include <thread>

#include "flashlab/flashlab.h"
#include "lab/check/check.h"
#include "reference/oracle.h"

#ifndef FLASHLAB_TEST_SELECTION
#define FLASHLAB_TEST_SELECTION 1  // every n-th case; sanitized builds take fewer
#endif

namespace flashlab::lab {
namespace {

using cases::Case;

std::vector<Case> every_nth(const std::vector<Case>& list, std::size_t n, std::size_t first) {
  std::vector<Case> out;
  for (std::size_t i = first; i < list.size(); i += n) out.push_back(list[i]);
  return out;
}

class Conformance : public testing::TestWithParam<DType> {};

TEST_P(Conformance, EveryImplementationPassesTheList) {
  auto context = Context::create();
  ASSERT_TRUE(context.ok()) << context.status().message();
  // fp64's kernels are fp32's templates, and its oracle, in long double, is ten times as slow;
  // fp16's differ from bf16's in how an element is read and written.
  // A prime step, so that every family of the list is met.
  const std::size_t step = GetParam() == DType::kFp64 ? 7 : GetParam() == DType::kFp16 ? 2 : 1;
  const auto list =
      every_nth(cases::conformance_cases(GetParam()), step * FLASHLAB_TEST_SELECTION, 0);
  // The oracle is held to itself: what its plan adds, layouts, guards and threads, a third shows.
  const std::vector<std::string> all = implementations({});
  std::vector<std::string> without_oracle = all;
  std::erase(without_oracle, "reference");
  ASSERT_LT(without_oracle.size(), all.size());
  int shown = 0;
  for (std::size_t first = 0; first < 3; ++first) {
    CheckRun run;
    run.cases = every_nth(list, 3, first);
    run.implementations = first == 0 ? all : without_oracle;
    run.options.trap_reads_past_end = true;
    run.jobs = 2;
    const CheckSummary summary = check_cases(*context, run);
    EXPECT_EQ(summary.reports.size(), run.cases.size() * run.implementations.size());
    for (const CheckReport& report : summary.reports) {
      if (report.failed() && ++shown <= 20) ADD_FAILURE() << report.failure();
      // A type that an implementation declares must then be taken with every feature of the list.
      if (report.status == RunStatus::kUnsupported) {
        ADD_FAILURE() << report.implementation << " " << report.problem.describe() << ": "
                      << report.message;
      }
    }
    EXPECT_EQ(summary.failed, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, Conformance,
                         testing::Values(DType::kFp32, DType::kBf16, DType::kFp16, DType::kFp64),
                         [](const auto& test) { return std::string(to_string(test.param)); });

// Every two features at once: of fp32 each pair with two fills, of bf16 with one, of the others a
// part. `flashlab check --pairs` runs the whole list.
TEST_P(Conformance, EveryImplementationTakesPairs) {
  constexpr std::int64_t kTile = 64;
  const std::size_t part = GetParam() == DType::kFp32   ? 4
                           : GetParam() == DType::kBf16 ? 8
                           : GetParam() == DType::kFp16 ? 16
                                                        : 32;
  auto context = Context::create();
  ASSERT_TRUE(context.ok()) << context.status().message();
  CheckRun run;
  run.cases = every_nth(cases::pair_cases(kTile, GetParam()), part * FLASHLAB_TEST_SELECTION, 1);
  run.implementations = implementations({});
  std::erase(run.implementations, "reference");
  run.jobs = 2;
  const CheckSummary summary = check_cases(*context, run);
  EXPECT_EQ(summary.reports.size(), run.cases.size() * run.implementations.size());
  for (const CheckReport& report : summary.reports) {
    EXPECT_TRUE(report.passed()) << report.failure() << report.message;
  }
}

TEST(ConformanceIsa, OtherInstructionSetsPassAPartOfTheList) {
  std::vector<Context> contexts;
  for (CpuIsa isa : {CpuIsa::kScalar, CpuIsa::kNeon, CpuIsa::kAvx2, CpuIsa::kAvx512,
                     CpuIsa::kAvx512Bf16, CpuIsa::kAmx}) {
    if (!supported(isa) || isa == best_cpu_isa()) continue;
    auto context = Context::create({.cpu_isa = isa});
    ASSERT_TRUE(context.ok()) << to_string(isa) << ": " << context.status().message();
    EXPECT_EQ(context->cpu_isa(), isa);
    contexts.push_back(std::move(*context));
  }
  // A prime step, so that every family of the list is met.
  const auto list = every_nth(cases::conformance_cases(), 7 * FLASHLAB_TEST_SELECTION, 3);
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  const auto work = [&] {
    for (std::size_t n = next++; n < list.size(); n = next++) {
      const auto truth = CaseTruth::create(list[n]);
      for (const Context& context : contexts) {
        for (const char* implementation : {"cpu", "fa2-plain"}) {
          std::string failure;
          if (truth.ok()) {
            const CheckReport report = check_case(context, *truth, implementation);
            if (report.failed()) failure = report.failure();
          } else {
            failure = truth.status().message();
          }
          if (failure.empty()) continue;
          std::lock_guard lock(mutex);
          ADD_FAILURE() << to_string(context.cpu_isa()) << ": " << failure;
        }
      }
    }
  };
  std::thread other(work);
  work();
  other.join();
}

// Keys split in two: forward of each part, merge, backward of each part with the merged o and lse.
// The parts' gradients are those of the whole.
TEST(ConformanceMerge, BackwardOfPartsUsesTheStatisticsItIsGiven) {
  constexpr std::int64_t kSq = 33, kH = 4, kHk = 2, kD = 24, kFirst = 40, kSecond = 27;
  constexpr std::int64_t kSk = kFirst + kSecond;
  Case whole;
  whole.name = "whole";
  whole.batch = 1;
  whole.heads_q = kH;
  whole.heads_k = kHk;
  whole.seqlen_q = kSq;
  whole.seqlen_k = kSk;
  whole.head_dim = whole.head_dim_v = kD;
  const CaseData data = CaseData::create(whole).value();
  const BackwardTensors t = data.backward_tensors();
  const auto sizes = reference::sizes_of(t.q, t.k, t.v);
  const auto exact = reference::backward(t, {}, reference::Sample::everything(sizes),
                                         reference::Statistics::kRecomputed)
                         .value();
  const Context context = std::move(Context::create({.threads = 2}).value());
  for (const std::string& name : implementations({})) {
    Options options;
    options.implementation = name;
    std::vector<float> o[2], lse[2], dq[2];
    std::vector<float> merged_o(kSq * kH * kD), merged_lse(kSq * kH);
    std::vector<float> dk(kSk * kHk * kD), dv(kSk * kHk * kD);
    std::vector<Partial> parts;
    const auto slice = [&](const ConstTensor& all, int part) {
      const auto* first = static_cast<const float*>(all.data) + (part == 0 ? 0 : kFirst * kHk * kD);
      return tensor(first, {1, part == 0 ? kFirst : kSecond, kHk, kD});
    };
    const auto gradient = [&](std::vector<float>& all, int part) {
      return tensor(all.data() + (part == 0 ? 0 : kFirst * kHk * kD),
                    {1, part == 0 ? kFirst : kSecond, kHk, kD});
    };
    for (int part = 0; part < 2; ++part) {
      o[part].resize(kSq * kH * kD);
      lse[part].resize(kSq * kH);
      dq[part].resize(kSq * kH * kD);
      ForwardTensors f;
      f.q = t.q;
      f.k = slice(t.k, part);
      f.v = slice(t.v, part);
      f.o = tensor(o[part].data(), {1, kSq, kH, kD});
      f.lse = tensor(lse[part].data(), {1, kH, kSq});
      const Status status = forward(context, {}, f, options);
      ASSERT_TRUE(status.ok()) << name << ": " << status.message();
      parts.push_back({f.o, *f.lse});
    }
    const Tensor all_o = tensor(merged_o.data(), {1, kSq, kH, kD});
    const Tensor all_lse = tensor(merged_lse.data(), {1, kH, kSq});
    ASSERT_TRUE(merge(context, {}, parts, all_o, all_lse).ok());
    for (int part = 0; part < 2; ++part) {
      BackwardTensors b = t;
      b.k = slice(t.k, part);
      b.v = slice(t.v, part);
      b.o = all_o;
      b.lse = all_lse;
      b.dq = tensor(dq[part].data(), {1, kSq, kH, kD});
      b.dk = gradient(dk, part);
      b.dv = gradient(dv, part);
      const Status status = backward(context, {}, b, options);
      ASSERT_TRUE(status.ok()) << name << ": " << status.message();
    }
    double worst = 0;
    for (std::size_t r = 0; r < exact.queries.size(); ++r) {
      const auto token =
          static_cast<std::size_t>(exact.queries[r].position * kH + exact.queries[r].head);
      for (std::size_t d = 0; d < kD; ++d) {
        const double sum = static_cast<double>(dq[0][token * kD + d]) + dq[1][token * kD + d];
        worst = std::max(worst, std::fabs(sum - exact.dq[r * kD + d]));
      }
    }
    for (std::size_t r = 0; r < exact.keys.size(); ++r) {
      const auto token =
          static_cast<std::size_t>(exact.keys[r].position * kHk + exact.keys[r].head);
      for (std::size_t d = 0; d < kD; ++d) {
        worst = std::max(worst, std::fabs(dk[token * kD + d] - exact.dk[r * kD + d]));
        worst = std::max(worst, std::fabs(dv[token * kD + d] - exact.dv[r * kD + d]));
      }
    }
    EXPECT_LT(worst, 5e-6) << name;
  }
}

}  // namespace
}  // namespace flashlab::lab
