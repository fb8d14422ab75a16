#include "train/plan/order.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace flashlab::train {
namespace {

// Bytes of the arena, or of a tensor that has a place of its own.
struct Touch {
  TensorId space = kNoTensor;  // kNoTensor: the arena
  std::int64_t begin = 0, end = 0;
  bool writes = false;
};

// A range of the gradients: with the gaps between them, which its operands do not name.
Touch gradients_touch(const StepPlan& plan, const MemoryPlan& memory, std::int64_t begin,
                      std::int64_t end, bool writes) {
  const std::int64_t size = size_of(plan.tensor(plan.parameters.front().gradient).element);
  return {kNoTensor, memory.gradients_offset + begin * size, memory.gradients_offset + end * size,
          writes};
}

std::vector<Touch> touches_of(const StepPlan& plan, const MemoryPlan& memory,
                              const Operation& operation) {
  std::vector<Touch> out;
  const auto add = [&](TensorId id, bool writes) {
    const std::int64_t offset = memory.offsets[static_cast<std::size_t>(id)];
    const std::int64_t begin = std::max<std::int64_t>(offset, 0);
    out.push_back({offset < 0 ? id : kNoTensor, begin, begin + plan.tensor(id).bytes(), writes});
  };
  for (const TensorId id : operation.inputs) add(id, false);
  for (const TensorId id : operation.outputs) add(id, true);
  if (const auto* range = std::get_if<CollectiveAttributes>(&operation.attributes)) {
    if (range->end > range->begin && range->arena == CollectiveAttributes::Arena::kGradients) {
      out.push_back(gradients_touch(plan, memory, range->begin, range->end, true));
    }
  }
  const bool names_all = plan.owned_gradients || !operation.has(Slot::kGradient);
  if (operation.kind == OperationKind::kGradientNorm && !names_all) {
    out.push_back(gradients_touch(plan, memory, 0, plan.learned_end, false));
  }
  return out;
}

bool conflict(const std::vector<Touch>& a, const std::vector<Touch>& b) {
  return std::ranges::any_of(a, [&](const Touch& x) {
    return std::ranges::any_of(b, [&](const Touch& y) {
      return x.space == y.space && (x.writes || y.writes) && x.begin < y.end && y.begin < x.end;
    });
  });
}

// Of each stream the last operation that has ended when this one begins; -1: none.
using Clock = std::vector<int>;

class Order {
 public:
  Order(StepPlan& plan, const MemoryPlan& memory)
      : plan_(plan), last_(static_cast<std::size_t>(streams_of(plan)), -1) {
    for (const Operation& operation : plan.operations) {
      touches_.push_back(touches_of(plan, memory, operation));
    }
    clocks_.reserve(plan.operations.size());
  }

  /// Operation `i` begins. What it must wait for goes to `found`, latest first.
  template <class Found>
  void visit(int i, const Found& found) {
    const Operation& operation = at(i);
    Clock clock(last_.size(), -1);
    if (const int before = last_[stream(i)]; before >= 0) see(clock, before);
    for (const int earlier : operation.depends_on) see(clock, earlier);
    for (std::size_t other = 0; other < last_.size(); ++other) {
      if (other == stream(i)) continue;
      for (int j = last_[other]; j > clock[other]; --j) {
        if (stream(j) != other || !conflict(touches(i), touches(j))) continue;
        if (found(j)) see(clock, j);
      }
    }
    clocks_.push_back(std::move(clock));
    last_[stream(i)] = i;
  }

  Operation& at(int i) { return plan_.operations[static_cast<std::size_t>(i)]; }
  std::size_t stream(int i) { return static_cast<std::size_t>(at(i).stream); }

 private:
  const std::vector<Touch>& touches(int i) const { return touches_[static_cast<std::size_t>(i)]; }
  void see(Clock& clock, int earlier) {
    const Clock& theirs = clocks_[static_cast<std::size_t>(earlier)];
    for (std::size_t s = 0; s < clock.size(); ++s) clock[s] = std::max(clock[s], theirs[s]);
    int& own = clock[stream(earlier)];
    own = std::max(own, earlier);
  }

  StepPlan& plan_;
  std::vector<std::vector<Touch>> touches_;
  std::vector<Clock> clocks_;
  std::vector<int> last_;
};

}  // namespace

int streams_of(const StepPlan& plan) {
  int out = 1;
  for (const Operation& operation : plan.operations) out = std::max(out, operation.stream + 1);
  return out;
}

void order_streams(StepPlan& plan, const MemoryPlan& memory) {
  Order order(plan, memory);
  for (int i = 0; i < static_cast<int>(plan.operations.size()); ++i) {
    std::vector<int>& waits = order.at(i).depends_on;
    std::erase_if(waits, [&](int earlier) { return order.stream(earlier) != order.stream(i); });
    std::vector<int> more;
    order.visit(i, [&](int earlier) {
      more.push_back(earlier);
      return true;
    });
    waits.insert(waits.end(), more.begin(), more.end());
  }
}

Status check_order(const StepPlan& plan, const MemoryPlan& memory) {
  StepPlan copy = plan;
  Order order(copy, memory);
  std::pair<int, int> pair = {-1, -1};
  for (int i = 0; i < static_cast<int>(copy.operations.size()) && pair.first < 0; ++i) {
    order.visit(i, [&](int earlier) {
      pair = {earlier, i};
      return false;
    });
  }
  if (pair.first < 0) return {};
  return Status(
      StatusCode::kInternal,
      {"step",
       fmt::format("operations {} '{}' and {} '{}' touch common bytes on two streams", pair.first,
                   order.at(pair.first).name, pair.second, order.at(pair.second).name),
       "one that waits for the other", "please report it with the command"});
}

}  // namespace flashlab::train
