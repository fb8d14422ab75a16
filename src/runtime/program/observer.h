#pragma once

// Times of the steps inside one call, for an implementation that runs several in a row.

#include <chrono>
#include <string_view>

namespace flashlab::internal {

/// Told after each step of a call that runs in several (`naive`: scores, softmax, values).
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  virtual void step_finished(std::string_view name, double milliseconds) = 0;
  /// Of a GPU, before that: how long the host was busy enqueueing the step.
  virtual void step_enqueued(double /*host_milliseconds*/) {}
};

/// While one of these lives, calls made by this thread report their steps to `observer`. Scopes
/// nest; other threads are not affected. On a CPU a step has ended when it is reported.
class ObserveSteps {
 public:
  explicit ObserveSteps(StepObserver& observer) : outer_(current()) { current() = &observer; }
  ~ObserveSteps() { current() = outer_; }
  ObserveSteps(const ObserveSteps&) = delete;
  ObserveSteps& operator=(const ObserveSteps&) = delete;

  /// The observer of this thread, or null.
  static StepObserver*& current() {
    thread_local StepObserver* observer = nullptr;
    return observer;
  }

 private:
  StepObserver* outer_;
};

/// Runs a step and reports its wall time if somebody observes this thread.
template <class Step>
void observed_step(std::string_view name, const Step& step) {
  StepObserver* observer = ObserveSteps::current();
  if (observer == nullptr) return step();
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  step();
  observer->step_finished(name,
                          std::chrono::duration<double, std::milli>(Clock::now() - start).count());
}

}  // namespace flashlab::internal
