#include "train/layers/layers.h"

namespace flashlab::train {

std::vector<AdamWAttributes::Range> decay_ranges(const StepPlan& plan, double weight_decay) {
  std::vector<AdamWAttributes::Range> out;
  for (const Parameter& parameter : plan.parameters) {
    if (parameter.frozen) break;
    const double decay = parameter.decays ? weight_decay : 0;
    if (out.empty() || out.back().weight_decay != decay) {
      out.push_back({parameter.offset, parameter.offset, decay, parameter.offset});
    }
    out.back().end = parameter.offset + parameter.elements;
  }
  return out;
}

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
                                .ranges = decay_ranges(plan, options.weight_decay)};
  if (options.sgd) {
    attributes.convention = AdamWConvention::kSgd;
    attributes.beta1 = options.momentum;
    attributes.beta2 = attributes.epsilon = 1;
  }
  std::vector<Operand> gradients, values, first, second, copies;
  for (const Parameter& parameter : plan.parameters) {
    if (parameter.frozen) break;
    gradients.push_back({Slot::kGradient, parameter.gradient});
    values.push_back({Slot::kValue, parameter.master});
    first.push_back({Slot::kFirstMoment, parameter.first_moment});
    second.push_back({Slot::kSecondMoment, parameter.second_moment});
    if (parameter.value != parameter.master) copies.push_back({Slot::kCopy, parameter.value});
  }
  plan.gradient_norm = b.persistent("gradient norm", {1}, b.policy().statistic, Role::kResult);
  double count = 0;
  for (const Parameter& parameter : plan.parameters) {
    if (!parameter.frozen) count += static_cast<double>(parameter.elements);
  }
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
