#pragma once

// What a run of one problem keeps between its calls: the shared workspace, and the steps' times.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flashlab/attention.h"
#include "lab/machine/memory.h"
#include "lab/measure/statistics.h"
#include "lab/results/measurement.h"
#include "runtime/program/observer.h"

namespace flashlab::lab {

/// Workspace that all implementations of a pass use in turn: contents mean nothing between calls.
class SharedWorkspace {
 public:
  explicit SharedWorkspace(TrackingAllocator& allocator) : allocator_(allocator) {}
  /// The stream of the calls that use it; before the first `reserve`.
  void set_stream(Stream stream) { stream_ = stream; }
  SharedWorkspace(const SharedWorkspace&) = delete;
  SharedWorkspace& operator=(const SharedWorkspace&) = delete;
  ~SharedWorkspace() { release(); }

  /// At least `bytes` bytes. A refusal leaves what there was before.
  Status reserve(std::size_t bytes) {
    if (bytes <= bytes_) return {};
    const std::size_t before = bytes_;
    release();
    Status status = allocate(bytes);
    // What was just given back is there for the taking.
    if (!status.ok() && before > 0 && !allocate(before).ok()) bytes_ = 0;
    return status;
  }
  Workspace view(std::size_t bytes) const { return {bytes == 0 ? nullptr : data_, bytes}; }

 private:
  Status allocate(std::size_t bytes) {
    Result<void*> memory = allocator_.allocate(bytes, kAlignment, stream_, {"workspace", "bench"});
    if (!memory.ok()) return memory.status();
    data_ = *memory;
    bytes_ = bytes;
    return {};
  }
  void release() {
    if (data_ != nullptr) allocator_.deallocate(data_, bytes_, stream_);
    data_ = nullptr;
    bytes_ = 0;
  }
  static constexpr std::size_t kAlignment = 256;
  TrackingAllocator& allocator_;
  Stream stream_;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Collects the times of a call's steps.
class StepTimes final : public internal::StepObserver {
 public:
  void step_finished(std::string_view name, double milliseconds) override {
    for (auto& [known, times] : steps_) {
      if (known == name) {
        times.push_back(milliseconds);
        return;
      }
    }
    steps_.push_back({std::string(name), {milliseconds}});
  }
  std::vector<Measurement::Part> medians() const {
    std::vector<Measurement::Part> out;
    for (const auto& [name, times] : steps_) {
      out.push_back({name, median_of(times).value_or(0)});
    }
    return out;
  }

 private:
  std::vector<std::pair<std::string, std::vector<double>>> steps_;
};

}  // namespace flashlab::lab
