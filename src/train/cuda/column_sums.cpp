#include "train/cuda/column_sums.h"

#include <algorithm>

#include "train/cuda/kernel_steps.h"

namespace flashlab::train {
namespace {

constexpr std::int64_t kMostPartials = std::int64_t{16} << 20;
constexpr std::int64_t kAlignment = 256;

}  // namespace

// A backward norm or GELU adds up what it writes where the next operation wants that.
const Operation* ColumnSums::taken_in(std::size_t index) const {
  if (index + 1 >= plan_.operations.size()) return nullptr;
  const Operation &operation = plan_.operations[index], &next = plan_.operations[index + 1];
  if (next.kind != OperationKind::kColumnSum || next.in(Slot::kX) != operation.out(Slot::kDX)) {
    return nullptr;
  }
  if (operation.kind == OperationKind::kGeluBackward) return &next;
  if (!is_backward_norm(operation)) return nullptr;
  const auto& a = std::get<RowsAttributes>(operation.attributes);
  const bool accumulates = std::get<RowsAttributes>(next.attributes).accumulate;
  return accumulates == a.accumulate_parameters ? &next : nullptr;
}

// Without `outs`: the operation's kernel leaves no sums.
ColumnSum ColumnSums::sum_of(std::size_t index, const cuda::DeviceInfo& device) const {
  const Operation& operation = plan_.operations[index];
  const Operation* next = taken_in(index);
  ColumnSum out;
  if (is_backward_norm(operation)) {
    const auto& a = std::get<RowsAttributes>(operation.attributes);
    out = {{operation.outputs.begin() + 1, operation.outputs.end()},
           a.width,
           0,
           a.accumulate_parameters};
    if (next != nullptr) out.outs.push_back(next->out(Slot::kSum));
    out.blocks = blocks_of_sums(plan_, operation, static_cast<int>(out.outs.size()), device);
    return out;
  }
  const bool alone = operation.kind == OperationKind::kColumnSum;
  if (alone && index > 0 && taken_in(index - 1) != nullptr) return out;
  if (!alone && next == nullptr) return out;
  const Operation& sum = alone ? operation : *next;
  const auto& a = std::get<RowsAttributes>(sum.attributes);
  return {{sum.out(Slot::kSum)}, a.width, blocks_of_sums(plan_, sum, 1, device), a.accumulate};
}

ColumnSums::ColumnSums(const StepPlan& plan, const cuda::DeviceInfo& device)
    : plan_(plan), index_(plan.operations.size(), kNone) {
  std::vector<bool> open(plan.tensors.size(), false);  // results of the last group
  const auto is_open = [&](TensorId id) { return open[static_cast<std::size_t>(id)]; };
  std::int64_t used = 0;
  std::size_t vectors = 0;
  bool ended = true;
  for (std::size_t i = 0; i < plan.operations.size(); ++i) {
    ended |= std::ranges::any_of(plan.operations[i].inputs, is_open);
    ColumnSum sum = sum_of(i, device);
    if (sum.outs.empty()) continue;
    ended |= std::ranges::any_of(sum.outs, is_open);
    ended |= used + sum.bytes() > kMostPartials;
    ended |= vectors + sum.outs.size() > device::kMostFinishedSums;
    ended |= !sums_.empty() && sums_.back().accumulate != sum.accumulate;
    if (ended) {
      groups_.push_back(sums_.size());
      open.assign(open.size(), false);
      used = 0, vectors = 0, ended = false;
    }
    for (const TensorId id : sum.outs) open[static_cast<std::size_t>(id)] = true;
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
