#include "train/plan/fusion.h"

#include <bit>
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

// Heads whose lanes have one pack each, so that a lane's other half is another lane's pack.
bool turns_in_lanes(const StepPlan& plan, const Operation& norm, const Operation& rope) {
  const std::int64_t head_dim = std::get<HeadNormAttributes>(norm.attributes).head_dim;
  const std::int64_t bytes = head_dim * size_of(plan.tensor(norm.in(Slot::kX)).element);
  return std::get<RopeAttributes>(rope.attributes).halves &&
         std::has_single_bit(static_cast<std::uint64_t>(head_dim)) && bytes >= 32 && bytes <= 512;
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
  if (first.kind == kHeadNorm && second.kind == kRope) {
    const bool fits =
        first.out(Slot::kY) == second.in(Slot::kQkv) && turns_in_lanes(plan, first, second);
    return fits ? std::optional(kHeadNormRope) : std::nullopt;
  }
  if (first.kind == kRope && second.kind == kHeadNormBackward) {
    const bool fits =
        first.out(Slot::kQkv) == second.in(Slot::kDY) && turns_in_lanes(plan, second, first);
    return fits ? std::optional(kHeadNormRopeBackward) : std::nullopt;
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

// The norm's operation, which reads the angles as well.
void take_in_rope(Operation& first, OperationKind kind, const Operation& second) {
  const bool forward = kind == OperationKind::kHeadNormRope;
  const Operation rope = forward ? second : first;
  if (!forward) first = second;
  first.kind = kind;
  for (const Slot slot : {Slot::kCosine, Slot::kSine}) {
    first.inputs.push_back({slot, rope.in(slot)});
  }
  first.flops += rope.flops;
  first.bytes = 0;  // counted anew
}

void take_in(Operation& first, OperationKind kind, const Operation& second) {
  if (kind == OperationKind::kHeadNormRope || kind == OperationKind::kHeadNormRopeBackward) {
    return take_in_rope(first, kind, second);
  }
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
  plan.on_gpu = true;
  for (Operation& operation : plan.operations) {
    if (operation.kind == OperationKind::kAdamW) operation.bytes = 0;  // counted anew
  }
  finish(plan);
}

}  // namespace flashlab::train
