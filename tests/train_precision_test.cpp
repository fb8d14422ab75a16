// 16-bit types: their conversions, the loss scale of fp16, steps in pure bf16.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "flashlab/tensor.h"
#include "train/cpu/narrow.h"
#include "train/plan/autocast.h"
#include "train_model.h"

namespace flashlab::train {
namespace {

TEST(TrainNarrow, EveryFp16IsWidenedAndRoundedBack) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    float wide = 0;
    std::uint16_t back = 0;
    cpu::widen_fp16(&half, &wide, 1);
    cpu::round_to_fp16(&wide, &back, 1);
    const float expected = float_from_fp16(half);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(wide)) << bits;
      continue;
    }
    ASSERT_EQ(std::memcmp(&wide, &expected, sizeof wide), 0) << bits;
    ASSERT_EQ(back, half) << bits;
  }
}

TEST(TrainNarrow, FloatsAreRoundedToTheNearestFp16) {
  std::uint32_t state = 1;
  for (int i = 0; i < 2'000'000; ++i) {
    state = state * 1664525u + 1013904223u;
    // Exponents around those of fp16, all mantissas; and the ties between neighbours.
    std::uint32_t bits = (state & 0x807fffffu) | ((96u + (state >> 8) % 50u) << 23);
    if (i % 3 == 0) bits = (bits & ~0x1fffu) | 0x1000u;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    std::uint16_t rounded = 0;
    cpu::round_to_fp16(&value, &rounded, 1);
    ASSERT_EQ(rounded, fp16_from_float(value)) << value;
  }
}

double loss_after(const TestStep& step, int steps) {
  double loss = 0;
  for (int t = 1; t <= steps; ++t) {
    step.executor->set_scalar(kStepIndex, t);
    loss = step.loss();
  }
  return loss;
}

float* scale_of(const TestStep& step) {
  return static_cast<float*>(step.executor->data(step.executor->plan().loss_scale));
}

TEST(TrainFp16, LearnsLikeFp32) {
  for (const char* attention : {"", "naive"}) {
    const StepOptions base = {.batch = 4, .attention = attention};
    const double single = loss_after(TestStep::make(small_model(), base), 60);
    StepOptions options = base;
    options.precision = Precision::kFp16;
    const TestStep step = TestStep::make(small_model(), options);
    EXPECT_NEAR(loss_after(step, 60), single, 0.1) << attention;
    EXPECT_LT(scale_of(step)[2], 20) << "most steps are taken";
  }
}

// The norm that clipping and the log see is the one without the scale.
TEST(TrainFp16, TheScaleLeavesTheGradientsSize) {
  double norms[2] = {};
  for (const double scale : {1.0, 1024.0}) {
    StepOptions options = {.batch = 4, .precision = Precision::kFp16};
    options.loss_scaling = LossScaling::kStatic;
    options.loss_scale = scale;
    const TestStep step = TestStep::make(small_model(), options);
    step.loss();
    norms[scale > 1] = step.executor->number(step.executor->plan().gradient_norm);
    EXPECT_EQ(scale_of(step)[0], static_cast<float>(scale));
  }
  EXPECT_NEAR(norms[1], norms[0], 0.02 * norms[0]);
}

TEST(TrainFp16, AnOverflowSkipsTheStepAndHalvesTheScale) {
  StepOptions options = {.batch = 4, .precision = Precision::kFp16};
  options.loss_scale = 0x1p30;
  const TestStep step = TestStep::make(small_model(), options);
  const auto bytes = static_cast<std::size_t>(step.parameters->elements()) * sizeof(float);
  std::vector<std::byte> before(step.parameters->values(), step.parameters->values() + bytes);
  const auto unchanged = [&] {
    return std::memcmp(before.data(), step.parameters->values(), bytes) == 0;
  };
  step.loss();
  EXPECT_TRUE(unchanged());
  EXPECT_EQ(scale_of(step)[0], 0x1p29f);
  EXPECT_EQ(scale_of(step)[2], 1);
  int steps = 1;
  while (unchanged() && steps < 40) {
    step.executor->set_scalar(kStepIndex, ++steps);
    step.loss();
  }
  EXPECT_FALSE(unchanged());
  EXPECT_EQ(scale_of(step)[2], static_cast<float>(steps - 1));
  EXPECT_EQ(scale_of(step)[0], std::ldexp(1.0f, 30 - (steps - 1)));
  // The first step that is taken is AdamW's first, not its twentieth: it moves by the whole rate.
  const auto* values = reinterpret_cast<const float*>(step.parameters->values());
  const auto* old = reinterpret_cast<const float*>(before.data());
  float largest = 0;
  for (std::size_t i = 0; i < bytes / sizeof(float); ++i) {
    largest = std::max(largest, std::abs(values[i] - old[i]));
  }
  EXPECT_NEAR(largest, 1e-2f, 2e-3f);
}

TEST(TrainFp16, AStaticScaleStaysAndGoodStepsDoubleADynamicOne) {
  StepOptions options = {.batch = 4, .precision = Precision::kFp16};
  options.loss_scaling = LossScaling::kStatic;
  options.loss_scale = 0x1p35;
  const TestStep still = TestStep::make(small_model(), options);
  loss_after(still, 3);
  EXPECT_EQ(scale_of(still)[0], 0x1p35f);
  EXPECT_EQ(scale_of(still)[2], 3);
  options.loss_scaling = LossScaling::kDynamic;
  options.loss_scale = 16;
  const TestStep step = TestStep::make(small_model(), options);
  scale_of(step)[1] = 1998;
  step.loss();
  EXPECT_EQ(scale_of(step)[0], 16);
  step.loss();
  EXPECT_EQ(scale_of(step)[0], 32);
  EXPECT_EQ(scale_of(step)[1], 0);
}

TEST(TrainFp16, OtherStepsHaveNoScale) {
  for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
    const TestStep step = TestStep::make(small_model(), {.batch = 2, .precision = precision});
    EXPECT_EQ(step.executor->plan().loss_scale, kNoTensor);
  }
  StepOptions none = {.batch = 2, .precision = Precision::kFp16};
  none.loss_scaling = LossScaling::kNone;
  EXPECT_EQ(TestStep::make(small_model(), none).executor->plan().loss_scale, kNoTensor);
}

TEST(TrainPureBf16, LearnsAndKeepsHalfTheBytes) {
  const StepOptions single = {.batch = 4};
  StepOptions pure = single;
  pure.precision = Precision::kPureBf16;
  const TestStep step = TestStep::make(small_model(), pure);
  const TestStep reference = TestStep::make(small_model(), single);
  EXPECT_EQ(step.parameters->element(), Element::kBf16);
  EXPECT_EQ(2 * step.parameters->bytes(), reference.parameters->bytes());
  const double first = step.loss();
  const double last = loss_after(step, 60), exact = loss_after(reference, 60);
  EXPECT_LT(last, first / 2);
  EXPECT_NEAR(last, exact, 0.5);
}

TEST(TrainLeanBf16, KeepsFp32MastersAndMomentsBesideBf16Gradients) {
  const StepOptions single = {.batch = 4};
  StepOptions lean = single, masters = single;
  lean.precision = Precision::kLeanBf16;
  masters.precision = Precision::kBf16;
  const TestStep step = TestStep::make(small_model(), lean);
  const TestStep wide = TestStep::make(small_model(), masters);
  const TestStep reference = TestStep::make(small_model(), single);
  EXPECT_EQ(step.parameters->element(), Element::kFp32);
  EXPECT_EQ(step.parameters->bytes(), wide.parameters->bytes());
  const StepPlan& plan = step.executor->plan();
  EXPECT_EQ(plan.tensor(plan.parameters.front().gradient).element, Element::kBf16);
  EXPECT_EQ(plan.tensor(plan.parameters.front().first_moment).element, Element::kFp32);
  const double first = step.loss();
  const double last = loss_after(step, 60), exact = loss_after(reference, 60);
  EXPECT_LT(last, first / 2);
  EXPECT_NEAR(last, exact, 0.1);
}

TEST(TrainAutocast, TheToyModelsTypes) {
  const std::vector<AutocastRow> rows = autocast_toy(Element::kFp16);
  const Element expected[] = {Element::kFp32, Element::kFp16, Element::kFp16, Element::kFp32,
                              Element::kFp16, Element::kFp32, Element::kFp32};
  ASSERT_EQ(rows.size(), std::size(expected));
  for (std::size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i].element, expected[i]) << i;
}

}  // namespace
}  // namespace flashlab::train
