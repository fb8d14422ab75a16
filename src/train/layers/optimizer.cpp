#include "train/layers/layers.h"

namespace flashlab::train {

void optimizer(StepBuilder& b) {
  const OptimizerOptions& options = b.options().optimizer;
  StepPlan& plan = b.plan();
  b.set_phase(Phase::kOptimizer);
  b.enter(-1, "optimizer");
  AdamWAttributes attributes = {.beta1 = options.beta1,
                                .beta2 = options.beta2,
                                .epsilon = options.epsilon,
                                .max_norm = options.max_norm,
                                .convention = options.convention,
                                .ranges = {}};
  std::vector<TensorId> gradients, outputs, first, second, copies;
  for (const Parameter& parameter : plan.parameters) {
    gradients.push_back(parameter.gradient);
    outputs.push_back(parameter.master);
    first.push_back(parameter.first_moment);
    second.push_back(parameter.second_moment);
    if (parameter.value != parameter.master) copies.push_back(parameter.value);
    const double decay = parameter.decays ? options.weight_decay : 0;
    if (attributes.ranges.empty() || attributes.ranges.back().weight_decay != decay) {
      attributes.ranges.push_back({parameter.offset, parameter.offset, decay});
    }
    attributes.ranges.back().end = parameter.offset + parameter.elements;
  }
  plan.gradient_norm = b.persistent("gradient norm", {1}, b.policy().statistic, Role::kResult);
  const double count = static_cast<double>(plan.parameter_count());
  const bool scaled = plan.loss_scale != kNoTensor;
  std::vector<TensorId> summed = gradients;
  if (scaled) summed.push_back(plan.loss_scale);
  b.append({.name = "gradient norm",
            .kind = OperationKind::kGradientNorm,
            .operation_class = OperationClass::kOptimizer,
            .inputs = std::move(summed),
            .outputs = {plan.gradient_norm},
            .flops = 2 * count});
  std::vector<TensorId> inputs = {plan.scalars, plan.gradient_norm};
  inputs.insert(inputs.end(), gradients.begin(), gradients.end());
  for (const std::vector<TensorId>* more : {&outputs, &first, &second}) {
    inputs.insert(inputs.end(), more->begin(), more->end());
  }
  if (scaled) inputs.push_back(plan.loss_scale);
  for (const std::vector<TensorId>* more : {&first, &second, &copies}) {
    outputs.insert(outputs.end(), more->begin(), more->end());
  }
  b.append({.name = "adamw",
            .kind = OperationKind::kAdamW,
            .operation_class = OperationClass::kOptimizer,
            .inputs = inputs,
            .outputs = outputs,
            .attributes = attributes,
            .flops = 12 * count});
  if (!scaled) return;
  b.append({.name = "loss scale",
            .kind = OperationKind::kLossScale,
            .operation_class = OperationClass::kOptimizer,
            .inputs = {plan.gradient_norm, plan.loss_scale},
            .outputs = {plan.loss_scale},
            .attributes =
                LossScaleAttributes{.first = b.options().loss_scale,
                                    .dynamic = b.options().loss_scaling == LossScaling::kDynamic}});
}

}  // namespace flashlab::train
