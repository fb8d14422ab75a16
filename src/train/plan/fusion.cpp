#include "train/plan/fusion.h"

#include <optional>
#include <utility>

namespace flashlab::train {
namespace {

// An epilogue saves the GELU's reading and writing. It rounds as 16-bit results are: fp32 ones keep
// the kernel's, which is exact to its last bits. GELU's gradient stays a kernel, which adds up the
// bias's, too: cuBLASLt's epilogue of it costs more than it saves.
bool has_gelu_epilogue(const StepPlan& plan, const Operation& product) {
  const auto& p = std::get<ProductAttributes>(product.attributes);
  const bool narrow = size_of(plan.tensor(product.out(Slot::kC)).element) == 2;
  return narrow && p.c.leading % 8 == 0 && p.inner * p.outer == 1 && !p.accumulate &&
         product.has(Slot::kBias) && !product.has(Slot::kAddend);
}

// The kind that does the work of both, where there is one.
std::optional<OperationKind> kind_of_both(const StepPlan& plan, const Operation& first,
                                          const Operation& second) {
  using enum OperationKind;
  if (first.stream != second.stream) return {};
  const TensorId x = second.in(Slot::kX);
  if (second.kind == kGelu) {
    const bool fits = first.kind == kProduct && first.out(Slot::kC) == x;
    return fits && has_gelu_epilogue(plan, first) ? std::optional(kProductGelu) : std::nullopt;
  }
  if (second.kind != kColumnSum || first.out(Slot::kDX) != x) return {};
  if (first.kind == kGeluBackward) return kGeluBackwardSum;
  // A norm's sums are all added to, or none of them.
  const auto* a = std::get_if<RowsAttributes>(&first.attributes);
  const auto& sum = std::get<RowsAttributes>(second.attributes);
  if (a == nullptr || a->accumulate_parameters != sum.accumulate_parameters) return {};
  if (first.kind == kLayerNormBackward) return kLayerNormBackwardSum;
  if (first.kind == kRmsNormBackward) return kRmsNormBackwardSum;
  return {};
}

void take_in(Operation& first, OperationKind kind, const Operation& second) {
  if (kind == OperationKind::kGeluBackwardSum) first.attributes = second.attributes;
  first.kind = kind;
  first.outputs.insert(first.outputs.end(), second.outputs.begin(), second.outputs.end());
  first.flops += second.flops;
  first.bytes = 0;  // counted anew
}

}  // namespace

void fuse(StepPlan& plan) {
  std::vector<Operation> fused;
  for (Operation& operation : plan.operations) {
    const auto kind = fused.empty() ? std::nullopt : kind_of_both(plan, fused.back(), operation);
    if (kind) {
      take_in(fused.back(), *kind, operation);
    } else {
      fused.push_back(std::move(operation));
    }
  }
  plan.operations = std::move(fused);
  finish(plan);
}

}  // namespace flashlab::train
