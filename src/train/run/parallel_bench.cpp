#include "train/run/parallel_bench.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "train/run/step_executor.h"

namespace flashlab::train {
namespace {

using Timer = std::chrono::steady_clock;

double ms_between(Timer::time_point begin, Timer::time_point end) {
  return std::chrono::duration<double, std::milli>(end - begin).count();
}

// Forward, backward, optimizer; collectives.
class PhaseTimes final : public OperationObserver {
 public:
  explicit PhaseTimes(const StepPlan& plan) : plan_(plan) {}
  void operation_finished(std::size_t index, Clock::time_point start,
                          Clock::time_point end) override {
    const Operation& operation = plan_.operations[index];
    const bool sent = operation.operation_class == OperationClass::kCommunication;
    ms[sent ? kPhases : static_cast<std::size_t>(operation.phase)] += ms_between(start, end);
  }
  std::array<double, kPhases + 1> ms{};

 private:
  const StepPlan& plan_;
};

double middle(std::vector<double> values) {
  std::ranges::sort(values);
  return values.empty() ? 0 : values[values.size() / 2];
}

// Samples of one list.
struct Samples {
  std::vector<double> slowest;
  std::array<std::vector<double>, kPhases + 1> phases;
};

// A step that all ranks begin together.
Status time_step(StepExecutor& executor, const Ranks& ranks, int step, Samples& out) {
  executor.set_scalar(kStepIndex, step);
  PhaseTimes times(executor.plan());
  if (ranks.group != nullptr) {
    if (Status s = ranks.group->barrier("a step begins"); !s.ok()) return s;
  }
  const Timer::time_point begin = Timer::now();
  Status status = executor.run(&times);
  if (status.ok()) status = executor.wait();
  const double own = ms_between(begin, Timer::now());
  if (!status.ok()) return status;
  const Result<std::vector<std::byte>> all = ranks.gather(&own, sizeof own, "times of a step");
  if (!all.ok()) return all.status();
  std::vector<double> each(static_cast<std::size_t>(ranks.size()));
  std::memcpy(each.data(), all->data(), all->size());
  out.slowest.push_back(std::ranges::max(each));
  for (std::size_t phase = 0; phase < out.phases.size(); ++phase) {
    out.phases[phase].push_back(times.ms[phase]);
  }
  return {};
}

}  // namespace

Result<ParallelTimes> time_parallel(const Context& context, const Ranks& ranks,
                                    const ModelConfig& model, const StepOptions& options,
                                    int warmup, int repeats) {
  constexpr std::uint64_t kSeed = 1;
  Result<StepPlan> plan = build_parallel_step(model, options, ranks.parallel);
  if (!plan.ok()) return plan.status();
  StepPlan silent = *plan;
  std::erase_if(silent.operations, [](const Operation& operation) {
    return operation.operation_class == OperationClass::kCommunication;
  });
  finish(silent);
  Result<BoundStep> bound = make_step(context, std::move(*plan), kSeed, ranks.group);
  if (Status s = ranks.agree(bound.status()); !s.ok()) return s;
  draw_batch(*bound->executor, kSeed);
  bound->executor->set_scalar(kLearningRate, 1e-4);
  ParallelTimes out;
  out.bytes = bound->executor->memory().peak.bytes;
  out.held = bound->executor->held_bytes();
  out.predicted = bound->executor->memory().device_bytes();
  Result<std::unique_ptr<StepExecutor>> alone =
      make_executor(context, std::move(silent), *bound->parameters);
  if (Status s = ranks.agree(alone.status()); !s.ok()) return s;
  draw_batch(**alone, kSeed);
  (*alone)->set_scalar(kLearningRate, 1e-4);
  // In turns: what else the machine does meets both.
  Samples with, without;
  for (int i = 0; i < warmup + repeats; ++i) {
    if (i == warmup) with = without = {};
    if (Status s = time_step(*bound->executor, ranks, i + 1, with); !s.ok()) return s;
    if (Status s = time_step(**alone, ranks, i + 1, without); !s.ok()) return s;
  }
  out.step_ms = middle(with.slowest);
  out.without_ms = middle(without.slowest);
  out.forward_ms = middle(with.phases[0]);
  out.backward_ms = middle(with.phases[1]);
  out.optimizer_ms = middle(with.phases[2]);
  out.communication_ms = middle(with.phases[kPhases]);
  return out;
}

}  // namespace flashlab::train
