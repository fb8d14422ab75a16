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
  std::vector<Operand> gradients, values, first, second, copies;
  for (const Parameter& parameter : plan.parameters) {
    gradients.push_back({Slot::kGradient, parameter.gradient});
    values.push_back({Slot::kValue, parameter.master});
    first.push_back({Slot::kFirstMoment, parameter.first_moment});
    second.push_back({Slot::kSecondMoment, parameter.second_moment});
    if (parameter.value != parameter.master) copies.push_back({Slot::kCopy, parameter.value});
    const double decay = parameter.decays ? options.weight_decay : 0;
    if (attributes.ranges.empty() || attributes.ranges.back().weight_decay != decay) {
      attributes.ranges.push_back({parameter.offset, parameter.offset, decay});
    }
    attributes.ranges.back().end = parameter.offset + parameter.elements;
  }
  plan.gradient_norm = b.persistent("gradient norm", {1}, b.policy().statistic, Role::kResult);
  const double count = static_cast<double>(plan.parameter_count());
  const Operand norm = {Slot::kNorm, plan.gradient_norm};
  const Operand scale = {Slot::kLossScale, plan.loss_scale};
  const auto joined = [](std::initializer_list<std::vector<Operand>> lists) {
    std::vector<Operand> out;
    for (const std::vector<Operand>& each : lists) out.insert(out.end(), each.begin(), each.end());
    return out;
  };
  b.append({.name = "gradient norm",
            .kind = OperationKind::kGradientNorm,
            .operation_class = OperationClass::kOptimizer,
            .inputs = joined({gradients, {scale}}),
            .outputs = {norm},
            .flops = 2 * count});
  b.append(
      {.name = "adamw",
       .kind = OperationKind::kAdamW,
       .operation_class = OperationClass::kOptimizer,
       .inputs = joined(
           {{{Slot::kScalars, plan.scalars}, norm}, gradients, values, first, second, {scale}}),
       .outputs = joined({values, first, second, copies}),
       .attributes = attributes,
       .flops = 12 * count});
  if (plan.loss_scale == kNoTensor) return;
  b.append({.name = "loss scale",
            .kind = OperationKind::kLossScale,
            .operation_class = OperationClass::kOptimizer,
            .inputs = {norm, scale},
            .outputs = {scale},
            .attributes =
                LossScaleAttributes{.first = b.options().loss_scale,
                                    .dynamic = b.options().loss_scaling == LossScaling::kDynamic}});
}

}  // namespace flashlab::train
