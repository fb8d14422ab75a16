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

struct Life {
  TensorId tensor = kNoTensor;
  int first = -1, last = -1;  ///< operations, both included
  std::int64_t bytes = 0;
};

std::vector<Life> lives_of(const StepPlan& plan) {
  std::vector<Life> all(plan.tensors.size());
  for (std::size_t i = 0; i < plan.operations.size(); ++i) {
    const Operation& operation = plan.operations[i];
    for (const std::vector<TensorId>* list : {&operation.inputs, &operation.outputs}) {
      for (const TensorId id : *list) {
        Life& life = all[static_cast<std::size_t>(id)];
        if (life.first < 0) life.first = static_cast<int>(i);
        life.last = static_cast<int>(i);
      }
    }
  }
  std::vector<Life> out;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto id = static_cast<TensorId>(i);
    if (all[i].first < 0 || is_persistent(plan.tensor(id).role)) continue;
    all[i].tensor = id;
    all[i].bytes = aligned(plan.tensor(id).bytes());
    out.push_back(all[i]);
  }
  return out;
}

// The largest tensors choose first; each takes the lowest place where nothing that lives at the
// same time lies. `placed` holds what has a place, in order of offsets.
struct Placed {
  Life life;
  std::int64_t offset;
};

std::int64_t lowest_gap(const std::vector<Placed>& placed, const Life& life) {
  std::int64_t offset = 0;
  for (const Placed& other : placed) {
    if (other.life.last < life.first || other.life.first > life.last) continue;
    if (other.offset >= offset + life.bytes) break;
    offset = std::max(offset, other.offset + other.life.bytes);
  }
  return offset;
}

void place(std::vector<Life> lives, MemoryPlan& out) {
  std::sort(lives.begin(), lives.end(), [](const Life& a, const Life& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.tensor < b.tensor;
  });
  std::vector<Placed> placed;
  for (const Life& life : lives) {
    const std::int64_t offset = lowest_gap(placed, life);
    out.offsets[static_cast<std::size_t>(life.tensor)] = offset;
    out.arena_bytes = std::max(out.arena_bytes, offset + life.bytes);
    const auto at =
        std::upper_bound(placed.begin(), placed.end(), offset,
                         [](std::int64_t value, const Placed& p) { return value < p.offset; });
    placed.insert(at, {life, offset});
  }
}

void raise_peak(Peak& peak, int operation, const RoleBytes& bytes) {
  if (peak.operation >= 0 && sum(bytes) <= peak.total()) return;
  peak = {operation, bytes};
}

void find_peaks(const StepPlan& plan, const std::vector<Life>& lives, MemoryPlan& out) {
  std::map<int, std::vector<const Life*>> begins, ends;
  int layers = 0;
  for (const Life& life : lives) {
    begins[life.first].push_back(&life);
    ends[life.last].push_back(&life);
  }
  for (const Operation& operation : plan.operations) layers = std::max(layers, operation.layer + 1);
  out.layer_peaks.resize(static_cast<std::size_t>(layers));
  RoleBytes live = out.persistent;
  const auto role_of = [&](const Life* life) {
    return static_cast<std::size_t>(plan.tensor(life->tensor).role);
  };
  for (std::size_t i = 0; i < plan.operations.size(); ++i) {
    const Operation& operation = plan.operations[i];
    const int index = static_cast<int>(i);
    for (const Life* life : begins[index]) live[role_of(life)] += life->bytes;
    raise_peak(out.peak, index, live);
    raise_peak(out.phase_peaks[static_cast<std::size_t>(operation.phase)], index, live);
    if (operation.layer >= 0) {
      raise_peak(out.layer_peaks[static_cast<std::size_t>(operation.layer)], index, live);
    }
    for (const Life* life : ends[index]) live[role_of(life)] -= life->bytes;
  }
}

// Parameters, gradients and moments lie in arenas with the same gaps; everything else as it is.
RoleBytes persistent_bytes(const StepPlan& plan) {
  RoleBytes out{};
  std::vector<bool> in_arena(plan.tensors.size());
  for (const Parameter& parameter : plan.parameters) {
    for (const TensorId id : {parameter.value, parameter.master, parameter.gradient,
                              parameter.first_moment, parameter.second_moment}) {
      if (id != kNoTensor) in_arena[static_cast<std::size_t>(id)] = true;
    }
  }
  if (!plan.parameters.empty()) {
    const Parameter& first = plan.parameters.front();
    std::vector<TensorId> arenas = {first.master, first.gradient, first.first_moment,
                                    first.second_moment};
    if (first.value != first.master) arenas.push_back(first.value);
    for (const TensorId id : arenas) {
      if (id == kNoTensor) continue;
      const PlanTensor& tensor = plan.tensor(id);
      out[static_cast<std::size_t>(tensor.role)] += plan.arena_elements * size_of(tensor.element);
    }
  }
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    const PlanTensor& tensor = plan.tensors[i];
    if (is_persistent(tensor.role) && !in_arena[i]) {
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
  const std::vector<Life> lives = lives_of(plan);
  place(lives, out);
  find_peaks(plan, lives, out);
  return out;
}

}  // namespace flashlab::train
