#include "train/cuda/column_sums.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "train/cuda/kernel_steps.h"

namespace flashlab::train {
namespace {

constexpr std::int64_t kMostPartials = std::int64_t{16} << 20;
constexpr std::int64_t kAlignment = 256;

// Elements of one sum, and whether it is added to.
std::pair<std::int64_t, bool> sum_of(const Operation& operation) {
  if (const auto* heads = std::get_if<HeadNormAttributes>(&operation.attributes)) {
    return {heads->head_dim, heads->accumulate_parameters};
  }
  const auto& rows = std::get<RowsAttributes>(operation.attributes);
  return {rows.width, rows.accumulate_parameters};
}

}  // namespace

std::vector<TensorId> sums_over_rows(const Operation& operation) {
  std::vector<TensorId> out;
  const bool sums = std::holds_alternative<RowsAttributes>(operation.attributes) ||
                    std::holds_alternative<HeadNormAttributes>(operation.attributes);
  if (!sums) return out;
  for (const Operand& each : operation.outputs) {
    const bool sum = each.slot == Slot::kWeight || each.slot == Slot::kKeyWeight ||
                     each.slot == Slot::kBias || each.slot == Slot::kSum;
    if (sum) out.push_back(each);
  }
  return out;
}

ColumnSums::ColumnSums(const StepPlan& plan, const cuda::DeviceInfo& device)
    : index_(plan.operations.size(), kNone) {
  std::vector<bool> open(plan.tensors.size(), false);   // results of the last group
  std::vector<bool> holds(plan.tensors.size(), false);  // tensors that one of them is inside of
  const auto is_open = [&](TensorId id) { return open[static_cast<std::size_t>(id)]; };
  const auto is_read = [&](TensorId id) {
    return is_open(id) || holds[static_cast<std::size_t>(id)];
  };
  std::int64_t used = 0;
  std::size_t vectors = 0;
  bool ended = true;
  for (std::size_t i = 0; i < plan.operations.size(); ++i) {
    ended |= std::ranges::any_of(plan.operations[i].inputs, is_read);
    ColumnSum sum{.outs = sums_over_rows(plan.operations[i])};
    if (sum.outs.empty()) continue;
    std::tie(sum.width, sum.accumulate) = sum_of(plan.operations[i]);
    sum.blocks =
        blocks_of_sums(plan, plan.operations[i], static_cast<int>(sum.outs.size()), device);
    ended |= std::ranges::any_of(sum.outs, is_open);
    ended |= used + sum.bytes() > kMostPartials;
    ended |= vectors + sum.outs.size() > device::kMostFinishedSums;
    ended |= !sums_.empty() && sums_.back().accumulate != sum.accumulate;
    if (ended) {
      groups_.push_back(sums_.size());
      open.assign(open.size(), false);
      holds.assign(holds.size(), false);
      used = 0, vectors = 0, ended = false;
    }
    for (const TensorId id : sum.outs) {
      open[static_cast<std::size_t>(id)] = true;
      holds[static_cast<std::size_t>(plan.whole_of(id))] = true;
    }
    // What nobody reads has its place for this operation alone.
    ended = std::ranges::any_of(
        sum.outs, [&](TensorId id) { return plan.tensor(id).role == Role::kTemporary; });
    sum.offset = used;
    used += (sum.bytes() + kAlignment - 1) / kAlignment * kAlignment;
    vectors += sum.outs.size();
    region_bytes_ = std::max(region_bytes_, used);
    index_[i] = sums_.size();
    sums_.push_back(std::move(sum));
  }
}

const ColumnSum* ColumnSums::of(std::size_t operation) const {
  return index_[operation] == kNone ? nullptr : &sums_[index_[operation]];
}

std::vector<const ColumnSum*> ColumnSums::finished_after(std::size_t operation) const {
  std::vector<const ColumnSum*> out;
  if (index_[operation] == kNone) return out;
  const std::size_t end = index_[operation] + 1;
  const bool last = end == sums_.size() || std::ranges::find(groups_, end) != groups_.end();
  if (!last) return out;
  const std::size_t begin = *(std::ranges::lower_bound(groups_, end) - 1);
  for (std::size_t i = begin; i < end; ++i) out.push_back(&sums_[i]);
  return out;
}

}  // namespace flashlab::train
