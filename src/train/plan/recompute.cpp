#include "train/plan/recompute.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

namespace flashlab::train {
namespace {

// One rewrite: the old list is read in order, the new one grows.
class Rewrite {
 public:
  Rewrite(StepPlan& plan, const std::function<bool(const Operation&)>& source) : plan_(plan) {
    old_ = std::move(plan_.operations);
    plan_.operations.clear();
    for (std::size_t i = 0; i < old_.size(); ++i) {
      if (!source(old_[i])) continue;
      for (const TensorId id : old_[i].outputs) producers_[id].push_back(i);
    }
  }

  void run(const std::function<bool(const Operation&)>& target) {
    plan_.operations.reserve(old_.size());
    for (Operation& operation : old_) {
      if (target(operation)) redirect(operation.inputs);
      moved_to_.push_back(plan_.operations.size());
      plan_.operations.push_back(std::move(operation));
    }
  }

 private:
  void redirect(std::vector<Operand>& inputs) {
    for (Operand& each : inputs) each.tensor = copy_of(each);
  }

  // The second copy of a tensor, made now if need be; tensors of others stay themselves.
  TensorId copy_of(TensorId id) {
    const auto producers = producers_.find(id);
    if (producers == producers_.end()) return id;
    if (const auto known = copies_.find(id); known != copies_.end()) return known->second;
    new_tensor(id);
    for (const std::size_t index : producers->second) repeat(index);
    return copies_.at(id);
  }

  TensorId new_tensor(TensorId id) {
    if (const auto known = copies_.find(id); known != copies_.end()) return known->second;
    PlanTensor copy = plan_.tensor(id);
    copy.role = Role::kTemporary;
    plan_.tensors.push_back(std::move(copy));
    return copies_[id] = static_cast<TensorId>(plan_.tensors.size() - 1);
  }

  void repeat(std::size_t index) {
    if (std::exchange(repeated_[index], true)) return;
    Operation again = plan_.operations[moved_to_[index]];
    redirect(again.inputs);
    for (Operand& each : again.outputs) each.tensor = new_tensor(each);
    again.phase = Phase::kBackward;
    again.generation += 1;
    plan_.operations.push_back(std::move(again));
  }

  StepPlan& plan_;
  std::vector<Operation> old_;
  std::vector<std::size_t> moved_to_;  ///< where old operations are in the new list
  std::unordered_map<TensorId, std::vector<std::size_t>> producers_;
  std::unordered_map<TensorId, TensorId> copies_;
  std::unordered_map<std::size_t, bool> repeated_;
};

void repeat_group(StepPlan& plan, const CheckpointGroup& group, int first, int generation) {
  const int end = first + group.layers;
  const auto inside = [first, end](const Operation& operation) {
    return operation.layer >= first && operation.layer < end;
  };
  Rewrite rewrite(plan, [&](const Operation& operation) {
    const Phase phase = generation == 0 ? Phase::kForward : Phase::kBackward;
    return inside(operation) && operation.phase == phase && operation.generation == generation;
  });
  rewrite.run([&](const Operation& operation) {
    return inside(operation) && operation.phase == Phase::kBackward && operation.generation == 0;
  });
}

void checkpoint_from(StepPlan& plan, const std::vector<CheckpointGroup>& groups, int first,
                     int generation) {
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const bool last_nested = generation > 0 && i + 1 == groups.size();
    if (!last_nested && groups[i].rung == Rung::kBlock) {
      repeat_group(plan, groups[i], first, generation);
    }
    checkpoint_from(plan, groups[i].nested, first, last_nested ? generation : generation + 1);
    first += groups[i].layers;
  }
}

}  // namespace

void recompute(StepPlan& plan, const std::function<bool(const Operation&)>& source,
               const std::function<bool(const Operation&)>& target) {
  Rewrite(plan, source).run(target);
  finish(plan);
}

void checkpoint(StepPlan& plan, const std::vector<CheckpointGroup>& groups) {
  std::vector<Rung> rungs;
  for (const CheckpointGroup& group : groups) {
    const Rung rung = group.rung == Rung::kBlock ? Rung::kKeep : group.rung;
    rungs.insert(rungs.end(), static_cast<std::size_t>(group.layers), rung);
  }
  const bool any =
      std::any_of(rungs.begin(), rungs.end(), [](Rung rung) { return rung != Rung::kKeep; });
  // What these rungs make again is read by its own layer's backward only: one rewrite for all.
  if (any) {
    recompute(
        plan,
        [&](const Operation& operation) {
          const auto layer = static_cast<std::size_t>(std::max(operation.layer, 0));
          return operation.phase == Phase::kForward && operation.layer >= 0 &&
                 layer < rungs.size() && operation.rung <= rungs[layer];
        },
        [](const Operation& operation) { return operation.phase == Phase::kBackward; });
  }
  checkpoint_from(plan, groups, 0, 0);
  finish(plan);
}

namespace {

std::vector<CheckpointGroup> equal_groups(std::int64_t layers, std::int64_t size) {
  std::vector<CheckpointGroup> out;
  for (std::int64_t first = 0; first < layers; first += size) {
    out.push_back({static_cast<int>(std::min(size, layers - first)), {}});
  }
  return out;
}

// The number at the front of `text`, which it is taken from; 0 where there is none.
std::int64_t take_number(std::string_view& text) {
  std::int64_t value = 0;
  while (!text.empty() && text[0] >= '0' && text[0] <= '9' && value < 1'000'000) {
    value = 10 * value + (text[0] - '0');
    text.remove_prefix(1);
  }
  return value;
}

// One item at the front of `text`: "4", "norms" or "norms*12", which it is taken from.
struct Item {
  std::int64_t layers = 0;   ///< 0: none was given
  std::optional<Rung> rung;  ///< none: a group of so many layers
};

std::optional<Item> take_item(std::string_view& text) {
  Item out;
  for (const Rung rung : {Rung::kKeep, Rung::kNorms, Rung::kMlp, Rung::kQkv, Rung::kBlock}) {
    if (text.starts_with(to_string(rung))) out.rung = rung;
  }
  if (out.rung) {
    text.remove_prefix(std::string_view(to_string(*out.rung)).size());
    if (text.empty() || text[0] != '*') return out;
    text.remove_prefix(1);
  }
  out.layers = take_number(text);
  return out.layers > 0 ? std::optional(out) : std::nullopt;
}

void append_item(const Item& item, std::int64_t layers, std::vector<CheckpointGroup>& out) {
  if (item.rung != Rung::kBlock) {
    out.push_back({static_cast<int>(layers), {}, item.rung.value_or(Rung::kBlock)});
    return;
  }
  for (std::int64_t layer = 0; layer < layers; ++layer) out.push_back({});
}

}  // namespace

Result<std::vector<CheckpointGroup>> parse_checkpoint(std::string_view text, std::int64_t layers) {
  const Status bad = Status::invalid(
      {"checkpoint", fmt::format("\"{}\"", text),
       "4 (groups of 4 layers), 14,14,6 (these groups), 12/3 (groups of 12, each in groups of 3), "
       "or a rung: norms, mlp, qkv or block, as in qkv or mlp*10,norms*2",
       fmt::format("the model has {} layers", layers)});
  std::vector<CheckpointGroup> out;
  std::string_view rest = text;
  std::int64_t sum = 0;
  while (true) {
    const std::optional<Item> item = take_item(rest);
    if (!item) return bad;
    // One number, or one rung, is for all layers.
    const bool only = out.empty() && (rest.empty() || rest[0] == '/');
    if (only && !item->rung) {
      out = equal_groups(layers, item->layers);
      if (rest.empty()) return out;
      rest.remove_prefix(1);
      const std::int64_t inner = take_number(rest);
      if (inner < 1 || inner > item->layers || !rest.empty()) return bad;
      for (CheckpointGroup& group : out) group.nested = equal_groups(group.layers, inner);
      return out;
    }
    const std::int64_t count = item->layers > 0 ? item->layers : rest.empty() ? layers - sum : 0;
    sum += count;
    if (count < 1 || sum > layers) return bad;
    append_item(*item, count, out);
    if (rest.empty()) return out;
    if (rest[0] != ',' && rest[0] != '+') return bad;
    rest.remove_prefix(1);
  }
}

}  // namespace flashlab::train
