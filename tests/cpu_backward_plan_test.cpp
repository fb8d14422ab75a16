// What backward's plan promises: who owns which keys, memory linear in the lengths, equal bits from
// run to run, and for deterministic plans from any number of threads.

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "cpu/backward_schedule.h"
#include "cpu_backward_trial.h"

namespace flashlab::testing {
namespace {

using internal::BackwardSchedule;
using internal::Geometry;
using internal::KeySplit;

Geometry geometry(std::int64_t heads, std::int64_t seqlen_q, std::int64_t seqlen_k, bool causal) {
  Geometry g;
  g.batch = 1;
  g.heads_q = g.heads_k = heads;
  g.seqlen_q = seqlen_q;
  g.seqlen_k = seqlen_k;
  g.head_dim = g.head_dim_v = 64;
  if (causal) g.bounds.right = 0;
  return g;
}

TEST(CpuBackwardSchedule, SplitsOwnEveryKeyOnce) {
  for (bool causal : {false, true}) {
    for (std::int64_t heads : {1, 3}) {
      for (std::int64_t seqlen_k : {1, 63, 64, 65, 500, 4096, 10000}) {
        for (int threads : {1, 2, 7, 64}) {
          SCOPED_TRACE(std::to_string(seqlen_k) + " keys, " + std::to_string(threads));
          const Geometry g = geometry(heads, 777, seqlen_k, causal);
          BackwardSchedule s = internal::schedule_backward(g, threads, 192, 64, 32);
          EXPECT_LE(s.splits.size(), 32u);
          EXPECT_EQ(s.block_keys % 64, 0);
          std::sort(s.splits.begin(), s.splits.end(),
                    [](const KeySplit& a, const KeySplit& b) { return a.key_begin < b.key_begin; });
          std::int64_t next = 0;
          for (const KeySplit& split : s.splits) {
            EXPECT_EQ(split.key_begin, next);
            EXPECT_LT(split.key_begin, split.key_end);
            next = split.key_end;
            // Every query that sees one of the keys is in the range.
            for (std::int64_t i = 0; i < g.seqlen_q; ++i) {
              const bool sees = g.first_key(i) < split.key_end && g.end_key(i) > split.key_begin;
              const bool inside = i >= split.query_begin && i < split.query_end;
              EXPECT_TRUE(inside || !sees) << "query " << i;
            }
          }
          EXPECT_EQ(next, seqlen_k);
        }
      }
    }
  }
}

TEST(CpuBackwardSchedule, BalancesThreads) {
  for (bool causal : {false, true}) {
    for (std::int64_t heads : {1, 3, 8}) {
      for (int threads : {2, 3, 4}) {
        const Geometry g = geometry(heads, 4096, 4096, causal);
        const BackwardSchedule s = internal::schedule_backward(g, threads, 192, 64, 32);
        EXPECT_GT(s.balance, 0.93) << heads << " heads, " << threads << " threads, " << causal;
      }
    }
  }
}

TEST(CpuBackwardSchedule, OneThreadNeedsNoSplit) {
  EXPECT_EQ(
      internal::schedule_backward(geometry(1, 4096, 4096, true), 1, 192, 64, 32).splits.size(), 1u);
}

Ask several_splits() {
  Ask ask;
  ask.heads_q = 4;
  ask.heads_k = 2;
  ask.seqlen_q = 300;
  ask.seqlen_k = 700;
  ask.causal = Causal::kBottomRight;
  ask.lse_gradient = true;
  return ask;
}

struct Bits {
  std::vector<std::uint8_t> dq, dk, dv;
  friend bool operator==(const Bits&, const Bits&) = default;
};

Bits run(const Ask& ask, const Context& context) {
  Trial trial(ask);
  const Status status = trial.run(context);
  EXPECT_TRUE(status.ok()) << status.message();
  return {trial.dq.bytes, trial.dk.bytes, trial.dv.bytes};
}

TEST(CpuBackwardRepeat, EqualBitsFromRunToRun) {
  for (CpuIsa isa : testable_isas()) {
    for (DType dtype : {DType::kFp32, DType::kBf16}) {
      for (int threads : {2, 3}) {
        Ask ask = several_splits();
        ask.dtype = dtype;
        const Context context = make_context(isa, threads);
        const Bits first = run(ask, context);
        for (int i = 0; i < 3; ++i) EXPECT_TRUE(run(ask, context) == first) << to_string(isa);
      }
    }
  }
}

TEST(CpuBackwardRepeat, DeterministicDoesNotDependOnThreads) {
  for (CpuIsa isa : testable_isas()) {
    for (DType dtype : {DType::kFp32, DType::kBf16}) {
      Ask ask = several_splits();
      ask.dtype = dtype;
      ask.deterministic = true;
      const Bits one = run(ask, make_context(isa, 1));
      for (int threads : {2, 3, 5}) {
        EXPECT_TRUE(run(ask, make_context(isa, threads)) == one)
            << to_string(isa) << " " << threads << " threads";
      }
    }
  }
}

TEST(CpuBackwardRepeat, ConcurrentCallsOfOneContext) {
  const Ask ask = several_splits();
  const Context context = make_context(CpuIsa::kAutomatic, 2);
  const Bits expected = run(ask, context);
  std::vector<Bits> got(3);
  std::vector<std::thread> callers;
  for (Bits& bits : got) callers.emplace_back([&] { bits = run(ask, context); });
  for (std::thread& caller : callers) caller.join();
  for (const Bits& bits : got) EXPECT_TRUE(bits == expected);
}

Problem long_problem(std::int64_t seqlen, bool causal, DType dtype) {
  BackwardTensors t;
  const auto rows = [&] { return contiguous_spec(dtype, {1, seqlen, 8, 64}); };
  t.q.spec = t.k.spec = t.v.spec = t.o.spec = t.d_o.spec = rows();
  t.dq.spec = t.dk.spec = t.dv.spec = rows();
  t.lse.spec = contiguous_spec(DType::kFp32, {1, 8, seqlen});
  Options options;
  options.implementation = "cpu";
  if (causal) options.causal = Causal::kTopLeft;
  return describe(t, options);
}

TEST(CpuBackwardPlan, WorkspaceIsLinearInTheLength) {
  for (DType dtype : {DType::kFp32, DType::kBf16}) {
    const Context context = make_context(CpuIsa::kAutomatic, 2);
    const auto short_plan = plan(context, long_problem(4096, true, dtype));
    const auto long_plan = plan(context, long_problem(65536, true, dtype));
    ASSERT_TRUE(short_plan.ok() && long_plan.ok());
    EXPECT_LE(long_plan->workspace_bytes(), 16 * short_plan->workspace_bytes());
    // One fp32 copy of q per split, and little else: 8 heads on 2 threads need one.
    EXPECT_LE(long_plan->workspace_bytes(), std::size_t{65536} * 8 * (64 + 1) * 4 + (4 << 20));
  }
}

TEST(CpuBackwardPlan, SaysWhatRuns) {
  const Context context = make_context(CpuIsa::kScalar, 2);
  const auto made = plan(context, long_problem(1024, true, DType::kBf16));
  ASSERT_TRUE(made.ok()) << made.status().message();
  const std::string text = made->to_string();
  for (const char* part : {"row_delta_scalar", "flash_bwd_scalar_fp32", "finish_dq_scalar",
                           "query tile", "key block", "tasks", "key split", "delta",
                           "dq_accumulators", "thread_scratch", "bf16 is widened to fp32"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  }
}

TEST(CpuBackwardPlan, SizesOfAnAbsurdWorkspaceDoNotWrap) {
  // A valid problem whose dq alone has 2^58 bytes: the allocator refuses it, if asked the truth.
  const std::int64_t seqlen_q = std::int64_t{1} << 52;
  BackwardTensors t;
  const auto rows = [](std::int64_t seqlen) {
    return contiguous_spec(DType::kFp32, {1, seqlen, 1, 16});
  };
  t.q.spec = t.o.spec = t.d_o.spec = t.dq.spec = rows(seqlen_q);
  t.k.spec = t.v.spec = t.dk.spec = t.dv.spec = rows(64);
  t.lse.spec = contiguous_spec(DType::kFp32, {1, 1, seqlen_q});
  Options options;
  options.implementation = "cpu";
  const Context context = make_context(CpuIsa::kAutomatic, 2);
  const auto made = plan(context, describe(t, options));
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_GE(made->workspace_bytes(), std::size_t{1} << 58);
}

}  // namespace
}  // namespace flashlab::testing
