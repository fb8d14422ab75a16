#include "train/plan/memory_plan.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace flashlab::train {
namespace {

// What kernels and libraries want of an address.
constexpr std::int64_t kAlignment = 256;

std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

struct Placed {
  TensorId tensor = kNoTensor;  ///< kNoTensor: a range kept free
  Life life;
  std::int64_t offset = 0, bytes = 0;
};

bool in_arena(const PlanTensor& tensor) {
  return tensor.role == Role::kGradient || !is_persistent(tensor.role);
}

std::vector<Life> lives_of(const StepPlan& plan) {
  std::vector<Life> out(plan.tensors.size());
  for (std::size_t i = 0; i < plan.operations.size(); ++i) {
    const Operation& operation = plan.operations[i];
    // A GPU's product may do the work of the GELU behind it: it writes the GELU's result.
    const bool gelu = operation.kind == OperationKind::kGelu;
    const int begin = static_cast<int>(i) - (gelu && i > 0 ? 1 : 0);
    for (const std::vector<TensorId>* list : {&operation.inputs, &operation.outputs}) {
      for (const TensorId id : *list) {
        Life& life = out[static_cast<std::size_t>(id)];
        if (life.first < 0) life.first = begin;
        life.last = static_cast<int>(i);
      }
    }
  }
  // Gradients are there when the step has ended.
  for (const Parameter& parameter : plan.parameters) {
    if (parameter.gradient == kNoTensor) continue;
    Life& life = out[static_cast<std::size_t>(parameter.gradient)];
    life = {std::max(life.first, 0), static_cast<int>(plan.operations.size()) - 1};
  }
  return out;
}

// What has a place in the arena, gradients apart.
std::vector<Placed> movable(const StepPlan& plan, const std::vector<Life>& lives) {
  std::vector<Placed> out;
  for (std::size_t i = 0; i < lives.size(); ++i) {
    const auto id = static_cast<TensorId>(i);
    if (lives[i].first < 0 || is_persistent(plan.tensor(id).role)) continue;
    out.push_back({id, lives[i], 0, aligned(plan.tensor(id).bytes())});
  }
  return out;
}

// Gradients keep the parameters' order. What nothing writes in a step stays zero only where nothing
// else comes: with gaps between parameters the whole range is the gradients' from first to last.
std::vector<Placed> gradients(const StepPlan& plan, std::vector<Life>& lives) {
  std::vector<Placed> out;
  if (plan.parameters.empty() || plan.parameters.front().gradient == kNoTensor) return out;
  const std::int64_t size = size_of(plan.tensor(plan.parameters.front().gradient).element);
  const Life whole = {0, static_cast<int>(plan.operations.size()) - 1};
  const bool gaps = plan.parameter_count() != plan.arena_elements;
  if (gaps) out.push_back({kNoTensor, whole, 0, plan.arena_elements * size});
  for (const Parameter& parameter : plan.parameters) {
    Life& life = lives[static_cast<std::size_t>(parameter.gradient)];
    if (gaps) life = whole;
    out.push_back(
        {parameter.gradient, life, parameter.offset * size, aligned(parameter.elements * size)});
  }
  return out;
}

// The largest tensors choose first; each takes the lowest place where nothing that lives at the
// same time lies. `placed` holds what has a place, in order of offsets.
std::int64_t lowest_gap(const std::vector<Placed>& placed, const Placed& wanted) {
  std::int64_t offset = 0;
  for (const Placed& other : placed) {
    if (other.life.last < wanted.life.first || other.life.first > wanted.life.last) continue;
    if (other.offset >= offset + wanted.bytes) break;
    offset = std::max(offset, aligned(other.offset + other.bytes));
  }
  return offset;
}

void place(std::vector<Placed> tensors, std::vector<Placed> placed, MemoryPlan& out) {
  const auto settle = [&](const Placed& each) {
    out.arena_bytes = std::max(out.arena_bytes, aligned(each.offset + each.bytes));
    if (each.tensor == kNoTensor) return;
    out.offsets[static_cast<std::size_t>(each.tensor)] = each.offset;
  };
  for (const Placed& each : placed) settle(each);
  std::sort(tensors.begin(), tensors.end(), [](const Placed& a, const Placed& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.tensor < b.tensor;
  });
  for (Placed& each : tensors) {
    each.offset = lowest_gap(placed, each);
    settle(each);
    const auto at =
        std::upper_bound(placed.begin(), placed.end(), each.offset,
                         [](std::int64_t value, const Placed& p) { return value < p.offset; });
    placed.insert(at, each);
  }
}

void raise_peak(Peak& peak, int operation, const RoleBytes& bytes) {
  if (peak.operation >= 0 && sum(bytes) <= peak.total()) return;
  peak = {operation, bytes};
}

void find_peaks(const StepPlan& plan, const std::vector<Placed>& tensors, MemoryPlan& out) {
  std::map<int, std::vector<const Placed*>> begins, ends;
  int layers = 0;
  for (const Placed& each : tensors) {
    if (each.tensor == kNoTensor) continue;
    begins[each.life.first].push_back(&each);
    ends[each.life.last].push_back(&each);
  }
  for (const Operation& operation : plan.operations) layers = std::max(layers, operation.layer + 1);
  out.layer_peaks.resize(static_cast<std::size_t>(layers));
  RoleBytes live = out.persistent;
  const auto role_of = [&](const Placed* each) {
    return static_cast<std::size_t>(plan.tensor(each->tensor).role);
  };
  for (std::size_t i = 0; i < plan.operations.size(); ++i) {
    const Operation& operation = plan.operations[i];
    const int index = static_cast<int>(i);
    for (const Placed* each : begins[index]) live[role_of(each)] += each->bytes;
    raise_peak(out.peak, index, live);
    raise_peak(out.phase_peaks[static_cast<std::size_t>(operation.phase)], index, live);
    if (operation.layer >= 0) {
      raise_peak(out.layer_peaks[static_cast<std::size_t>(operation.layer)], index, live);
    }
    for (const Placed* each : ends[index]) live[role_of(each)] -= each->bytes;
  }
}

// Parameters and moments lie in arenas with the same gaps; everything else as it is.
RoleBytes persistent_bytes(const StepPlan& plan) {
  RoleBytes out{};
  std::vector<bool> in_flat_arena(plan.tensors.size());
  for (const Parameter& parameter : plan.parameters) {
    for (const TensorId id :
         {parameter.value, parameter.master, parameter.first_moment, parameter.second_moment}) {
      if (id != kNoTensor) in_flat_arena[static_cast<std::size_t>(id)] = true;
    }
  }
  if (!plan.parameters.empty()) {
    const Parameter& first = plan.parameters.front();
    std::vector<TensorId> arenas = {first.master, first.first_moment, first.second_moment};
    if (first.value != first.master) arenas.push_back(first.value);
    for (const TensorId id : arenas) {
      if (id == kNoTensor) continue;
      const PlanTensor& tensor = plan.tensor(id);
      out[static_cast<std::size_t>(tensor.role)] += plan.arena_elements * size_of(tensor.element);
    }
  }
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    const PlanTensor& tensor = plan.tensors[i];
    if (!in_arena(tensor) && !in_flat_arena[i]) {
      out[static_cast<std::size_t>(tensor.role)] += aligned(tensor.bytes());
    }
  }
  return out;
}

}  // namespace

std::int64_t sum(const RoleBytes& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
}

MemoryPlan plan_memory(const StepPlan& plan) {
  MemoryPlan out;
  out.offsets.assign(plan.tensors.size(), -1);
  out.persistent = persistent_bytes(plan);
  out.lives = lives_of(plan);
  std::vector<Placed> tensors = movable(plan, out.lives), fixed = gradients(plan, out.lives);
  place(tensors, fixed, out);
  tensors.insert(tensors.end(), fixed.begin(), fixed.end());
  find_peaks(plan, tensors, out);
  return out;
}

}  // namespace flashlab::train
