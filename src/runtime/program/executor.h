#pragma once

// Runs a program: enqueues it on GPUs, or runs it on this processor; captures it into a graph,
// times its steps for an observer (observer.h) and names them for a profiler (nvtx.h).

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "runtime/cuda/device.h"
#include "runtime/program/program.h"

namespace flashlab::runtime {

/// A program captured with the addresses of one call; replayed with one launch.
class CudaGraph {
 public:
  CudaGraph(const cuda::GpuDevice& device, cuda::CUgraphExec graph)
      : device_(&device), graph_(graph) {}
  CudaGraph(CudaGraph&& other) noexcept
      : device_(other.device_), graph_(std::exchange(other.graph_, nullptr)) {}
  CudaGraph& operator=(CudaGraph&&) = delete;
  ~CudaGraph();

  /// Enqueues the whole program. Errors: kDeviceError.
  Status launch(Stream stream) const;

 private:
  const cuda::GpuDevice* device_;
  cuda::CUgraphExec graph_;
};

/// A program and the GPUs it runs on, one per device of the program; without any, all of its
/// devices are this processor, where memsets, copies, collectives and host functions run: the first
/// stream on the caller's thread, every other one on a thread of its own. Append
/// steps first; after the first `prepare` or call the program does not change and serves several
/// threads at once. The executor outlives the host functions it has enqueued.
class Executor {
 public:
  explicit Executor(std::vector<const cuda::GpuDevice*> devices = {});
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// To append steps: only before the first `prepare` or call.
  Program& program() noexcept { return program_; }
  const Program& program() const noexcept { return program_; }
  const cuda::GpuDevice& device(int index = 0) const { return *devices_[index_of(index)]; }

  /// Checks the program; compiles what is missing, kernels in parallel, and loads it. A call does
  /// this by itself; then it only launches. Errors: kInternal (a broken program), those of the
  /// compiler, the loader and cuBLASLt.
  Status prepare() const;

  /// Enqueues all steps and returns; nothing is allocated for a program of one stream without host
  /// functions. A call that fails before its first step has written nothing. On this processor the
  /// last step has ended then. While somebody observes this thread it waits for the steps and
  /// reports their times.
  /// Errors: as prepare; kDeviceError; kUnsupported at the first step that needs a GPU, with how
  /// many have run; that of a host function.
  Status enqueue(const Call& call) const;

  /// The program as a graph of this call's addresses and scalars. `call.streams[0]` is not the
  /// default stream; nothing runs yet. Errors: as enqueue, and kDeviceError.
  Result<CudaGraph> capture(const Call& call) const;

 private:
  class Run;
  struct Loaded;  ///< what prepare leaves
  static std::size_t index_of(int index) { return static_cast<std::size_t>(index); }
  Status load() const;

  Program program_;
  std::vector<const cuda::GpuDevice*> devices_;
  mutable std::mutex mutex_;
  mutable std::unique_ptr<Loaded> loaded_;
  mutable std::atomic<bool> ready_{false};
};

}  // namespace flashlab::runtime
