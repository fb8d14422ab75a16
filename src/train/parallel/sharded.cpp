#include "train/parallel/sharded.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "train/layers/layers.h"

namespace flashlab::train {
namespace {

std::int64_t up_to(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

PointwiseAttributes rows_of_part(Pointwise function, std::int64_t part) {
  return {.function = function, .rows = part / kNormPart, .width = kNormPart};
}

std::string of_micro_batch(std::size_t stretch) {
  return stretch == 0 ? "" : fmt::format(" of micro-batch {}", stretch + 1);
}

}  // namespace

Operation all_gather(std::string name, std::vector<Operand> operands,
                     const CollectiveAttributes& attributes) {
  Operation out;
  out.name = std::move(name);
  out.kind = OperationKind::kAllGather;
  out.operation_class = OperationClass::kCommunication;
  out.phase = Phase::kOptimizer;
  out.inputs = out.outputs = std::move(operands);
  out.attributes = attributes;
  return out;
}

Operand split_norm(StepPlan& plan, std::int64_t count) {
  const auto norm =
      std::ranges::find(plan.operations, OperationKind::kGradientNorm, &Operation::kind);
  plan.tensors.push_back({"sums of squares", {count}, Element::kFp64, Role::kResult, -1});
  const Operand sums = {Slot::kSum, static_cast<TensorId>(plan.tensors.size() - 1)};
  Operation own = *norm;
  own.name += " / own squares";
  own.outputs = {sums};
  std::erase_if(norm->inputs, [](const Operand& each) { return each.slot == Slot::kGradient; });
  norm->inputs.push_back(sums);
  norm->flops = 0;
  norm->bytes = 0;
  plan.operations.insert(norm, std::move(own));
  return sums;
}

void step_owned(StepPlan& plan, double weight_decay) {
  const auto adamw = std::ranges::find(plan.operations, OperationKind::kAdamW, &Operation::kind);
  auto& ranges = std::get<AdamWAttributes>(adamw->attributes).ranges;
  ranges.clear();
  for (const AdamWAttributes::Range& all : decay_ranges(plan, weight_decay)) {
    for (const OwnedRange& own : plan.owned) {
      const std::int64_t begin = std::max(all.begin, own.begin), end = std::min(all.end, own.end);
      if (begin >= end) continue;
      ranges.push_back({begin, end, all.weight_decay, own.local + begin - own.begin});
    }
  }
}

Units::Units(StepPlan& plan, int ranks, int rank) : plan_(plan), ranks_(ranks), rank_(rank) {
  // Tensors are numbered as layers come.
  auto first_block = static_cast<TensorId>(plan.tensors.size());
  for (const Parameter& parameter : plan.parameters) {
    if (plan.tensor(parameter.master).layer < 0) continue;
    first_block = std::min(first_block, parameter.master);
  }
  for (std::size_t i = 0; i < plan.parameters.size(); ++i) {
    const Parameter& parameter = plan.parameters[i];
    const int layer = plan.tensor(parameter.master).layer;
    if (i == 0 || parameter.frozen != units_.back().frozen ||
        layer != plan.tensor(plan.parameters[i - 1].master).layer) {
      std::string name = layer >= 0                       ? fmt::format("layer {}", layer)
                         : parameter.master < first_block ? "embedding"
                                                          : "head";
      if (parameter.frozen) name = "frozen " + name;
      units_.push_back({.name = std::move(name), .first = i, .frozen = parameter.frozen});
    }
    units_.back().last = i;
  }
  lay_out();
}

// A unit begins where one rank has it, but for the padding: sums of squares are the same ones.
void Units::lay_out() {
  plan_.owned.clear();
  plan_.squares = 0;
  std::int64_t begin = 0, local = 0;
  for (Unit& unit : units_) {
    const std::int64_t before = plan_.parameters[unit.first].offset;
    const Parameter& last = plan_.parameters[unit.last];
    unit.begin = begin;
    unit.elements = up_to(last.offset + last.elements - before, kArenaAlignment);
    unit.part = up_to(unit.elements, kNormPart * ranks_) / ranks_;
    for (std::size_t i = unit.first; i <= unit.last; ++i) {
      plan_.parameters[i].offset += begin - before;
    }
    const std::int64_t own = rank_ * unit.part;
    plan_.owned.push_back(
        {.begin = begin + own,
         .end = begin + own + unit.part,
         .local = local,
         .learned = unit.frozen ? 0 : std::clamp<std::int64_t>(unit.elements - own, 0, unit.part),
         .squares = plan_.squares + own / kNormPart,
         .frozen = unit.frozen});
    begin += unit.part * ranks_;
    if (!unit.frozen) {
      plan_.squares += up_to(unit.elements, kNormPart) / kNormPart;
      plan_.learned_end = begin;
    }
    local += unit.part;
  }
  plan_.arena_elements = begin;
}

TensorId Units::add_tensor(PlanTensor tensor) {
  plan_.tensors.push_back(std::move(tensor));
  return static_cast<TensorId>(plan_.tensors.size() - 1);
}

TensorId Units::part_tensor(const Unit& unit, const char* what, Element element, Role role) {
  const int layer = plan_.tensor(plan_.parameters[unit.first].master).layer;
  return add_tensor({fmt::format("{} {}", what, unit.name), {unit.part}, element, role, layer});
}

// The gradients of a unit in one stretch.
struct Units::Sum {
  std::size_t unit = 0;
  TensorId whole = kNoTensor;
  std::vector<TensorId> views = {};  // the parameters'
  Operation clear = {};              // what lies between them; without outputs there is nothing
};

Units::Sum Units::begin_sum(const Unit& unit, std::size_t stretch) {
  const PlanTensor like = plan_.tensor(plan_.parameters[unit.first].gradient);
  Sum out = {.unit = static_cast<std::size_t>(&unit - units_.data())};
  out.whole = add_tensor({fmt::format("d {}", unit.name),
                          {unit.part * ranks_},
                          like.element,
                          Role::kCommunication,
                          like.layer});
  const auto view = [&](std::string name, std::vector<std::int64_t> shape, std::int64_t at) {
    return add_tensor({std::move(name), std::move(shape), like.element, Role::kCommunication,
                       like.layer, out.whole, at});
  };
  std::int64_t end = 0;
  const auto gap = [&](std::int64_t begin) {
    if (begin == end) return;
    out.clear.outputs.push_back(
        {Slot::kY, view(fmt::format("beside d {}", unit.name), {begin - end}, end)});
  };
  for (std::size_t i = unit.first; i <= unit.last; ++i) {
    const Parameter& parameter = plan_.parameters[i];
    const PlanTensor gradient = plan_.tensor(parameter.gradient);
    gap(parameter.offset - unit.begin);
    out.views.push_back(view(gradient.name, gradient.shape, parameter.offset - unit.begin));
    end = parameter.offset - unit.begin + parameter.elements;
  }
  gap(unit.part * ranks_);
  out.clear.name = fmt::format("clear beside d {}{}", unit.name, of_micro_batch(stretch));
  out.clear.kind = OperationKind::kClear;
  out.clear.operation_class = OperationClass::kElementwise;
  out.clear.phase = Phase::kBackward;
  out.clear.layer = like.layer;
  return out;
}

Operation Units::copy_of_part(std::string name, int layer, TensorId from, TensorId to) const {
  Operation out;
  out.name = std::move(name);
  out.kind = OperationKind::kPointwise;
  out.operation_class = OperationClass::kCopy;
  out.phase = Phase::kBackward;
  out.layer = layer;
  out.inputs = {{Slot::kA, from}};
  out.outputs = {{Slot::kY, to}};
  out.attributes = rows_of_part(Pointwise::kCopy, plan_.tensor(from).elements());
  return out;
}

// Between which tensors, or in which range, is the caller's.
Operation Units::reduce_scatter(const Unit& unit, std::size_t stretch) const {
  Operation out;
  out.name = fmt::format("reduce-scatter d {}{}", unit.name, of_micro_batch(stretch));
  out.kind = OperationKind::kReduceScatter;
  out.operation_class = OperationClass::kCommunication;
  out.phase = Phase::kBackward;
  out.layer = plan_.tensor(plan_.parameters[unit.first].master).layer;
  out.attributes = CollectiveAttributes{};
  return out;
}

// What does not come to its place at once is taken there when the next unit is sent: then it is
// here.
void Units::end_sum(const Sum& sum, std::size_t stretch, std::vector<Operation>& list) {
  const Unit& unit = units_[sum.unit];
  const TensorId kept = plan_.owned[sum.unit].gradient;
  const int layer = plan_.tensor(kept).layer;
  const Element element = bf16_wire_ ? Element::kBf16 : plan_.tensor(kept).element;
  const std::string which = of_micro_batch(stretch);
  TensorId from = sum.whole, to = kept;
  if (bf16_wire_) {
    from = add_tensor({fmt::format("sent d {}", unit.name),
                       {unit.part * ranks_},
                       element,
                       Role::kCommunication,
                       layer});
    list.push_back(
        copy_of_part(fmt::format("round d {}{}", unit.name, which), layer, sum.whole, from));
  }
  if (bf16_wire_ || stretch > 0) to = part_tensor(unit, "sum of d", element, Role::kCommunication);
  add_pending(list);
  Operation out = reduce_scatter(unit, stretch);
  out.inputs = {{Slot::kGradient, from}};
  out.outputs = {{Slot::kGradient, to}};
  list.push_back(std::move(out));
  if (to == kept) return;
  Operation take = copy_of_part(fmt::format("take d {}{}", unit.name, which), layer, to, kept);
  if (stretch > 0 && bf16_wire_) {
    const TensorId wide =
        part_tensor(unit, "wide d", plan_.tensor(kept).element, Role::kCommunication);
    const std::string name = fmt::format("widen d {}{}", unit.name, which);
    pending_.push_back(copy_of_part(name, layer, to, wide));
    to = wide;
  }
  if (stretch > 0) {
    take.operation_class = OperationClass::kElementwise;
    take.inputs = {{Slot::kA, kept}, {Slot::kB, to}};
    take.attributes = rows_of_part(Pointwise::kAdd, unit.part);
    take.flops = static_cast<double>(unit.part);
  }
  pending_.push_back(std::move(take));
}

void Units::add_pending(std::vector<Operation>& list) {
  std::move(pending_.begin(), pending_.end(), std::back_inserter(list));
  pending_.clear();
}

std::size_t Units::learned_units() const {
  return static_cast<std::size_t>(std::ranges::count(units_, false, &Unit::frozen));
}

void Units::scatter_in_place() {
  const std::vector<Stretch> stretches = stretches_of(plan_, optimizer_of(plan_));
  std::vector<Operation> list;
  std::size_t s = 0;
  for (int i = 0; i < static_cast<int>(plan_.operations.size()); ++i) {
    list.push_back(std::move(plan_.operations[static_cast<std::size_t>(i)]));
    if (s == stretches.size()) continue;
    for (std::size_t u = 0; u < learned_units(); ++u) {
      const Unit& unit = units_[u];
      const auto writers = stretches[s].writers.begin();
      const int whole_after =
          *std::max_element(writers + static_cast<std::ptrdiff_t>(unit.first),
                            writers + static_cast<std::ptrdiff_t>(unit.last) + 1);
      if (whole_after != i) continue;
      list.push_back(reduce_scatter(unit, s));
      for (std::size_t each = unit.first; each <= unit.last; ++each) {
        list.back().inputs.push_back({Slot::kGradient, plan_.parameters[each].gradient});
      }
      list.back().outputs = list.back().inputs;
      list.back().attributes = CollectiveAttributes{unit.begin, unit.begin + unit.part * ranks_};
    }
    if (stretches[s].last == i) ++s;
  }
  plan_.operations = std::move(list);
}

void Units::scatter_gradients(bool bf16_wire) {
  bf16_wire_ = bf16_wire;
  const int optimizer = optimizer_of(plan_);
  const std::vector<Stretch> stretches = stretches_of(plan_, optimizer);
  plan_.owned_gradients = true;
  // Frozen units are the last ones.
  const std::size_t learned = learned_units();
  for (std::size_t u = 0; u < learned; ++u) {
    const TensorId like = plan_.parameters[units_[u].first].gradient;
    plan_.owned[u].gradient =
        part_tensor(units_[u], "own d", plan_.tensor(like).element, Role::kGradient);
  }
  std::vector<Operation> list;
  std::size_t next = 0;
  for (std::size_t s = 0; s < stretches.size(); ++s) {
    std::vector<Sum> sums;
    std::unordered_map<TensorId, std::pair<std::size_t, TensorId>> view_of;
    std::vector<int> whole_after(learned, 0);
    for (std::size_t u = 0; u < learned; ++u) {
      sums.push_back(begin_sum(units_[u], s));
      for (std::size_t i = units_[u].first; i <= units_[u].last; ++i) {
        view_of[plan_.parameters[i].gradient] = {u, sums[u].views[i - units_[u].first]};
        whole_after[u] = std::max(whole_after[u], stretches[s].writers[i]);
      }
    }
    std::vector<bool> begun(learned);
    for (; next <= static_cast<std::size_t>(stretches[s].last); ++next) {
      Operation operation = std::move(plan_.operations[next]);
      const auto rename = [&](Operand& operand) {
        const auto found = view_of.find(operand.tensor);
        if (found == view_of.end()) return;
        const std::size_t u = found->second.first;
        if (!begun[u] && !sums[u].clear.outputs.empty()) list.push_back(sums[u].clear);
        begun[u] = true;
        operand.tensor = found->second.second;
      };
      std::ranges::for_each(operation.inputs, rename);
      std::ranges::for_each(operation.outputs, rename);
      list.push_back(std::move(operation));
      for (std::size_t u = 0; u < learned; ++u) {
        if (whole_after[u] == static_cast<int>(next)) end_sum(sums[u], s, list);
      }
    }
    add_pending(list);
    // Sums over micro-batches are those of parts.
    const auto adds_micro_batch = [&](const Operation& operation) {
      return std::ranges::any_of(plan_.parameters, [&](const Parameter& parameter) {
        return parameter.total != kNoTensor && (operation.out(Slot::kY) == parameter.total ||
                                                operation.in(Slot::kA) == parameter.total);
      });
    };
    while (next < plan_.operations.size() && adds_micro_batch(plan_.operations[next])) ++next;
  }
  for (; next < plan_.operations.size(); ++next) list.push_back(plan_.operations[next]);
  plan_.operations = std::move(list);
  for (Parameter& parameter : plan_.parameters) {
    if (parameter.frozen) continue;
    plan_.tensor(parameter.gradient).role = Role::kTemporary;
    parameter.gradient = parameter.total = kNoTensor;
  }
}

// What the optimizer has changed of a unit, in place.
Operation Units::gather_new(const Unit& unit, bool copies) const {
  using Arena = CollectiveAttributes::Arena;
  std::vector<Operand> operands;
  for (std::size_t i = unit.first; i <= unit.last; ++i) {
    const Parameter& parameter = plan_.parameters[i];
    operands.push_back(copies ? Operand{Slot::kCopy, parameter.value}
                              : Operand{Slot::kValue, parameter.master});
  }
  Operation out = all_gather(
      fmt::format("all-gather {} of {}", copies ? "copies" : "values", unit.name), operands,
      {unit.begin, unit.begin + unit.part * ranks_, copies ? Arena::kCopies : Arena::kValues});
  out.phase = Phase::kForward;
  out.layer = plan_.tensor(operands.front().tensor).layer;
  return out;
}

// At the head of the list, in the order of the readers: on the ranks' stream all are sent one after
// the other, and each reader waits for its own.
void Units::gather_new_values() {
  const Parameter& first = plan_.parameters.front();
  const bool copies = first.value != first.master;
  std::unordered_map<TensorId, std::size_t> unit_of;
  for (std::size_t u = 0; u < learned_units(); ++u) {
    for (std::size_t i = units_[u].first; i <= units_[u].last; ++i) {
      unit_of[plan_.parameters[i].value] = u;
    }
  }
  std::vector<bool> sent(units_.size());
  std::vector<Operation> list;
  for (const Operation& operation : plan_.operations) {
    for (const TensorId id : operation.inputs) {
      const auto found = unit_of.find(id);
      if (found == unit_of.end() || sent[found->second]) continue;
      sent[found->second] = true;
      list.push_back(gather_new(units_[found->second], copies));
    }
  }
  for (std::size_t u = 0; u < learned_units(); ++u) {
    plan_.settling.push_back(gather_new(units_[u], false));
    if (copies) plan_.settling.push_back(gather_new(units_[u], true));
  }
  plan_.operations.insert(plan_.operations.begin(), std::make_move_iterator(list.begin()),
                          std::make_move_iterator(list.end()));
}

void Units::split_optimizer(double weight_decay) {
  const auto own_gradients = [&](Operation& operation) {
    std::erase_if(operation.inputs,
                  [](const Operand& each) { return each.slot == Slot::kGradient; });
    for (const OwnedRange& own : plan_.owned) {
      if (!own.frozen) operation.inputs.push_back({Slot::kGradient, own.gradient});
    }
  };
  const auto find = [&](OperationKind kind) {
    return std::ranges::find(plan_.operations, kind, &Operation::kind);
  };
  if (plan_.owned_gradients) {
    own_gradients(*find(OperationKind::kGradientNorm));
    own_gradients(*find(OperationKind::kAdamW));
  }
  const Operand sums = split_norm(plan_, plan_.squares);
  Operation meet = all_gather("all-reduce sums of squares", {sums}, {});
  meet.kind = OperationKind::kAllReduce;
  plan_.operations.insert(find(OperationKind::kGradientNorm) + 1, std::move(meet));
  step_owned(plan_, weight_decay);
  if (!plan_.owned_values) return gather_new_values();
  const auto adamw = find(OperationKind::kAdamW);
  for (std::vector<Operand>* operands : {&adamw->inputs, &adamw->outputs}) {
    std::erase_if(*operands, [](const Operand& each) {
      return each.slot == Slot::kValue || each.slot == Slot::kCopy;
    });
    for (const OwnedRange& own : plan_.owned) {
      if (!own.frozen) operands->push_back({Slot::kValue, own.value});
    }
  }
}

}  // namespace flashlab::train
