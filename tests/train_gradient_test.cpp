// Every operation's backward against finite differences of the whole model, in fp64; and what must
// not change a gradient: threads, chunks, checkpointing, the form of attention.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

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
  options.context = 5;
  out.push_back({"shorter_than_the_model", gpt2, options});
  return out;
}

class TrainGradient : public testing::TestWithParam<GradientCase> {};

TEST_P(TrainGradient, IsTheSlopeOfTheLoss) {
  const TestStep step = TestStep::make(GetParam().model, GetParam().options);
  step.loss();
  double* values = reinterpret_cast<double*>(step.parameters->values());
  const double* computed = reinterpret_cast<double*>(step.parameters->gradients());
  const std::vector<double> gradients(computed, computed + step.parameters->elements());
  // A gradient vector's scale: differences are compared with it where single entries are tiny.
  double scale = 0;
  for (const double g : gradients) scale = std::max(scale, std::abs(g));
  ASSERT_GT(scale, 1e-4);
  for (const Parameter& parameter : step.parameters->parameters()) {
    for (std::int64_t pick = 0; pick < 5; ++pick) {
      const std::int64_t i = parameter.offset + pick * 97 % parameter.elements;
      const double kept = values[i], h = 1e-5;
      values[i] = kept + h;
      const double above = step.loss();
      values[i] = kept - h;
      const double below = step.loss();
      values[i] = kept;
      EXPECT_NEAR((above - below) / (2 * h), gradients[static_cast<std::size_t>(i)], 1e-8 * scale)
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
  const T* data = reinterpret_cast<const T*>(step.parameters->gradients());
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

TEST(TrainSame, AnUntrainedModelKnowsNothing) {
  ModelConfig model = small_model(Family::kGpt2);
  const TestStep step = TestStep::make(model, fp32_backward());
  EXPECT_NEAR(step.loss(), std::log(11.0), 0.05);
}

TEST(TrainRefusals, WhatTheCpuDoesNotCompute) {
  const TestStep step = TestStep::make(small_model(), fp32_backward());
  StepOptions options = fp32_backward();
  options.precision = Precision::kBf16;
  auto bf16 =
      CpuExecutor::create(*step.context, *build_step(small_model(), options), *step.parameters);
  EXPECT_NE(bf16.status().message().find("fp32 or fp64"), std::string::npos);
  ModelConfig other = small_model();
  other.layers = 1;
  auto foreign =
      CpuExecutor::create(*step.context, *build_step(other, fp32_backward()), *step.parameters);
  EXPECT_NE(foreign.status().message().find("another model"), std::string::npos);
  options = fp32_backward();
  options.attention = "fa9";
  auto unknown =
      CpuExecutor::create(*step.context, *build_step(small_model(), options), *step.parameters);
  EXPECT_FALSE(unknown.ok());
}

}  // namespace
}  // namespace flashlab::train
