// Every operation's backward against finite differences of the whole model, in fp64; and what must
// not change a gradient: threads, chunks, checkpointing, the form of attention.

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "train/cpu/product.h"
#include "train/plan/builder.h"
#include "train_model.h"

namespace flashlab::train {
namespace {

struct GradientCase {
  std::string name;
  ModelConfig model;
  StepOptions options;
};

std::vector<GradientCase> gradient_cases() {
  const StepOptions base = {.batch = 2, .mode = StepMode::kBackward, .precision = Precision::kFp64};
  const ModelConfig course = small_model(), gpt2 = small_model(Family::kGpt2);
  std::vector<GradientCase> out = {{"course", course, base}, {"gpt2", gpt2, base}};
  StepOptions options = base;
  options.attention = "naive";
  out.push_back({"naive_attention", course, options});
  options = base;
  options.logits_bytes = 11 * 8 * 5;  // five rows of logits at once: uneven chunks
  out.push_back({"chunked_loss", course, options});
  out.push_back({"chunked_tied_loss", gpt2, options});
  options = base;
  options.accumulate = 2;
  out.push_back({"accumulated", gpt2, options});
  options = base;
  options.checkpoint = {{2, {{1, {}}, {1, {}}}}};
  ModelConfig dropping = course;
  dropping.dropout = 0.3;
  out.push_back({"nested_checkpoint_with_dropout", dropping, options});
  options = base;
  options.fused = false;
  out.push_back({"unfused", course, options});
  out.push_back({"unfused_gpt2", gpt2, options});
  options.accumulate = 2;
  options.attention = "naive";
  out.push_back({"unfused_with_dropout", dropping, options});
  options = base;
  options.context = 5;
  out.push_back({"shorter_than_the_model", gpt2, options});
  for (const Family family : all_families()) {
    if (family == Family::kCourse || family == Family::kGpt2) continue;
    ModelConfig model = small_model(family);
    model.heads = 4;
    model.key_heads = 2;
    model.head_size = 4;
    model.tied = family == Family::kQwen3;
    if (family == Family::kLlama) model.rope_scaling = {4, 1, 4, 16};
    if (family == Family::kMistral || family == Family::kGemma2) model.window = 3;
    if (family == Family::kGemma2) {
      model.window_every = 2;
      model.score_size = 9;
      model.attention_softcap = model.logits_softcap = 0.5;
    }
    options = base;
    out.push_back({to_string(family), model, options});
    options.checkpoint = {{1, {}, Rung::kNorms}, {1, {}, Rung::kQkv}};
    options.accumulate = 2;
    out.push_back({std::string(to_string(family)) + "_made_again", model, options});
    options.fused = false;
    options.checkpoint.clear();
    model.dropout = 0.3;
    out.push_back({std::string(to_string(family)) + "_unfused_with_dropout", model, options});
  }
  return out;
}

class TrainGradient : public testing::TestWithParam<GradientCase> {};

TEST_P(TrainGradient, IsTheSlopeOfTheLoss) {
  const TestStep step = TestStep::make(GetParam().model, GetParam().options);
  step.loss();
  double* values = reinterpret_cast<double*>(step.parameters->values());
  const double* computed = reinterpret_cast<const double*>(*step.executor->gradients());
  const std::vector<double> gradients(computed, computed + step.parameters->elements());
  // A gradient vector's scale: differences are compared with it where single entries are tiny.
  double scale = 0;
  for (const double g : gradients) scale = std::max(scale, std::abs(g));
  ASSERT_GT(scale, 1e-4);
  for (const Parameter& parameter : step.parameters->parameters()) {
    for (std::int64_t pick = 0; pick < 5; ++pick) {
      const std::int64_t i = parameter.offset + pick * 97 % parameter.elements;
      const double kept = values[i], h = 1e-5;
      const auto at = [&](double offset) {
        values[i] = kept + offset;
        return step.loss();
      };
      // Five points: embeddings of 0.02 before a norm bend more than two of them see.
      const double slope = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h);
      values[i] = kept;
      EXPECT_NEAR(slope, gradients[static_cast<std::size_t>(i)], 1e-8 * scale)
          << parameter.name << "[" << i - parameter.offset << "]";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, TrainGradient, testing::ValuesIn(gradient_cases()),
                         [](const auto& info) { return info.param.name; });

template <class T>
std::vector<T> gradients_of(const ModelConfig& model, const StepOptions& options, int threads) {
  const TestStep step = TestStep::make(model, options, threads);
  step.loss();
  const T* data = reinterpret_cast<const T*>(*step.executor->gradients());
  return {data, data + step.parameters->elements()};
}

StepOptions fp32_backward() {
  return {.batch = 4, .mode = StepMode::kBackward, .precision = Precision::kFp32};
}

TEST(TrainSame, BitsForAnyNumberOfThreads) {
  for (const Family family : {Family::kCourse, Family::kGpt2}) {
    ModelConfig model = small_model(family);
    model.width = 48;
    model.hidden = 100;
    const StepOptions options = fp32_backward();
    EXPECT_EQ(gradients_of<float>(model, options, 1), gradients_of<float>(model, options, 3));
  }
}

TEST(TrainSame, BitsWithCheckpointing) {
  ModelConfig model = small_model();
  model.dropout = 0.2;
  StepOptions options = fp32_backward();
  const std::vector<float> all = gradients_of<float>(model, options, 2);
  options.checkpoint = {{1, {}}, {1, {}}};
  EXPECT_EQ(gradients_of<float>(model, options, 2), all);
  options.checkpoint = {{2, {{1, {}}, {1, {}}}}};
  EXPECT_EQ(gradients_of<float>(model, options, 2), all);
}

TEST(TrainSame, BitsAtEveryRungOfTheLadder) {
  for (const Family family : {Family::kCourse, Family::kGpt2}) {
    for (const bool fused : {true, false}) {
      ModelConfig model = small_model(family);
      model.dropout = 0.2;
      StepOptions options = fp32_backward();
      options.fused = fused;
      options.accumulate = 2;
      const std::vector<float> all = gradients_of<float>(model, options, 2);
      for (const Rung rung : {Rung::kNorms, Rung::kMlp, Rung::kQkv}) {
        options.checkpoint = {{2, {}, rung}};
        EXPECT_EQ(gradients_of<float>(model, options, 2), all) << to_string(rung);
      }
      options.checkpoint = {{1, {}, Rung::kBlock}, {1, {}, Rung::kMlp}};
      EXPECT_EQ(gradients_of<float>(model, options, 2), all) << "mixed";
    }
  }
}

TEST(TrainSame, GradientsWithoutFusion) {
  for (const Family family : {Family::kCourse, Family::kGpt2}) {
    ModelConfig model = small_model(family);
    model.dropout = 0.2;
    StepOptions options = fp32_backward();
    options.precision = Precision::kFp64;
    const std::vector<double> fused = gradients_of<double>(model, options, 2);
    options.fused = false;
    const std::vector<double> apart = gradients_of<double>(model, options, 2);
    ASSERT_EQ(apart.size(), fused.size());
    for (std::size_t i = 0; i < apart.size(); ++i) ASSERT_NEAR(apart[i], fused[i], 1e-12) << i;
  }
}

TEST(TrainSame, GradientsForEveryFormOfAttention) {
  const ModelConfig model = small_model();
  StepOptions options = fp32_backward();
  options.precision = Precision::kFp64;
  const std::vector<double> production = gradients_of<double>(model, options, 2);
  for (const char* attention : {"naive", "fa2-plain"}) {
    options.attention = attention;
    const std::vector<double> other = gradients_of<double>(model, options, 2);
    for (std::size_t i = 0; i < other.size(); ++i) ASSERT_NEAR(other[i], production[i], 1e-12);
  }
}

TEST(TrainSame, Fp32FollowsFp64) {
  for (const Family family : {Family::kCourse, Family::kGpt2}) {
    StepOptions options = fp32_backward();
    const std::vector<float> single = gradients_of<float>(small_model(family), options, 2);
    options.precision = Precision::kFp64;
    const std::vector<double> exact = gradients_of<double>(small_model(family), options, 2);
    double scale = 0;
    for (const double g : exact) scale = std::max(scale, std::abs(g));
    for (std::size_t i = 0; i < exact.size(); ++i) {
      ASSERT_NEAR(single[i], exact[i], 3e-6 * scale) << i;
    }
  }
}

// 16-bit storage with fp32 arithmetic: a rounding is 2^-9 at most, and some thirty follow each
// other from the first layer to the loss and back.
TEST(TrainSame, Bf16FollowsFp64) {
  for (const char* attention : {"", "naive"}) {
    for (const Family family : {Family::kCourse, Family::kGpt2}) {
      StepOptions options = fp32_backward();
      options.attention = attention;
      options.precision = Precision::kBf16;
      const std::vector<float> mixed = gradients_of<float>(small_model(family), options, 2);
      options.precision = Precision::kFp64;
      const std::vector<double> exact = gradients_of<double>(small_model(family), options, 2);
      double error = 0, norm = 0;
      for (std::size_t i = 0; i < exact.size(); ++i) {
        error += (mixed[i] - exact[i]) * (mixed[i] - exact[i]);
        norm += exact[i] * exact[i];
      }
      const double relative = std::sqrt(error / norm);
      EXPECT_LT(relative, 0.03) << to_string(family) << " " << attention;
      EXPECT_GT(relative, 1e-4) << "nothing was rounded";
    }
  }
}

TEST(TrainSame, Bf16LearnsLikeFp32) {
  double last[2] = {};
  for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
    const TestStep step = TestStep::make(small_model(), {.batch = 4, .precision = precision});
    double& loss = last[precision == Precision::kBf16 ? 1 : 0];
    const double first = step.loss();
    for (int t = 2; t <= 60; ++t) {
      step.executor->set_scalar(kStepIndex, t);
      loss = step.loss();
    }
    EXPECT_LT(loss, first / 2);
  }
  EXPECT_NEAR(last[1], last[0], 0.2);
}

// A library of products that several threads may not call gives a wrong one in some 40,000 here.
TEST(TrainSame, ProductsOfManyThreads) {
  constexpr std::int64_t m = 6, n = 4, k = 6, kProducts = 4096;
  ProductAttributes attributes = {.m = m,
                                  .n = n,
                                  .k = k,
                                  .a = {.leading = k, .inner_stride = m * k},
                                  .b = {.leading = k, .inner_stride = n * k, .transposed = true},
                                  .c = {.leading = n, .inner_stride = m * n},
                                  .inner = kProducts};
  std::vector<double> a(m * k * kProducts), b(n * k * kProducts), c(m * n * kProducts), expected;
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<double>(i * 7 % 13) - 6;
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = static_cast<double>(i * 5 % 11) - 5;
  for (std::int64_t i = 0; i < m * n * kProducts; ++i) {
    const std::int64_t product = i / (m * n), row = i % (m * n) / n, column = i % n;
    double sum = 0;
    for (std::int64_t l = 0; l < k; ++l) {
      sum += a[static_cast<std::size_t>((product * m + row) * k + l)] *
             b[static_cast<std::size_t>((product * n + column) * k + l)];
    }
    expected.push_back(sum);
  }
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      internal::ThreadPool alone(1);
      std::vector<double> mine(c.size());
      for (int round = 0; round < 160; ++round) {
        std::fill(mine.begin(), mine.end(), -1);
        cpu::multiply<double>(alone, attributes, {.a = a.data(), .b = b.data(), .c = mine.data()});
        wrong += mine != expected;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(TrainSame, AnUntrainedModelKnowsNothing) {
  ModelConfig model = small_model(Family::kGpt2);
  const TestStep step = TestStep::make(model, fp32_backward());
  EXPECT_NEAR(step.loss(), std::log(11.0), 0.05);
}

TEST(TrainRefusals, WhatTheCpuDoesNotCompute) {
  const TestStep step = TestStep::make(small_model(), fp32_backward());
  StepOptions options = fp32_backward();
  ModelConfig other = small_model();
  other.layers = 1;
  auto foreign =
      CpuExecutor::create(*step.context, *build_step(other, fp32_backward()), *step.parameters);
  EXPECT_NE(foreign.status().message().find("another model"), std::string::npos);
  // Half of a parameter is not the parameter.
  StepPlan half = *build_step(small_model(), fp32_backward());
  half.parameters.front().shard.end /= 2;
  EXPECT_FALSE(step.parameters->matches(half));
  options = fp32_backward();
  options.attention = "fa9";
  auto unknown =
      CpuExecutor::create(*step.context, *build_step(small_model(), options), *step.parameters);
  EXPECT_FALSE(unknown.ok());
  // What a GPU does in one kernel has no function here.
  options = fp32_backward();
  options.gpu = true;
  const TestStep gpt2 = TestStep::make(small_model(Family::kGpt2), fp32_backward());
  auto fused = CpuExecutor::create(*gpt2.context, *build_step(small_model(Family::kGpt2), options),
                                   *gpt2.parameters);
  ASSERT_FALSE(fused.ok());
  EXPECT_NE(fused.status().message().find("layer norm backward and sum"), std::string::npos)
      << fused.status().message();
  EXPECT_NE(fused.status().message().find("StepOptions::gpu"), std::string::npos);
}

// Forward and backward of calls on the same q, k, v and gradient of o: the results of each.
std::vector<std::vector<float>> attention_results(const std::vector<AttentionAttributes>& calls) {
  constexpr std::int64_t kRows = 6, kWidth = 8;
  StepBuilder b({.batch = 1, .mode = StepMode::kForward, .precision = Precision::kFp32});
  StepPlan& plan = b.plan();
  plan.scalars = b.persistent("scalars", {kScalars}, Element::kFp64, Role::kBatch);
  const auto given = [&](const char* name, std::int64_t width) {
    return b.persistent(name, {kRows, width}, Element::kFp32, Role::kBatch);
  };
  const TensorId qkv = given("qkv", 3 * kWidth), d_o = given("d o", kWidth);
  std::vector<TensorId> results;
  for (const AttentionAttributes& a : calls) {
    const auto result = [&](const char* name, std::vector<std::int64_t> shape) {
      results.push_back(b.persistent(name, std::move(shape), Element::kFp32, Role::kResult));
      return results.back();
    };
    const TensorId o = result("o", {kRows, kWidth}), dqkv = result("d qkv", {kRows, 3 * kWidth});
    const TensorId lse = result("lse", {a.batch, a.heads, a.context});
    b.append({.name = "attention",
              .kind = OperationKind::kAttention,
              .operation_class = OperationClass::kAttention,
              .inputs = {{Slot::kQkv, qkv}},
              .outputs = {{Slot::kO, o}, {Slot::kLse, lse}},
              .attributes = a});
    b.append({.name = "d attention",
              .kind = OperationKind::kAttentionBackward,
              .operation_class = OperationClass::kAttention,
              .inputs = {{Slot::kDO, d_o}, {Slot::kQkv, qkv}, {Slot::kO, o}, {Slot::kLse, lse}},
              .outputs = {{Slot::kDQkv, dqkv}},
              .attributes = a});
  }
  const Result<Context> context = Context::create({.threads = 1});
  const Result<BoundStep> step = make_step(*context, b.take(), std::nullopt);
  EXPECT_TRUE(step.ok()) << step.status().message();
  const StepExecutor& executor = *step->executor;
  for (const TensorId id : {qkv, d_o}) {
    auto* values = static_cast<float*>(executor.data(id));
    for (std::int64_t i = 0; i < executor.plan().tensor(id).elements(); ++i) {
      values[i] = static_cast<float>(i * 7 % 11) / 8 - 0.5f;
    }
  }
  EXPECT_TRUE(step->executor->run().ok());
  std::vector<std::vector<float>> out;
  for (const TensorId id : results) {
    const auto* values = static_cast<const float*>(executor.data(id));
    out.emplace_back(values, values + executor.plan().tensor(id).elements());
  }
  return out;
}

// Layers may differ in their mask, their heads and their sequences.
TEST(TrainSame, BitsOfUnlikeAttentionInOneStep) {
  AttentionAttributes causal;
  causal.batch = 1, causal.context = 6, causal.heads = 2, causal.head_dim = 4;
  AttentionAttributes open = causal, heads = causal, short_context = causal;
  AttentionAttributes window = causal, grouped = causal, repeated = causal;
  window.window = Window{.left = 1};
  grouped.heads_kv = 1;
  repeated.heads_kv = 2;
  open.causal = false;
  heads.heads = 1, heads.head_dim = 8;
  short_context.batch = 2, short_context.context = 3;
  const std::vector<AttentionAttributes> all = {causal, open,    heads,    short_context,
                                                window, grouped, repeated, causal};
  std::vector<std::vector<float>> expected;
  for (const AttentionAttributes& one : all) {
    for (std::vector<float>& result : attention_results({one})) expected.push_back(result);
  }
  EXPECT_EQ(attention_results(all), expected);
  EXPECT_NE(expected[0], expected[3]);
  // Three results of each. A window of two keys changes nothing for the first two queries; heads of
  // k and v that are as many as those of q are no groups.
  const std::size_t o = 3 * 4;
  EXPECT_NE(expected[o], expected[0]);
  EXPECT_TRUE(std::equal(expected[o].begin(), expected[o].begin() + 16, expected[0].begin()));
  EXPECT_NE(expected[o + 3], expected[0]);
  EXPECT_EQ(expected[o + 6], expected[0]);
}

}  // namespace
}  // namespace flashlab::train
