// AdamW in both conventions and clipping, against the formulas written out.

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "train_model.h"

namespace flashlab::train {
namespace {

struct Expected {
  double value, first, second;
};

Expected adamw(const OptimizerOptions& o, Expected old, double g, double rate, double t,
               double decay) {
  Expected out{};
  out.first = o.beta1 * old.first + (1 - o.beta1) * g;
  out.second = o.beta2 * old.second + (1 - o.beta2) * g * g;
  if (o.sgd) {
    // PyTorch's buffer is b = momentum b + g; ours is (1 - momentum) b.
    out.first = o.momentum * old.first + (1 - o.momentum) * g;
    out.value = old.value - rate * decay * old.value - rate * out.first / (1 - o.momentum);
    return out;
  }
  const double c1 = 1 - std::pow(o.beta1, t), c2 = 1 - std::pow(o.beta2, t);
  const double kept = old.value - rate * decay * old.value;
  if (o.convention == AdamWConvention::kTorch) {
    out.value = kept - rate * (out.first / c1) / (std::sqrt(out.second / c2) + o.epsilon);
  } else {
    out.value = kept - rate * std::sqrt(c2) / c1 * out.first / (std::sqrt(out.second) + o.epsilon);
  }
  return out;
}

void check_three_steps(const OptimizerOptions& optimizer) {
  StepOptions options = {.batch = 2, .precision = Precision::kFp64};
  options.optimizer = optimizer;
  const TestStep step = TestStep::make(small_model(), options);
  const ParameterStore& store = *step.parameters;
  const auto snapshot = [&](const std::byte* arena) {
    const double* data = reinterpret_cast<const double*>(arena);
    return std::vector<double>(data, data + store.elements());
  };
  for (int t = 1; t <= 3; ++t) {
    const std::vector<double> values = snapshot(store.values()),
                              first = snapshot(store.first_moments()),
                              second = snapshot(store.second_moments());
    step.executor->set_scalar(kStepIndex, t);
    step.loss();
    const std::vector<double> gradients = snapshot(*step.executor->gradients());
    double norm = 0;
    for (const double g : gradients) norm += g * g;
    norm = std::sqrt(norm);
    EXPECT_NEAR(step.executor->number(step.executor->plan().gradient_norm), norm, 1e-12 * norm);
    const double clip =
        optimizer.max_norm > 0 ? std::min(1.0, optimizer.max_norm / (norm + 1e-6)) : 1;
    const std::vector<double> after = snapshot(store.values());
    for (const Parameter& parameter : store.parameters()) {
      for (std::int64_t i = 0; i < parameter.elements; ++i) {
        const auto at = static_cast<std::size_t>(parameter.offset + i);
        const double decay = parameter.decays ? optimizer.weight_decay : 0;
        const Expected expected = adamw(optimizer, {values[at], first[at], second[at]},
                                        clip * gradients[at], 1e-2, t, decay);
        ASSERT_NEAR(after[at], expected.value, 1e-12) << parameter.name;
      }
    }
  }
}

TEST(TrainOptimizer, TorchConvention) {
  check_three_steps({.weight_decay = 0.1, .max_norm = 0});
}

TEST(TrainOptimizer, CourseConvention) {
  check_three_steps({.convention = AdamWConvention::kCs336,
                     .epsilon = 1e-3,  // large enough to tell the conventions apart
                     .max_norm = 0,
                     .decay_vectors = true});
}

TEST(TrainOptimizer, Sgd) {
  check_three_steps({.sgd = true, .weight_decay = 0.1, .max_norm = 0});
  check_three_steps({.sgd = true, .momentum = 0.9, .max_norm = 0.5});
}

TEST(TrainOptimizer, GradientsAreClipped) {
  check_three_steps({.epsilon = 1e-3, .max_norm = 0.01});
}

TEST(TrainOptimizer, TheConventionsDiffer) {
  const OptimizerOptions torch = {.epsilon = 1e-3};
  OptimizerOptions course = torch;
  course.convention = AdamWConvention::kCs336;
  EXPECT_GT(std::abs(adamw(torch, {1, 0, 0}, 0.01, 0.1, 1, 0).value -
                     adamw(course, {1, 0, 0}, 0.01, 0.1, 1, 0).value),
            1e-3);
}

TEST(TrainOptimizer, WeightsAreDrawnByNameAndSeed) {
  const TestStep a = TestStep::make(small_model(), {.batch = 1});
  ModelConfig deeper = small_model();
  deeper.layers = 3;
  const TestStep b = TestStep::make(deeper, {.batch = 1});
  const auto first_of = [](const TestStep& step, const std::string& name) {
    for (const Parameter& parameter : step.parameters->parameters()) {
      if (parameter.name == name) {
        return reinterpret_cast<float*>(step.parameters->values())[parameter.offset];
      }
    }
    return 0.0f;
  };
  for (const char* name : {"token_embeddings.weight", "layers.1.ffn.w2.weight"}) {
    EXPECT_NE(first_of(a, name), 0.0f) << name;
    EXPECT_EQ(first_of(a, name), first_of(b, name)) << name;
  }
}

}  // namespace
}  // namespace flashlab::train
