#include "profile/step_run.h"

#include <fmt/format.h>

#include <chrono>

#include "lab/machine/device_memory.h"
#include "lab/machine/memory.h"
#include "lab/measure/statistics.h"
#include "profile/step_recorder.h"
#include "runtime/program/nvtx.h"

namespace flashlab::profile {
namespace {

using Clock = std::chrono::steady_clock;

class Session {
 public:
  Session(const train::StepExecutor& executor, StepRecorder& recorder,
          const StepRunOptions& options, Recording& out)
      : executor_(executor),
        recorder_(recorder),
        options_(options),
        out_(out),
        planned_(options.warmup + 2 * options.steps) {}

  Status run() {
    for (int i = 0; i < options_.warmup; ++i) {
      StepSpan span = {fmt::format("warm-up {}", i + 1), true};
      // The first records of an instrument are slow, too; the first step of all stands apart.
      std::vector<Event> dropped;
      if (Status s = step(span, i > 0 ? &dropped : nullptr); !s.ok()) return s;
      if (i == 0) out_.first_step_ms = span.duration_ms;
      out_.spans.push_back(span);
      if (stopped()) return {};
    }
    for (int i = 0; i < options_.steps; ++i) {
      StepSpan span = {fmt::format("step {}", i + 1), false};
      // The two take turns in going first, so that a drifting clock hits both alike.
      if (i % 2 == 0) {
        if (Status s = plain_step(); !s.ok()) return s;
      }
      std::vector<Event> events;
      if (Status s = step(span, &events); !s.ok()) return s;
      if (i % 2 == 1) {
        if (Status s = plain_step(); !s.ok()) return s;
      }
      for (Event& event : events) {
        event.step = i;
        event.start_ms += span.start_ms;
        out_.events.push_back(std::move(event));
      }
      out_.spans.push_back(span);
      const bool late =
          options_.max_total_ms > 0 && milliseconds(Clock::now() - begin_) > options_.max_total_ms;
      if (late) return {};
      if (i + 1 < options_.steps && stopped()) return {};
    }
    return {};
  }

 private:
  static double milliseconds(Clock::duration duration) {
    return std::chrono::duration<double, std::milli>(duration).count();
  }

  // Each step draws its batch as training does; it is the same one each time.
  void draw_batch() {
    const Clock::time_point begin = Clock::now();
    train::draw_batch(executor_, options_.seed);
    batch_.push_back(milliseconds(Clock::now() - begin));
    out_.batch_ms = lab::median_of(batch_);
  }

  Status plain_step() {
    if (options_.progress) options_.progress(done_, planned_, "");
    draw_batch();
    const runtime::NvtxRange range("step");
    const Result<StepTimes> times = recorder_.plain();
    if (!times.ok()) return times.status();
    ++done_;
    wall_.push_back(times->wall_ms);
    out_.plain_step_ms = lab::median_of(wall_);
    if (times->enqueue_ms) enqueue_.push_back(*times->enqueue_ms);
    if (times->device_ms) device_.push_back(*times->device_ms);
    out_.enqueue_ms = lab::median_of(enqueue_);
    out_.device_step_ms = lab::median_of(device_);
    return {};
  }

  Status step(StepSpan& span, std::vector<Event>* events) {
    if (options_.progress) options_.progress(done_, planned_, span.name);
    draw_batch();
    span.start_ms = milliseconds(Clock::now() - begin_);
    const runtime::NvtxRange range(span.warmup ? "warm-up" : "recorded step");
    const Result<StepTimes> times =
        events != nullptr ? recorder_.recorded(*events) : recorder_.plain();
    if (!times.ok()) return times.status();
    span.duration_ms = times->wall_ms;
    span.device_ms = times->device_ms;
    ++done_;
    return {};
  }

  bool stopped() {
    if (options_.cancel == nullptr || !options_.cancel->load()) return false;
    out_.interrupted = true;
    return true;
  }

  const train::StepExecutor& executor_;
  StepRecorder& recorder_;
  const StepRunOptions& options_;
  Recording& out_;
  const Clock::time_point begin_ = Clock::now();
  int done_ = 0, planned_ = 0;
  std::vector<double> wall_, enqueue_, device_, batch_;
};

// How much more of the device's memory is taken than before. The process' own peak tells more of a
// CPU, whose free memory is everybody's.
class MemoryGrowth {
 public:
  explicit MemoryGrowth(const Context& context) {
    if (context.device().kind == DeviceKind::kCpu) {
      told_ = lab::reset_process_peak();
      before_ = lab::process_peak_bytes().value_or(0);
    } else if (auto memory = lab::device_memory(context); memory.ok()) {
      device_ = *memory;
      before_ = device_->available_bytes();
    }
  }
  std::optional<std::int64_t> now() const {
    if (device_ != nullptr) return before_ - device_->available_bytes();
    const std::optional<std::int64_t> after = lab::process_peak_bytes();
    if (!told_ || !after) return std::nullopt;
    return *after - before_;
  }

 private:
  bool told_ = false;
  std::int64_t before_ = 0;
  std::shared_ptr<lab::DeviceMemory> device_;
};

}  // namespace

Result<StepRun> record_step(const Context& context, const train::StepPlan& plan,
                            const StepRunOptions& options, runtime::Communicator* group) {
  StepRun out;
  out.recording.title = plan.title;
  const MemoryGrowth growth(context);
  const std::unique_ptr<Recorders> instruments = recorders(context);
  Result<train::BoundStep> step = train::bind_step(context, plan, options.seed, group);
  if (!step.ok()) return step.status();
  step->executor->set_scalar(train::kLearningRate, 0);
  auto recorder = instruments->make(*step);
  if (!recorder.ok()) return recorder.status();
  if (Status s = Session(*step->executor, **recorder, options, out.recording).run(); !s.ok())
    return s;
  out.recording.clock = (*recorder)->clock();
  out.why_not_better = (*recorder)->why_not_better();
  out.measured_bytes = growth.now();
  return out;
}

}  // namespace flashlab::profile
