#include "runtime/program/host_streams.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/guard.h"
#include "runtime/program/nvtx.h"
#include "runtime/program/observer.h"

namespace flashlab::runtime {
namespace {

class Streams {
 public:
  Streams(const Program& program, const std::function<Status(std::size_t)>& run)
      : program_(program), run_(run), ended_(program.steps().size()) {}

  Status all() {
    std::vector<std::thread> others;
    for (std::size_t i = 1; i < program_.streams().size(); ++i) {
      others.emplace_back([this, i] { stream(static_cast<int>(i)); });
    }
    stream(0);
    for (std::thread& other : others) other.join();
    if (internal::StepObserver* observer = internal::ObserveSteps::current()) {
      for (const auto& [step, milliseconds] : beside_) {
        observer->step_finished(program_.steps()[step].name, milliseconds);
      }
    }
    return failure_;
  }

 private:
  void stream(int index) {
    NvtxPath path;
    for (std::size_t i = 0; i < program_.steps().size(); ++i) {
      const Step& step = program_.steps()[i];
      if (step.stream != index) continue;
      if (!may_begin(step)) return;
      path.move_to(step.scope, step.name);
      Status status;
      const auto begin = std::chrono::steady_clock::now();
      // A thread of its own has nobody above it that catches.
      internal::observed_step(step.name,
                              [&] { status = internal::guard<Status>([&] { return run_(i); }); });
      const std::chrono::duration<double, std::milli> busy =
          std::chrono::steady_clock::now() - begin;
      std::lock_guard lock(mutex_);
      ended_[i] = true;
      if (index > 0) beside_.emplace_back(i, busy.count());
      if (!status.ok() && failure_.ok()) failure_ = std::move(status);
      more_.notify_all();
    }
  }

  // Waits for what the step needs of other streams. False: something has failed.
  bool may_begin(const Step& step) {
    std::unique_lock lock(mutex_);
    more_.wait(lock, [&] {
      return !failure_.ok() || std::ranges::all_of(step.depends_on, [&](int earlier) {
        const auto at = static_cast<std::size_t>(earlier);
        return program_.steps()[at].stream == step.stream || ended_[at];
      });
    });
    return failure_.ok();
  }

  const Program& program_;
  const std::function<Status(std::size_t)>& run_;
  std::mutex mutex_;
  std::condition_variable more_;
  std::vector<bool> ended_;
  Status failure_;
  std::vector<std::pair<std::size_t, double>> beside_;  // steps of other threads: milliseconds
};

}  // namespace

Status run_here(const Program& program, const std::function<Status(std::size_t index)>& run) {
  return Streams(program, run).all();
}

}  // namespace flashlab::runtime
