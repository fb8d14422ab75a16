#include "train/run/parallel_bench.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "train/run/step_executor.h"
#include "train/step/step.h"

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

// A step that all ranks begin together. With `phases` operations are timed one by one.
Status time_step(StepExecutor& executor, const Ranks& ranks, int step, bool phases, Samples& out) {
  executor.set_scalar(kStepIndex, step);
  PhaseTimes times(executor.plan());
  if (ranks.group != nullptr) {
    if (Status s = ranks.group->barrier("a step begins"); !s.ok()) return s;
  }
  const Timer::time_point begin = Timer::now();
  Status status = executor.run(phases ? &times : nullptr);
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

StepPlan without_collectives(StepPlan plan) {
  std::erase_if(plan.operations, [](const Operation& operation) {
    return operation.operation_class == OperationClass::kCommunication;
  });
  plan.settling.clear();
  finish(plan);
  return plan;
}

void begin(const StepExecutor& executor, std::uint64_t seed) {
  draw_batch(executor, seed);
  executor.set_scalar(kLearningRate, 1e-4);
}

// A GPU's clocks fall while a list is made, and at the start of a process they are those of a cold
// card: warm-ups take this time at least. All ranks see the same times, hence the same count.
constexpr double kWarmMs = 500, kColdMs = 2000;

Status time_list(StepExecutor& executor, const Ranks& ranks, const BenchCounts& counts, bool phases,
                 Samples& out, double warm_ms = kWarmMs) {
  int step = 0;
  for (double spent = 0; step < counts.warmup || spent < warm_ms;) {
    if (Status s = time_step(executor, ranks, ++step, phases, out); !s.ok()) return s;
    spent += out.slowest.back();
  }
  out = {};
  for (int i = 0; i < counts.repeats; ++i) {
    if (Status s = time_step(executor, ranks, ++step, phases, out); !s.ok()) return s;
  }
  return {};
}

constexpr std::uint64_t kTimedSeed = 1;
constexpr std::int64_t kDrawn = 1 << 16;

Result<BoundStep> make_timed(const Context& context, StepPlan plan,
                             runtime::Communicator* group = nullptr) {
  Result<ParameterStore> parameters = ParameterStore::create(plan);
  if (!parameters.ok()) return parameters.status();
  BoundStep out;
  out.parameters = std::make_unique<ParameterStore>(std::move(*parameters));
  out.parameters->initialize(kTimedSeed, kDrawn);
  auto executor = make_executor(context, std::move(plan), *out.parameters, group);
  if (!executor.ok()) return executor.status();
  out.executor = std::move(*executor);
  return out;
}

// A step is one graph, and no operation of it is looked at; one list after the other, so that a GPU
// holds the memory of one.
Result<ParallelTimes> time_on_gpus(const Context& context, const Ranks& ranks, StepPlan plan,
                                   StepPlan gradients, const BenchCounts& counts) {
  constexpr BenchCounts kLooks = {.warmup = 1, .repeats = 3};
  ParallelTimes out;
  Samples with, without, phases, part;
  StepPlan silent = without_collectives(plan);
  std::unique_ptr<ParameterStore> store;
  {
    Result<BoundStep> bound = make_timed(context, std::move(plan), ranks.of_steps());
    if (Status s = ranks.agree(bound.status()); !s.ok()) return s;
    store = std::move(bound->parameters);
    const std::unique_ptr<StepExecutor> executor = std::move(bound->executor);
    begin(*executor, kTimedSeed);
    out.bytes = executor->memory().peak.bytes;
    out.held = executor->held_bytes();
    out.scratch = executor->scratch_bytes();
    out.predicted = executor->memory().device_bytes();
    if (Status s = time_list(*executor, ranks, counts, false, with); !s.ok()) return s;
    if (Status s = time_list(*executor, ranks, kLooks, true, phases, 0); !s.ok()) return s;
  }
  // The list without collectives comes last: it may leave no numbers in the parameters.
  for (auto [list, samples] : {std::pair(&gradients, &part), std::pair(&silent, &without)}) {
    runtime::Communicator* group = list == &silent ? nullptr : ranks.of_steps();
    auto executor = make_executor(context, std::move(*list), *store, group);
    if (Status s = ranks.agree(executor.status()); !s.ok()) return s;
    begin(**executor, kTimedSeed);
    if (Status s = time_list(**executor, ranks, counts, false, *samples); !s.ok()) return s;
  }
  out.step_ms = middle(with.slowest);
  out.without_ms = middle(without.slowest);
  out.gradients_ms = middle(part.slowest);
  out.forward_ms = middle(phases.phases[0]);
  out.backward_ms = middle(phases.phases[1]);
  out.optimizer_ms = middle(phases.phases[2]);
  out.communication_ms = middle(phases.phases[kPhases]);
  return out;
}

// The list up to all gradients, bound to what the whole list's optimizer leaves.
Result<StepPlan> gradients_of(const ModelConfig& model, StepOptions options,
                              const ParallelOptions& parallel) {
  options.mode = StepMode::kBackward;
  return build_parallel_step(model, options, parallel);
}

}  // namespace

Result<ParallelTimes> time_parallel(const Context& context, const Ranks& ranks,
                                    const ModelConfig& model, const StepOptions& options,
                                    const BenchCounts& counts) {
  Result<StepPlan> plan = build_parallel_step(model, options, ranks.parallel);
  if (!plan.ok()) return plan.status();
  if (options.gpu) {
    Result<StepPlan> gradients = gradients_of(model, options, ranks.parallel);
    if (!gradients.ok()) return gradients.status();
    return time_on_gpus(context, ranks, std::move(*plan), std::move(*gradients), counts);
  }
  StepPlan silent = without_collectives(*plan);
  Result<BoundStep> bound = make_timed(context, std::move(*plan), ranks.of_steps());
  if (Status s = ranks.agree(bound.status()); !s.ok()) return s;
  begin(*bound->executor, kTimedSeed);
  ParallelTimes out;
  out.bytes = bound->executor->memory().peak.bytes;
  out.held = bound->executor->held_bytes();
  out.scratch = bound->executor->scratch_bytes();
  out.predicted = bound->executor->memory().device_bytes();
  Result<std::unique_ptr<StepExecutor>> alone =
      make_executor(context, std::move(silent), *bound->parameters);
  if (Status s = ranks.agree(alone.status()); !s.ok()) return s;
  begin(**alone, kTimedSeed);
  // In turns: what else the machine does meets both.
  Samples with, without;
  for (int i = 0; i < counts.warmup + counts.repeats; ++i) {
    if (i == counts.warmup) with = without = {};
    if (Status s = time_step(*bound->executor, ranks, i + 1, true, with); !s.ok()) return s;
    if (Status s = time_step(**alone, ranks, i + 1, true, without); !s.ok()) return s;
  }
  out.step_ms = middle(with.slowest);
  out.without_ms = middle(without.slowest);
  out.forward_ms = middle(with.phases[0]);
  out.backward_ms = middle(with.phases[1]);
  out.optimizer_ms = middle(with.phases[2]);
  out.communication_ms = middle(with.phases[kPhases]);
  return out;
}

Result<OneRankTimes> time_one_rank(const Context& context, const Ranks& ranks,
                                   const ModelConfig& model, const StepOptions& options,
                                   const BenchCounts& counts) {
  StepOptions own = options;
  own.batch = options.batch / options.ranks;
  own.shares = own.ranks = 1;
  own.rank = 0;
  OneRankTimes out;
  std::unique_ptr<ParameterStore> store;
  for (const StepMode mode : {StepMode::kFull, StepMode::kBackward}) {
    own.mode = mode;
    Result<StepPlan> plan = build_step(model, own);
    if (!plan.ok()) return plan.status();
    std::unique_ptr<StepExecutor> executor;
    Status made;
    if (store == nullptr) {
      Result<BoundStep> bound = make_timed(context, std::move(*plan));
      made = bound.status();
      if (bound.ok()) {
        store = std::move(bound->parameters);
        executor = std::move(bound->executor);
      }
    } else {
      auto second = make_executor(context, std::move(*plan), *store);
      made = second.status();
      if (second.ok()) executor = std::move(*second);
    }
    if (Status s = ranks.agree(made); !s.ok()) return s;
    begin(*executor, kTimedSeed);
    Samples samples;
    const double warm_ms = mode == StepMode::kFull ? kColdMs : kWarmMs;
    if (Status s = time_list(*executor, ranks, counts, false, samples, warm_ms); !s.ok()) return s;
    (mode == StepMode::kFull ? out.step_ms : out.gradients_ms) = middle(samples.slowest);
  }
  return out;
}

}  // namespace flashlab::train
