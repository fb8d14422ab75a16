#include "profile/step_recorder.h"

#include <chrono>

namespace flashlab::profile {
namespace {

using Clock = train::OperationObserver::Clock;

double milliseconds(Clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

class CpuRecorder final : public StepRecorder {
 public:
  explicit CpuRecorder(train::StepExecutor& executor) : executor_(executor) {}
  Result<StepTimes> plain() override { return run(nullptr); }
  Result<StepTimes> recorded(std::vector<Event>& events) override {
    OperationRecorder recorder(executor_.plan(), events);
    return run(&recorder);
  }
  std::string clock() const override { return "a clock around every operation"; }

 private:
  Result<StepTimes> run(train::OperationObserver* observer) {
    const Clock::time_point start = Clock::now();
    if (Status s = executor_.run(observer); !s.ok()) return s;
    StepTimes out;
    out.wall_ms = milliseconds(Clock::now() - start);
    return out;
  }
  train::StepExecutor& executor_;
};

class CpuRecorders final : public Recorders {
 public:
  Result<std::unique_ptr<StepRecorder>> make(const train::BoundStep& step) override {
    return std::unique_ptr<StepRecorder>(std::make_unique<CpuRecorder>(*step.executor));
  }
};

}  // namespace

Event event_of(const train::StepPlan& plan, std::size_t index) {
  const train::Operation& operation = plan.operations[index];
  Event out;
  out.name = operation.name;
  out.kernel = train::to_string(operation.kind);
  out.event_class = train::to_string(operation.operation_class);
  out.phase = train::to_string(operation.phase);
  out.layer = operation.layer;
  out.again = operation.generation > 0;
  out.flops = operation.flops;
  out.bytes = static_cast<double>(operation.bytes);
  out.stream = operation.stream;
  out.operation = static_cast<int>(index);
  return out;
}

void OperationRecorder::operation_finished(std::size_t index, Clock::time_point start,
                                           Clock::time_point end) {
  Event event = event_of(plan_, index);
  event.start_ms = milliseconds(start - begin_);
  event.duration_ms = milliseconds(end - start);
  event.host_ms = host_ms_;
  out_.push_back(std::move(event));
}

std::unique_ptr<Recorders> recorders(const Context& context) {
  if (context.device().kind == DeviceKind::kCuda) return gpu_recorders(context);
  return std::make_unique<CpuRecorders>();
}

}  // namespace flashlab::profile
