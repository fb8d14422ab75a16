#pragma once

#include <cstdint>
#include <memory>

#include "api/plan_cache.h"
#include "flashlab/attention.h"
#include "flashlab/context.h"

namespace flashlab::cuda {
class GpuDevice;
}  // namespace flashlab::cuda

namespace flashlab::internal {

class ThreadPool;

/// The inside of a Context.
class ContextState {
 public:
  /// `gpu` is the open device of a CUDA context (or one that is only described); null on a CPU.
  explicit ContextState(const ContextOptions& options, cuda::GpuDevice* gpu = nullptr);
  ~ContextState();

  Device device;
  const std::uint64_t id;  ///< of this process, never given twice: plans are a context's own
  int threads = 1;
  CpuIsa cpu_isa = CpuIsa::kScalar;
  Allocator* allocator = nullptr;

  /// The pool of CPU threads; its threads start on first use.
  ThreadPool& pool() const { return *pool_; }

  /// The GPU of a CUDA context, null on a CPU.
  cuda::GpuDevice* gpu() const noexcept { return gpu_; }

  PlanCache plans;

 private:
  std::unique_ptr<ThreadPool> pool_;
  cuda::GpuDevice* gpu_ = nullptr;            // lives as long as the process
  std::unique_ptr<Allocator> gpu_allocator_;  // the default one of a CUDA context
};

}  // namespace flashlab::internal
