// `fa2-plain` against an fp64 loop: shapes around tile edges, masks, layouts, special values.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <tuple>

#include "cpu_plain_oracle.h"

namespace flashlab {
namespace {

using testing::Ask;
using testing::Trial;

// Unit round-off of the type results are rounded to.
double epsilon(const Ask& ask) {
  if (ask.dtype == DType::kFp64) return 0x1p-53;
  if (ask.dtype == DType::kFp32 || ask.fp32_outputs) return 0x1p-24;
  return ask.dtype == DType::kFp16 ? 0x1p-11 : 0x1p-8;
}

// Sums are fp32 whatever the type, so an error is one rounding of the result plus fp32's own.
double tolerance(const Ask& ask, const std::vector<double>& want) {
  const double sums = ask.dtype == DType::kFp64 ? 0x1p-53 : 0x1p-24;
  const double length = static_cast<double>(ask.seqlen_q + ask.seqlen_k + ask.head_dim);
  return (epsilon(ask) + sums * (8 + std::sqrt(length))) * (1 + 2 * testing::largest(want));
}

Context make_context(int threads = 2, CpuIsa isa = CpuIsa::kAutomatic) {
  ContextOptions options;
  options.threads = threads;
  options.cpu_isa = isa;
  auto context = Context::create(options);
  EXPECT_TRUE(context.ok()) << context.status().message();
  return std::move(*context);
}

void run(Trial& trial, const Context& context, TileOptions tiles = {}) {
  Options options = trial.options("fa2-plain");
  options.tiles = tiles;
  trial.solve();
  Status status = forward(context, {}, trial.forward_tensors(), options);
  ASSERT_TRUE(status.ok()) << status.message();
  status = backward(context, {}, trial.backward_tensors(), options);
  ASSERT_TRUE(status.ok()) << status.message();
}

void expect_close(const Trial& t) {
  EXPECT_LE(distance(t.o, t.want_o), tolerance(t.ask, t.want_o)) << "o";
  const double lse_epsilon = t.ask.fp64_lse ? 1e-13 : 1e-6;
  EXPECT_LE(distance(t.lse, t.want_lse), lse_epsilon * (2 + testing::largest(t.want_lse))) << "lse";
  // Backward reads the rounded o: delta carries that rounding, times a sum over head_dim_v.
  const double rounded_o = epsilon(t.ask) * 4 * std::sqrt(static_cast<double>(t.ask.head_dim_v)) +
                           (t.ask.dtype == DType::kFp64 && !t.ask.fp64_lse ? 1e-6 : 0);
  for (const auto& [name, got, want] :
       {std::tuple("dq", &t.dq, &t.want_dq), std::tuple("dk", &t.dk, &t.want_dk),
        std::tuple("dv", &t.dv, &t.want_dv)}) {
    EXPECT_LE(distance(*got, *want), tolerance(t.ask, *want) + rounded_o * testing::largest(*want))
        << name;
  }
}

std::string describe(const Ask& a) {
  return fmt::format("b{} h{}/{} s{}x{} d{}/{} {}", a.batch, a.heads_q, a.heads_k, a.seqlen_q,
                     a.seqlen_k, a.head_dim, a.head_dim_v, to_string(a.dtype));
}

TEST(PlainAttention, LengthsAroundTileEdges) {
  const Context context = make_context();
  for (std::int64_t length : {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200}) {
    for (Causal causal : {Causal::kNone, Causal::kTopLeft, Causal::kBottomRight}) {
      Trial trial({.seqlen_q = length,
                   .seqlen_k = 131 - length / 2,
                   .head_dim = 16,
                   .head_dim_v = 24,
                   .causal = causal,
                   .lse_gradient = true});
      SCOPED_TRACE(describe(trial.ask));
      run(trial, context);
      expect_close(trial);
    }
  }
}

TEST(PlainAttention, EveryTypeAndHeadDimension) {
  const Context context = make_context();
  for (DType dtype : {DType::kFp64, DType::kFp32, DType::kFp16, DType::kBf16}) {
    for (std::int64_t dim : {1, 3, 17, 64, 100}) {
      for (bool fp32_outputs : {false, true}) {
        if (fp32_outputs && dtype == DType::kFp64) continue;
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
                     .fp32_outputs = fp32_outputs,
                     .fp64_lse = dtype == DType::kFp64});
        SCOPED_TRACE(describe(trial.ask));
        run(trial, context);
        expect_close(trial);
      }
    }
  }
}

TEST(PlainAttention, Fp64AcceptsAnFp32Lse) {
  Trial trial({.seqlen_q = 33, .seqlen_k = 65, .dtype = DType::kFp64});
  run(trial, make_context());
  expect_close(trial);
}

TEST(PlainAttention, MasksLayoutsAndModes) {
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

TEST(PlainAttention, ScalesOfEverySign) {
  const Context context = make_context();
  for (float scale : {0.0f, -0.7f, 3.0f}) {
    Trial trial({.seqlen_q = 20, .seqlen_k = 30, .scale = scale, .lse_gradient = true});
    run(trial, context);
    expect_close(trial);
  }
}

TEST(PlainAttention, AScaleKeepsItsBitsInFp64) {
  Trial trial({.seqlen_q = 20,
               .seqlen_k = 30,
               .dtype = DType::kFp64,
               .scale = 0.1,  // 1.5e-9 away from the nearest float
               .lse_gradient = true,
               .fp64_lse = true});
  run(trial, make_context());
  expect_close(trial);
}

TEST(PlainAttention, LargeScoresKeepTheirDifferences) {
  Trial trial({.seqlen_q = 40, .seqlen_k = 150, .head_dim = 16, .scale = 40.0f});
  run(trial, make_context());
  // Scores reach hundreds, and fp32 rounds them before exp: 2^-24 of 500 is 3e-5 of a probability.
  EXPECT_LE(distance(trial.o, trial.want_o), 1e-3);
  EXPECT_LE(distance(trial.lse, trial.want_lse), 1e-6 * testing::largest(trial.want_lse));
}

TEST(PlainAttention, RowsThatSeeNothing) {
  // More queries than keys, aligned at the bottom right: the first 30 queries see no key.
  Trial trial(
      {.seqlen_q = 70, .seqlen_k = 40, .causal = Causal::kBottomRight, .lse_gradient = true});
  trial.d_lse.set(trial.d_lse.at(0, 0, 3), NAN);  // the gradient of an empty row is ignored
  run(trial, make_context());
  expect_close(trial);
  EXPECT_EQ(trial.lse(0, 0, 29), -testing::kInfinity);
  EXPECT_EQ(trial.o(0, 29, 0, 0), 0.0);
  EXPECT_EQ(trial.dq(0, 29, 0, 0), 0.0);
}

TEST(PlainAttention, NoKeysAndNoQueries) {
  const Context context = make_context();
  Trial no_keys({.seqlen_q = 5, .seqlen_k = 0});
  run(no_keys, context);
  expect_close(no_keys);
  Trial no_queries({.seqlen_q = 0, .seqlen_k = 5});
  run(no_queries, context);
  expect_close(no_queries);
  Trial added({.seqlen_q = 0, .seqlen_k = 5, .accumulate = true});
  run(added, context);
  expect_close(added);
}

TEST(PlainAttention, SpecialValuesReachTheRowsThatSeeThemAndNoOthers) {
  const Context context = make_context();
  for (bool masked : {false, true}) {
    for (int which = 0; which < 4; ++which) {
      Trial trial({.heads_q = 2,
                   .heads_k = 1,
                   .seqlen_q = 90,
                   .seqlen_k = 90,
                   .causal = Causal::kCausal,
                   .mask = masked ? Ask::MaskKind::kBool : Ask::MaskKind::kNone});
      testing::Buffer* tensors[] = {&trial.q, &trial.k, &trial.v, &trial.d_o};
      tensors[which]->set(tensors[which]->at(0, 71, 0, 2), NAN);
      run(trial, context);
      SCOPED_TRACE(which);
      for (const auto& [got, want] :
           {std::pair(&trial.o, &trial.want_o), std::pair(&trial.dq, &trial.want_dq),
            std::pair(&trial.dk, &trial.want_dk), std::pair(&trial.dv, &trial.want_dv),
            std::pair(&trial.lse, &trial.want_lse)}) {
        EXPECT_LT(distance(*got, *want), 1e-4);
      }
    }
  }
}

TEST(PlainAttention, InfiniteScores) {
  const Context context = make_context();
  // q . k is +inf for query 1 (the row becomes NaN) and -inf for query 2 at key 4 alone.
  Trial trial({.seqlen_q = 3, .seqlen_k = 80, .head_dim = 1, .scale = 1.0f});
  for (std::int64_t j = 0; j < 80; ++j) trial.k.set(trial.k.at(0, j, 0, 0), 0.5);
  trial.k.set(trial.k.at(0, 4, 0, 0), INFINITY);
  for (int i = 0; i < 3; ++i) trial.q.set(trial.q.at(0, i, 0, 0), i == 1 ? 1.0 : -1.0);
  trial.solve();
  ASSERT_TRUE(forward(context, {}, trial.forward_tensors(), trial.options("fa2-plain")).ok());
  EXPECT_TRUE(std::isnan(trial.o(0, 1, 0, 0)));
  EXPECT_TRUE(std::isnan(trial.lse(0, 0, 1)));
  EXPECT_NEAR(trial.o(0, 2, 0, 3), trial.want_o[trial.o.at(0, 2, 0, 3)], 1e-5);
  EXPECT_NEAR(trial.lse(0, 0, 2), trial.want_lse[2], 1e-5);

  // Every visible score is -inf: an empty row.
  Trial empty({.seqlen_q = 1, .seqlen_k = 70, .head_dim = 1, .scale = 1.0f});
  for (std::int64_t j = 0; j < 70; ++j) empty.k.set(empty.k.at(0, j, 0, 0), -INFINITY);
  empty.q.set(0, 2.0);
  ASSERT_TRUE(forward(context, {}, empty.forward_tensors(), empty.options("fa2-plain")).ok());
  EXPECT_EQ(empty.o(0, 0, 0, 0), 0.0);
  EXPECT_EQ(empty.lse(0, 0, 0), -testing::kInfinity);
}

TEST(PlainAttention, EveryTileSizeGivesTheSameAnswer) {
  const Context context = make_context();
  for (TileOptions tiles : {TileOptions{1, 1}, TileOptions{7, 33}, TileOptions{64, 64},
                            TileOptions{16, 0}, TileOptions{0, 16}, TileOptions{256, 96}}) {
    Trial trial({.heads_q = 2,
                 .heads_k = 1,
                 .seqlen_q = 75,
                 .seqlen_k = 90,
                 .causal = Causal::kTopLeft,
                 .lse_gradient = true});
    run(trial, context, tiles);
    expect_close(trial);
  }
}

TEST(PlainAttention, EveryInstructionSet) {
  for (CpuIsa isa : {CpuIsa::kScalar, CpuIsa::kAvx2, CpuIsa::kAvx512}) {
    if (!supported(isa)) continue;
    const Context context = make_context(2, isa);
    for (DType dtype : {DType::kFp64, DType::kFp32}) {
      Trial trial({.heads_q = 2,
                   .heads_k = 1,
                   .seqlen_q = 130,
                   .seqlen_k = 190,
                   .head_dim = 33,
                   .head_dim_v = 40,
                   .dtype = dtype,
                   .causal = Causal::kBottomRight,
                   .lse_gradient = true,
                   .fp64_lse = dtype == DType::kFp64});
      run(trial, context);
      expect_close(trial);
    }
  }
}

TEST(PlainAttention, BitsDoNotDependOnTheNumberOfThreads) {
  const Ask ask{.batch = 2,
                .heads_q = 4,
                .heads_k = 2,
                .seqlen_q = 150,
                .seqlen_k = 150,
                .causal = Causal::kCausal,
                .lse_gradient = true};
  Trial one(ask);
  run(one, make_context(1));
  for (int threads : {2, 3, 8}) {
    Trial many(ask);
    run(many, make_context(threads));
    EXPECT_TRUE(same_bits(one.o, many.o) && same_bits(one.lse, many.lse));
    EXPECT_TRUE(same_bits(one.dq, many.dq) && same_bits(one.dk, many.dk));
    EXPECT_TRUE(same_bits(one.dv, many.dv));
  }
}

TEST(PlainAttention, TilesBeyondTheScratchAreRefusedWithBothSizes) {
  Trial trial({.seqlen_q = 8, .seqlen_k = 8, .head_dim = 128, .head_dim_v = 128});
  Options options = trial.options("fa2-plain");
  options.tiles = {4096, 4096};
  const Status status = forward(make_context(), {}, trial.forward_tensors(), options);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.detail().got, ::testing::ContainsRegex("[0-9]+ bytes of scratch required"));
  EXPECT_EQ(status.detail().expected, "at most 4194304 bytes available");
  options.tiles = {-1, 0};
  EXPECT_EQ(forward(make_context(), {}, trial.forward_tensors(), options).code(),
            StatusCode::kInvalidArgument);
  options.tiles = {0, 2147483647};
  EXPECT_EQ(backward(make_context(), {}, trial.backward_tensors(), options).code(),
            StatusCode::kInvalidArgument);
}

TEST(PlainAttention, DefaultTilesShrinkForAnyHeadDimension) {
  Trial trial({.seqlen_q = 20, .seqlen_k = 20, .head_dim = 5000, .head_dim_v = 3000});
  run(trial, make_context());
  expect_close(trial);
}

}  // namespace
}  // namespace flashlab
