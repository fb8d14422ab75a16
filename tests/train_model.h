#pragma once

// A small model ready to run in tests.

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "train/cpu/random.h"
#include "train/run/cpu_executor.h"
#include "train/step/step.h"

namespace flashlab::train {

inline ModelConfig small_model(Family family = Family::kCourse) {
  return {.name = "test",
          .family = family,
          .vocabulary = 11,
          .context = 6,
          .width = 8,
          .hidden = 12,
          .layers = 2,
          .heads = 2};
}

/// A model, its numbers and one step bound to them.
struct TestStep {
  std::unique_ptr<Context> context;
  std::unique_ptr<ParameterStore> parameters;
  std::unique_ptr<CpuExecutor> executor;

  static TestStep make(const ModelConfig& model, const StepOptions& options, int threads = 2,
                       runtime::Communicator* group = nullptr) {
    TestStep out;
    Result<Context> context = Context::create({.threads = threads});
    EXPECT_TRUE(context.ok());
    out.context = std::make_unique<Context>(std::move(*context));
    Result<StepPlan> plan = build_step(model, options);
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    Result<ParameterStore> parameters = ParameterStore::create(*plan);
    EXPECT_TRUE(parameters.ok());
    out.parameters = std::make_unique<ParameterStore>(std::move(*parameters));
    out.parameters->initialize(7);
    auto executor = CpuExecutor::create(*out.context, std::move(*plan), *out.parameters, group);
    EXPECT_TRUE(executor.ok()) << executor.status().message();
    out.executor = std::move(*executor);
    out.fill_batch(model);
    return out;
  }

  void fill_batch(const ModelConfig& model) const {
    const StepPlan& plan = executor->plan();
    const std::int64_t count = plan.tensor(plan.tokens).elements();
    for (std::int64_t i = 0; i < count; ++i) {
      const auto draw = [&](std::uint64_t site) {
        return static_cast<std::int32_t>(random_bits({3, 0, site}, static_cast<std::uint64_t>(i)) %
                                         static_cast<std::uint64_t>(model.vocabulary));
      };
      executor->tokens()[i] = draw(1);
      if (plan.targets != kNoTensor) executor->targets()[i] = draw(2);
    }
    executor->set_scalar(kLearningRate, 1e-2);
    executor->set_scalar(kStepIndex, 1);
  }

  double loss() const {
    EXPECT_TRUE(executor->run().ok());
    return executor->number(executor->plan().loss);
  }
};

}  // namespace flashlab::train
