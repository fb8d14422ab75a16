#include "profile/step_run.h"

#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <random>

#include "lab/machine/memory.h"
#include "lab/measure/statistics.h"
#include "train/run/cpu_executor.h"

namespace flashlab::profile {
namespace {

using Clock = train::OperationObserver::Clock;

double milliseconds(Clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

class Recorder final : public train::OperationObserver {
 public:
  Recorder(const train::StepPlan& plan, Clock::time_point origin, Recording& out)
      : plan_(plan), origin_(origin), out_(out) {}

  void begin_step(int step) { step_ = step; }

  void operation_finished(std::size_t index, Clock::time_point start,
                          Clock::time_point end) override {
    const train::Operation& operation = plan_.operations[index];
    Event event;
    event.name = operation.name;
    event.kernel = train::to_string(operation.kind);
    event.event_class = train::to_string(operation.operation_class);
    event.phase = train::to_string(operation.phase);
    event.layer = operation.layer;
    event.again = operation.generation > 0;
    event.flops = operation.flops;
    event.bytes = static_cast<double>(operation.bytes);
    event.step = step_;
    event.stream = operation.stream;
    event.start_ms = milliseconds(start - origin_);
    event.duration_ms = milliseconds(end - start);
    out_.events.push_back(std::move(event));
  }

 private:
  const train::StepPlan& plan_;
  Clock::time_point origin_;
  Recording& out_;
  int step_ = 0;
};

void fill_batch(const train::CpuExecutor& executor, const StepRunOptions& options) {
  const train::StepPlan& plan = executor.plan();
  const std::int64_t tokens = plan.tensor(plan.tokens).elements();
  std::mt19937_64 random(options.seed);
  std::uniform_int_distribution<std::int32_t> token(
      0, static_cast<std::int32_t>(options.vocabulary) - 1);
  for (std::int64_t i = 0; i < tokens; ++i) {
    executor.tokens()[i] = token(random);
    executor.targets()[i] = token(random);
  }
  executor.set_scalar(train::kLearningRate, 0);
  executor.set_scalar(train::kStepIndex, 1);
}

class Session {
 public:
  Session(train::CpuExecutor& executor, const StepRunOptions& options, Recording& out)
      : executor_(executor),
        options_(options),
        out_(out),
        planned_(options.warmup + 2 * options.steps),
        recorder_(executor.plan(), begin_, out) {}

  Status run() {
    for (int i = 0; i < options_.warmup; ++i) {
      StepSpan span = {fmt::format("warm-up {}", i + 1), true};
      if (Status s = step(span, nullptr); !s.ok()) return s;
      if (i == 0) out_.first_step_ms = span.duration_ms;
      out_.spans.push_back(span);
      if (stopped()) return {};
    }
    std::vector<double> plain;
    for (int i = 0; i < options_.steps; ++i) {
      StepSpan span = {fmt::format("step {}", i + 1), false};
      recorder_.begin_step(i);
      StepSpan unrecorded;
      // The two take turns in going first, so that a drifting clock hits both alike.
      if (i % 2 == 0) {
        if (Status s = step(unrecorded, nullptr); !s.ok()) return s;
      }
      if (Status s = step(span, &recorder_); !s.ok()) return s;
      if (i % 2 == 1) {
        if (Status s = step(unrecorded, nullptr); !s.ok()) return s;
      }
      out_.spans.push_back(span);
      plain.push_back(unrecorded.duration_ms);
      out_.plain_step_ms = lab::median_of(plain);
      const bool late =
          options_.max_total_ms > 0 && milliseconds(Clock::now() - begin_) > options_.max_total_ms;
      if (late) return {};
      if (i + 1 < options_.steps && stopped()) return {};
    }
    return {};
  }

 private:
  Status step(StepSpan& span, train::OperationObserver* observer) {
    if (options_.progress) options_.progress(done_, planned_, span.name);
    const Clock::time_point start = Clock::now();
    Status status = executor_.run(observer);
    const Clock::time_point end = Clock::now();
    span.start_ms = milliseconds(start - begin_);
    span.duration_ms = milliseconds(end - start);
    ++done_;
    return status;
  }

  bool stopped() {
    if (options_.cancel == nullptr || !options_.cancel->load()) return false;
    out_.interrupted = true;
    return true;
  }

  train::CpuExecutor& executor_;
  const StepRunOptions& options_;
  Recording& out_;
  const Clock::time_point begin_ = Clock::now();
  int done_ = 0, planned_ = 0;
  Recorder recorder_;
};

}  // namespace

Result<StepRun> record_step(const Context& context, const train::StepPlan& plan,
                            const StepRunOptions& options) {
  StepRun out;
  out.recording.title = plan.title;
  const bool told = lab::reset_process_peak();
  const std::int64_t before = lab::process_peak_bytes().value_or(0);
  Result<train::ParameterStore> parameters = train::ParameterStore::create(plan);
  if (!parameters.ok()) return parameters.status();
  parameters->initialize(options.seed);
  parameters->round_copies();
  Result<std::unique_ptr<train::CpuExecutor>> executor =
      train::CpuExecutor::create(context, plan, *parameters);
  if (!executor.ok()) return executor.status();
  fill_batch(**executor, options);
  if (Status s = Session(**executor, options, out.recording).run(); !s.ok()) return s;
  const std::optional<std::int64_t> after = lab::process_peak_bytes();
  if (told && after) out.measured_bytes = *after - before;
  return out;
}

}  // namespace flashlab::profile
