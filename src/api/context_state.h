#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "flashlab/attention.h"
#include "flashlab/context.h"

namespace flashlab::internal {

class ThreadPool;

/// The inside of a Context.
class ContextState {
 public:
  explicit ContextState(const ContextOptions& options);
  ~ContextState();

  Device device;
  int threads = 1;
  CpuIsa cpu_isa = CpuIsa::kScalar;
  Allocator* allocator = nullptr;

  /// The pool of CPU threads; its threads start on first use.
  ThreadPool& pool() const { return *pool_; }

  /// Plan cache: key is the printed problem (addresses never enter it).
  std::mutex plans_mutex;
  std::unordered_map<std::string, Plan> plans;

 private:
  std::unique_ptr<ThreadPool> pool_;
};

}  // namespace flashlab::internal
