#pragma once

// Times of a step's operations, for a ledger.

#include <chrono>
#include <cstddef>

namespace flashlab::train {

/// Told after each operation of a step, on the thread that runs it.
class OperationObserver {
 public:
  using Clock = std::chrono::steady_clock;
  virtual ~OperationObserver() = default;
  /// `index`: in the plan's list.
  virtual void operation_finished(std::size_t index, Clock::time_point start,
                                  Clock::time_point end) = 0;
  /// Of a GPU, before that: how long the host was busy enqueueing the operation.
  virtual void operation_enqueued(std::size_t /*index*/, double /*host_milliseconds*/) {}
};

}  // namespace flashlab::train
