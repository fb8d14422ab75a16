#pragma once

// A program's host function behind a GPU's stream: the driver calls it, and nobody there takes its
// Status.

#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/program/program.h"

namespace flashlab::runtime {

/// The first failure since somebody was last told of one.
class HostFailure {
 public:
  void note(Status status) {
    if (status.ok()) return;
    std::lock_guard lock(mutex_);
    if (!there_.exchange(true)) first_ = std::move(status);
  }
  Status take() {
    if (!there_) return {};
    std::lock_guard lock(mutex_);
    there_ = false;
    return std::exchange(first_, {});
  }

 private:
  std::atomic<bool> there_{false};
  std::mutex mutex_;
  Status first_;
};

/// A host function with the addresses of one enqueued call.
struct HostCall {
  const HostWork* work;
  std::vector<void*> addresses;
  HostFailure* failure;
  bool once = false;  ///< deleted after it has run; in a graph it runs again

  static void run(void* data) {
    auto* call = static_cast<HostCall*>(data);
    call->failure->note(call->work->function(call->addresses));
    if (call->once) delete call;
  }
};

}  // namespace flashlab::runtime
