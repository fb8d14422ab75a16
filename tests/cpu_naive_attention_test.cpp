// `naive` against an fp64 loop, its steps one by one, and its memory.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "cpu/naive/plan.h"
#include "cpu_plain_oracle.h"
#include "runtime/program/observer.h"

namespace flashlab {
namespace {

using testing::Ask;
using testing::Trial;

Context make_context(int threads = 2, Allocator* allocator = nullptr,
                     CpuIsa isa = CpuIsa::kAutomatic) {
  ContextOptions options;
  options.threads = threads;
  options.allocator = allocator;
  options.cpu_isa = isa;
  auto context = Context::create(options);
  EXPECT_TRUE(context.ok()) << context.status().message();
  return std::move(*context);
}

void run(Trial& trial, const Context& context) {
  trial.solve();
  Status status = forward(context, {}, trial.forward_tensors(), trial.options("naive"));
  ASSERT_TRUE(status.ok()) << status.message();
  status = backward(context, {}, trial.backward_tensors(), trial.options("naive"));
  ASSERT_TRUE(status.ok()) << status.message();
}

// P and dS are rounded to T, so an error is some roundings of T where scores are of order one.
void expect_close(const Trial& t) {
  const DType type = t.ask.dtype;
  const double epsilon = type == DType::kFp64   ? 0x1p-53
                         : type == DType::kFp32 ? 0x1p-24
                         : type == DType::kFp16 ? 0x1p-11
                                                : 0x1p-8;
  for (const auto& [name, got, want, roundings] :
       {std::tuple("o", &t.o, &t.want_o, 3), std::tuple("dq", &t.dq, &t.want_dq, 6),
        std::tuple("dk", &t.dk, &t.want_dk, 6), std::tuple("dv", &t.dv, &t.want_dv, 6)}) {
    const double sums = size_of(type) >= 4 ? 4 : 1;
    EXPECT_LE(distance(*got, *want), roundings * sums * epsilon * (1 + testing::largest(*want)))
        << name;
  }
  const double lse_epsilon = type == DType::kFp64 ? 1e-14 : 1e-6;
  EXPECT_LE(distance(t.lse, t.want_lse), lse_epsilon * (2 + testing::largest(t.want_lse)));
}

TEST(NaiveAttention, LengthsAroundBlockEdges) {
  const Context context = make_context();
  for (std::int64_t length : {1, 2, 15, 17, 127, 128, 129, 260}) {
    for (Causal causal : {Causal::kNone, Causal::kTopLeft, Causal::kBottomRight}) {
      Trial trial({.heads_q = 2,
                   .seqlen_q = length,
                   .seqlen_k = 261 - length,
                   .head_dim = 16,
                   .head_dim_v = 24,
                   .causal = causal,
                   .lse_gradient = true});
      SCOPED_TRACE(length);
      run(trial, context);
      expect_close(trial);
    }
  }
}

TEST(NaiveAttention, EveryTypeAndHeadDimension) {
  const Context context = make_context();
  for (DType dtype : {DType::kFp64, DType::kFp32, DType::kFp16, DType::kBf16}) {
    for (std::int64_t dim : {1, 3, 17, 64, 150}) {
      Trial trial({.batch = 2,
                   .heads_q = 4,
                   .heads_k = 2,
                   .seqlen_q = 37,
                   .seqlen_k = 70,
                   .head_dim = dim,
                   .head_dim_v = dim + 5,
                   .dtype = dtype,
                   .causal = Causal::kBottomRight,
                   .lse_gradient = true,
                   .fp64_lse = dtype == DType::kFp64});
      SCOPED_TRACE(std::string(to_string(dtype)) + " d " + std::to_string(dim));
      run(trial, context);
      expect_close(trial);
    }
  }
}

TEST(NaiveAttention, MasksLayoutsAndModes) {
  const Context context = make_context();
  for (Ask::MaskKind mask : {Ask::MaskKind::kBool, Ask::MaskKind::kAdditive}) {
    for (bool broadcast : {false, true}) {
      for (bool heads_first : {false, true}) {
        Trial trial({.batch = 2,
                     .heads_q = 6,
                     .heads_k = 2,
                     .seqlen_q = 70,
                     .seqlen_k = 70,
                     .head_dim = 20,
                     .head_dim_v = 12,
                     .causal = Causal::kCausal,
                     .mask = mask,
                     .lse_gradient = true,
                     .fp32_outputs = true,
                     .accumulate = heads_first,
                     .broadcast_mask = broadcast,
                     .row_padding = 3,
                     .heads_first = heads_first});
        run(trial, context);
        expect_close(trial);
      }
    }
  }
}

TEST(NaiveAttention, LargeScoresDoNotOverflow) {
  // Scores reach hundreds, exp(89) is beyond fp32: only differences to the maximum may be raised.
  Trial trial({.seqlen_q = 40, .seqlen_k = 150, .head_dim = 16, .scale = 40.0f});
  run(trial, make_context());
  EXPECT_LE(distance(trial.o, trial.want_o), 1e-3);
  EXPECT_LE(distance(trial.lse, trial.want_lse), 1e-6 * testing::largest(trial.want_lse));
}

TEST(NaiveAttention, EmptyRowsNoKeysNoQueries) {
  const Context context = make_context();
  Trial empty(
      {.seqlen_q = 70, .seqlen_k = 40, .causal = Causal::kBottomRight, .lse_gradient = true});
  empty.d_lse.set(empty.d_lse.at(0, 0, 3), NAN);
  run(empty, context);
  expect_close(empty);
  EXPECT_EQ(empty.lse(0, 0, 29), -testing::kInfinity);
  for (auto [queries, keys] : {std::pair(5, 0), std::pair(0, 5)}) {
    Trial none({.seqlen_q = queries, .seqlen_k = keys});
    run(none, context);
    expect_close(none);
  }
}

TEST(NaiveAttention, SpecialValuesReachTheRowsThatSeeThemAndNoOthers) {
  const Context context = make_context();
  for (DType dtype : {DType::kFp32, DType::kBf16}) {
    for (int which = 0; which < 4; ++which) {
      Trial trial({.heads_q = 2,
                   .heads_k = 1,
                   .seqlen_q = 90,
                   .seqlen_k = 90,
                   .dtype = dtype,
                   .causal = Causal::kCausal,
                   .mask = Ask::MaskKind::kBool});
      testing::Buffer* tensors[] = {&trial.q, &trial.k, &trial.v, &trial.d_o};
      tensors[which]->set(tensors[which]->at(0, 71, 0, 2), NAN);
      run(trial, context);
      SCOPED_TRACE(which);
      expect_close(trial);
    }
  }
}

TEST(NaiveAttention, EveryInstructionSet) {
  for (CpuIsa isa : {CpuIsa::kScalar, CpuIsa::kAvx2, CpuIsa::kAvx512}) {
    if (!supported(isa)) continue;
    Trial trial({.seqlen_q = 130, .seqlen_k = 190, .head_dim = 33, .lse_gradient = true});
    run(trial, make_context(2, nullptr, isa));
    expect_close(trial);
  }
}

TEST(NaiveAttention, BitsDoNotDependOnTheNumberOfThreads) {
  const Ask ask{.batch = 2,
                .heads_q = 4,
                .heads_k = 2,
                .seqlen_q = 150,
                .seqlen_k = 150,
                .causal = Causal::kCausal,
                .lse_gradient = true};
  Trial one(ask);
  run(one, make_context(1));
  for (int threads : {2, 5}) {
    Trial many(ask);
    run(many, make_context(threads));
    EXPECT_TRUE(same_bits(one.o, many.o) && same_bits(one.lse, many.lse));
    EXPECT_TRUE(same_bits(one.dq, many.dq) && same_bits(one.dk, many.dk));
    EXPECT_TRUE(same_bits(one.dv, many.dv));
  }
}

class Names : public internal::StepObserver {
 public:
  void step_finished(std::string_view name, double milliseconds) override {
    names.emplace_back(name);
    EXPECT_GE(milliseconds, 0);
    total += milliseconds;
  }
  std::vector<std::string> names;
  double total = 0;
};

TEST(NaiveAttention, ReportsTheTimeOfEachStepWhileObserved) {
  const Context context = make_context();
  Trial trial({.heads_q = 4, .heads_k = 4, .seqlen_q = 200, .seqlen_k = 200});
  Names outer, inner;
  {
    internal::ObserveSteps scope(outer);
    run(trial, context);
    internal::ObserveSteps nested(inner);
    run(trial, context);
  }
  run(trial, context);
  EXPECT_THAT(outer.names, ::testing::ElementsAre("scores", "softmax", "values", "probabilities",
                                                  "dv", "ds", "dq", "dk"));
  EXPECT_EQ(inner.names, outer.names);
  EXPECT_GT(outer.total, 0);
}

TEST(NaiveAttention, StepsRunOneByOneAndLeaveTheirMatrices) {
  const Context context = make_context();
  Trial trial(
      {.heads_q = 2, .heads_k = 2, .seqlen_q = 30, .seqlen_k = 50, .causal = Causal::kBottomRight});
  trial.solve();
  const ForwardTensors t = trial.forward_tensors();
  auto made = plan(context, describe(t, trial.options("naive")));
  ASSERT_TRUE(made.ok());
  const auto* naive = dynamic_cast<const internal::NaivePlan<float>*>(&made->state());
  ASSERT_NE(naive, nullptr);
  std::vector<float> memory(made->workspace_bytes() / sizeof(float) + 64);
  void* aligned = memory.data();
  std::size_t space = memory.size() * sizeof(float);
  ASSERT_NE(std::align(256, made->workspace_bytes(), aligned, space), nullptr);
  const Workspace workspace{aligned, made->workspace_bytes()};
  const auto element = [&](std::size_t offset, int h, int i, int j) {
    return reinterpret_cast<const float*>(static_cast<char*>(aligned) +
                                          offset)[(h * 30 + i) * 50 + j];
  };

  const internal::KeyRows keys(naive->geometry, t);
  naive->scores(context.state(), t, keys, workspace);
  double dot = 0;
  for (int d = 0; d < 8; ++d) dot += trial.q(0, 7, 1, d) * trial.k(0, 20, 1, d);
  EXPECT_NEAR(element(naive->scores_offset, 1, 7, 20), dot / std::sqrt(8.0), 1e-5);
  EXPECT_EQ(element(naive->scores_offset, 1, 7, 28), -testing::kInfinity);  // 28 > 7 + 20

  naive->softmax(context.state(), t, workspace);
  double sum = 0;
  for (int j = 0; j < 50; ++j) sum += element(naive->probabilities_offset, 1, 7, j);
  EXPECT_NEAR(sum, 1, 1e-6);
  EXPECT_NEAR(trial.lse(0, 1, 7), trial.want_lse[trial.lse.at(0, 1, 7)], 1e-5);

  naive->values(context.state(), t, keys, workspace);
  EXPECT_LE(distance(trial.o, trial.want_o), 1e-6);
}

// Refuses what does not fit, and remembers how much was asked for.
class SmallMemory : public Allocator {
 public:
  Result<void*> allocate(std::size_t bytes, std::size_t, Stream, Tag) noexcept override {
    asked = bytes;
    return Status::out_of_memory({"workspace", "", "", ""});
  }
  void deallocate(void*, std::size_t, Stream) noexcept override {}
  std::size_t asked = 0;
};

TEST(NaiveAttention, MatricesAreAccountedForAndTooMuchIsOutOfMemory) {
  SmallMemory memory;
  const Context context = make_context(1, &memory);
  const auto ask = [&](std::int64_t batch, std::int64_t heads, std::int64_t length, DType dtype) {
    // Keys and values are never read: the plan is all that is made.
    ForwardTensors t;
    float nothing = 0;
    t.q = tensor(static_cast<void*>(&nothing), {batch, length, heads, 4}, dtype);
    t.k = t.v = t.q;
    t.o = tensor(static_cast<void*>(&nothing), {batch, length, heads, 4}, dtype);
    t.o.data = nullptr, t.q.data = t.k.data = t.v.data = nullptr;
    Options options;
    options.implementation = "naive";
    return plan(context, describe(t, options));
  };
  auto small = ask(2, 8, 1000, DType::kBf16);
  ASSERT_TRUE(small.ok()) << small.status().message();
  EXPECT_EQ(small->regions()[0].name, "scores [2, 8, 1000, 1000] fp32");
  EXPECT_EQ(small->regions()[0].bytes, 2u * 8 * 1000 * 1000 * 4);
  EXPECT_EQ(small->regions()[1].bytes, 2u * 8 * 1000 * 1000 * 2);
  EXPECT_EQ(small->regions()[1].name, "probabilities [2, 8, 1000, 1000] bf16");

  auto huge = ask(8, 64, std::int64_t{1} << 31, DType::kFp32);  // 2^73 bytes per matrix
  ASSERT_TRUE(huge.ok()) << huge.status().message();
  EXPECT_GE(huge->workspace_bytes(), std::size_t{1} << 62);

  Trial trial({.seqlen_q = 16, .seqlen_k = 16});
  const Status status = forward(context, {}, trial.forward_tensors(), trial.options("naive"));
  EXPECT_EQ(status.code(), StatusCode::kOutOfMemory);
  EXPECT_GE(memory.asked, 2u * 16 * 16 * 4);
}

}  // namespace
}  // namespace flashlab
