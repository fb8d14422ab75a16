#include "train/parallel/stretches.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

namespace flashlab::train {

int optimizer_of(const StepPlan& plan) {
  const auto found = std::ranges::find(plan.operations, Phase::kOptimizer, &Operation::phase);
  return static_cast<int>(found - plan.operations.begin());
}

std::vector<Stretch> stretches_of(const StepPlan& plan, int optimizer) {
  std::unordered_map<TensorId, std::size_t> parameter_of;
  std::unordered_set<TensorId> totals;
  // Frozen ones are the last.
  const auto learned =
      static_cast<std::size_t>(std::ranges::count(plan.parameters, false, &Parameter::frozen));
  for (std::size_t i = 0; i < learned; ++i) {
    parameter_of[plan.parameters[i].gradient] = i;
    if (plan.parameters[i].total != kNoTensor) totals.insert(plan.parameters[i].total);
  }
  const auto names_total = [&](const Operation& operation) {
    const auto is_total = [&](const Operand& each) { return totals.contains(each.tensor); };
    return std::ranges::any_of(operation.inputs, is_total) ||
           std::ranges::any_of(operation.outputs, is_total);
  };
  std::vector<Stretch> out;
  bool inside = false;
  for (int i = 0; i < optimizer; ++i) {
    const Operation& operation = plan.operations[static_cast<std::size_t>(i)];
    if (names_total(operation)) {
      inside = false;
      continue;
    }
    if (operation.phase != Phase::kBackward && !inside) continue;
    if (!inside) out.push_back({i, std::vector<int>(learned, i)});
    inside = true;
    out.back().last = i;
    for (const TensorId id : operation.outputs) {
      if (const auto found = parameter_of.find(id); found != parameter_of.end()) {
        out.back().writers[found->second] = i;
      }
    }
  }
  return out;
}

}  // namespace flashlab::train
