#pragma once

// Runs single steps of a list, with and without a clock on what they consist of. Each device has
// its own.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "flashlab/context.h"
#include "profile/recording.h"
#include "train/run/step_executor.h"

namespace flashlab::profile {

/// Times of one step from its call to its end.
struct StepTimes {
  double wall_ms = 0;
  std::optional<double> enqueue_ms;  ///< until the host was free again
  std::optional<double> device_ms;   ///< between events before and after it
};

class StepRecorder {
 public:
  virtual ~StepRecorder() = default;
  virtual Result<StepTimes> plain() = 0;
  /// Adds what ran; starts are counted from the step's.
  virtual Result<StepTimes> recorded(std::vector<Event>& events) = 0;
  /// What takes the times: "CUPTI", "event pairs"; why there is nothing better, or empty.
  virtual std::string clock() const = 0;
  virtual std::string why_not_better() const { return {}; }
};

/// Makes recorders of a context's device. What records a GPU listens from here on, since it does
/// not see into graphs that were made before.
class Recorders {
 public:
  virtual ~Recorders() = default;
  /// `step` outlives the recorder. Errors: kDeviceError.
  virtual Result<std::unique_ptr<StepRecorder>> make(const train::BoundStep& step) = 0;
};
/// `context` outlives them.
std::unique_ptr<Recorders> recorders(const Context& context);
/// Of a GPU: by CUPTI while the step runs as the graph that it is, else by pairs of events around
/// each operation, launched one by one.
std::unique_ptr<Recorders> gpu_recorders(const Context& context);

/// An operation of the plan as an event without times.
Event event_of(const train::StepPlan& plan, std::size_t operation);

/// Operations that are reported one by one.
class OperationRecorder final : public train::OperationObserver {
 public:
  OperationRecorder(const train::StepPlan& plan, std::vector<Event>& out)
      : plan_(plan), begin_(Clock::now()), out_(out) {}
  void operation_finished(std::size_t index, Clock::time_point start,
                          Clock::time_point end) override;
  void operation_enqueued(std::size_t /*index*/, double host_milliseconds) override {
    host_ms_ = host_milliseconds;
  }

 private:
  double host_ms_ = 0;  // of the operation that is reported next
  const train::StepPlan& plan_;
  Clock::time_point begin_;
  std::vector<Event>& out_;
};

}  // namespace flashlab::profile
