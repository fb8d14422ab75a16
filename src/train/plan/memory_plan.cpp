#include "train/plan/memory_plan.h"

#include <algorithm>
#include <bit>
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

// What is sent beside other work keeps its place until the next of its kind is sent: what came into
// the place earlier would wait for it.
void keep_while_sent(const StepPlan& plan, std::vector<Life>& lives) {
  for (std::size_t i = 0; i < plan.operations.size(); ++i) {
    const Operation& sent = plan.operations[i];
    if (sent.stream == 0) continue;
    std::size_t next = i + 1;
    while (next < plan.operations.size() && (plan.operations[next].stream != sent.stream ||
                                             plan.operations[next].kind != sent.kind)) {
      ++next;
    }
    if (next == plan.operations.size()) continue;
    for (const TensorId id : sent.inputs) {
      Life& life = lives[static_cast<std::size_t>(plan.whole_of(id))];
      if (life.last == static_cast<int>(i)) life.last = static_cast<int>(next);
    }
  }
}

std::vector<Life> lives_of(const StepPlan& plan) {
  std::vector<Life> out(plan.tensors.size());
  for (std::size_t i = 0; i < plan.operations.size(); ++i) {
    const Operation& operation = plan.operations[i];
    for (const std::vector<Operand>* list : {&operation.inputs, &operation.outputs}) {
      for (const TensorId id : *list) {
        Life& life = out[static_cast<std::size_t>(plan.whole_of(id))];
        if (life.first < 0) life.first = static_cast<int>(i);
        life.last = static_cast<int>(i);
      }
    }
  }
  keep_while_sent(plan, out);
  // Gradients are there when the step has ended.
  const auto keep = [&](TensorId id) {
    if (id == kNoTensor) return;
    Life& life = out[static_cast<std::size_t>(id)];
    life = {std::max(life.first, 0), static_cast<int>(plan.operations.size()) - 1};
  };
  for (const Parameter& parameter : plan.parameters) keep(parameter.gradient);
  for (const OwnedRange& range : plan.owned) keep(range.gradient);
  return out;
}

// What has a place in the arena, gradients apart.
std::vector<Placed> movable(const StepPlan& plan, const std::vector<Life>& lives) {
  std::vector<Placed> out;
  for (std::size_t i = 0; i < lives.size(); ++i) {
    const auto id = static_cast<TensorId>(i);
    const PlanTensor& tensor = plan.tensor(id);
    if (lives[i].first < 0 || is_persistent(tensor.role) || tensor.inside != kNoTensor) continue;
    out.push_back({id, lives[i], 0, aligned(plan.tensor(id).bytes())});
  }
  return out;
}

// Gradients keep the parameters' order. What nothing writes in a step stays zero only where nothing
// else comes: gaps between parameters are theirs from first to last.
std::vector<Placed> gradients(const StepPlan& plan, const std::vector<Life>& lives) {
  std::vector<Placed> out;
  const Life whole = {0, static_cast<int>(plan.operations.size()) - 1};
  const auto add = [&](TensorId id, std::int64_t offset) {
    const PlanTensor& tensor = plan.tensor(id);
    const Life& life = lives[static_cast<std::size_t>(id)];
    out.push_back({id, life, offset * size_of(tensor.element), aligned(tensor.bytes())});
  };
  if (plan.owned_gradients) {
    for (const OwnedRange& range : plan.owned) {
      if (!range.frozen) add(range.gradient, range.local);
    }
    return out;
  }
  std::int64_t end = 0, size = 0;
  const auto gap = [&](std::int64_t begin) {
    if (begin > end) out.push_back({kNoTensor, whole, end * size, (begin - end) * size});
  };
  for (const Parameter& parameter : plan.parameters) {
    if (parameter.gradient == kNoTensor) continue;
    size = size_of(plan.tensor(parameter.gradient).element);
    gap(parameter.offset);
    add(parameter.gradient, parameter.offset);
    end = parameter.offset + parameter.elements;
  }
  if (size > 0) gap(plan.learned_end);
  return out;
}

// Bytes of the arena that are taken, in order: ranges that touch are one.
class Ranges {
 public:
  void add(std::int64_t begin, std::int64_t end) {
    auto first = std::lower_bound(ranges_.begin(), ranges_.end(), begin,
                                  [](const Range& r, std::int64_t at) { return r.end < at; });
    auto last = first;
    for (; last != ranges_.end() && last->begin <= end; ++last) {
      begin = std::min(begin, last->begin);
      end = std::max(end, last->end);
    }
    if (first == last) {
      ranges_.insert(first, {begin, end});
      return;
    }
    *first = {begin, end};
    ranges_.erase(first + 1, last);
  }

  /// The lowest place from `offset` on where so many bytes are free.
  std::int64_t free_from(std::int64_t offset, std::int64_t bytes) const {
    auto range = std::upper_bound(ranges_.begin(), ranges_.end(), offset,
                                  [](std::int64_t at, const Range& r) { return at < r.end; });
    for (; range != ranges_.end() && range->begin < offset + bytes; ++range) offset = range->end;
    return offset;
  }

 private:
  struct Range {
    std::int64_t begin, end;
  };
  std::vector<Range> ranges_;
};

// What lies where and when: a tree over the operations, each half of a node's time a node below it.
// A life is a few nodes, so that a place is found without a look at every tensor of that time.
class Occupied {
 public:
  explicit Occupied(std::size_t operations) : size_(std::bit_ceil(operations + 1)) {
    nodes_.resize(2 * size_);
  }

  void add(const Placed& each) {
    const std::int64_t end = aligned(each.offset + each.bytes);
    visit({1, 0, size_}, each.life, [&](Node& node, bool covered) {
      node.sometimes.add(each.offset, end);
      if (covered) node.always.add(each.offset, end);
    });
  }

  /// The lowest place where nothing lies that lives at the same time.
  std::int64_t lowest_gap(const Placed& wanted) {
    std::vector<const Ranges*> taken;
    visit({1, 0, size_}, wanted.life, [&](const Node& node, bool covered) {
      taken.push_back(covered ? &node.sometimes : &node.always);
    });
    std::int64_t offset = 0;
    for (std::size_t agreed = 0, i = 0; agreed < taken.size(); i = (i + 1) % taken.size()) {
      const std::int64_t free = taken[i]->free_from(offset, wanted.bytes);
      agreed = free == offset ? agreed + 1 : 1;
      offset = free;
    }
    return offset;
  }

 private:
  struct Node {
    Ranges always;     ///< of tensors that live in all of its time, and not in all of its parent's
    Ranges sometimes;  ///< of all that live in some of it, and not in all of its parent's
  };
  struct Span {
    std::size_t node, first, size;
  };

  template <class Visit>
  void visit(const Span& span, const Life& life, const Visit& each) {
    const auto first = static_cast<std::size_t>(life.first);
    const auto last = static_cast<std::size_t>(life.last);
    if (last < span.first || first >= span.first + span.size) return;
    const bool covered = first <= span.first && last >= span.first + span.size - 1;
    each(nodes_[span.node], covered);
    if (covered) return;
    const std::size_t half = span.size / 2;
    visit({2 * span.node, span.first, half}, life, each);
    visit({2 * span.node + 1, span.first + half, half}, life, each);
  }

  std::size_t size_;
  std::vector<Node> nodes_;
};

// The largest tensors choose first; each takes the lowest place that is free in its time.
void place(std::vector<Placed> tensors, const std::vector<Placed>& fixed, std::size_t operations,
           MemoryPlan& out) {
  Occupied occupied(operations);
  const auto settle = [&](const Placed& each) {
    occupied.add(each);
    out.arena_bytes = std::max(out.arena_bytes, aligned(each.offset + each.bytes));
    if (each.tensor == kNoTensor) return;
    out.offsets[static_cast<std::size_t>(each.tensor)] = each.offset;
  };
  for (const Placed& each : fixed) settle(each);
  std::sort(tensors.begin(), tensors.end(), [](const Placed& a, const Placed& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.tensor < b.tensor;
  });
  for (Placed& each : tensors) {
    each.offset = occupied.lowest_gap(each);
    settle(each);
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
  for (const OwnedRange& range : plan.owned) {
    if (range.value != kNoTensor) in_flat_arena[static_cast<std::size_t>(range.value)] = true;
  }
  if (!plan.parameters.empty()) {
    const Parameter& first = plan.parameters.front();
    std::vector<TensorId> arenas = {first.master, first.first_moment, first.second_moment};
    if (first.value != first.master) arenas.push_back(first.value);
    for (const TensorId id : arenas) {
      if (id == kNoTensor) continue;
      const PlanTensor& tensor = plan.tensor(id);
      if (id == first.master && plan.keeps_low_halves()) {
        out[static_cast<std::size_t>(tensor.role)] += plan.owned_elements(false) * 2;
        continue;
      }
      const bool part = tensor.role == Role::kOptimizerState || plan.owned_values;
      out[static_cast<std::size_t>(tensor.role)] +=
          (part ? plan.owned_elements(/*with_frozen=*/tensor.role == Role::kParameter)
                : plan.arena_elements) *
          size_of(tensor.element);
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
  std::vector<Placed> tensors = movable(plan, out.lives);
  const std::vector<Placed> fixed = gradients(plan, out.lives);
  place(tensors, fixed, plan.operations.size(), out);
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    const PlanTensor& tensor = plan.tensors[i];
    if (tensor.inside == kNoTensor) continue;
    const std::int64_t base = out.offsets[static_cast<std::size_t>(tensor.inside)];
    if (base >= 0) out.offsets[i] = base + tensor.at * size_of(tensor.element);
  }
  tensors.insert(tensors.end(), fixed.begin(), fixed.end());
  find_peaks(plan, tensors, out);
  return out;
}

}  // namespace flashlab::train
