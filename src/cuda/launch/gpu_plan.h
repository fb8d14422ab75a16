#pragma once

// A plan whose steps are kernels and memsets on one GPU: compiled in parallel by `prepare`,
// enqueued in order by a call.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "api/implementation.h"
#include "cuda/kernels/arguments.h"
#include "runtime/kernel_store/kernel.h"

namespace flashlab::cuda {

/// One launch of a plan. Every kernel of a forward plan takes one ForwardArguments, every kernel of
/// a backward plan one BackwardArguments, by value.
struct GpuStep {
  std::string name;  ///< for people and profilers; equals spec.entry unless it must differ
  KernelSpec spec;   ///< empty source: a memset of `region` to zero bytes
  LaunchShape shape;
  std::string configuration;  ///< ConfigPrinter::summary() and what the launch adds
  int region = -1;            ///< memset only: index of the workspace region
};

class GpuPlan : public internal::PlanState {
 public:
  GpuPlan(GpuDevice& device, const Problem& problem, const internal::Geometry& geometry);

  /// Adds a workspace region and returns its index in the kernels' `regions`. Precondition: fewer
  /// than kMaxRegions so far.
  int add_gpu_region(std::string name, std::size_t bytes);
  /// Adds a launch. Returns its index.
  int add_kernel(GpuStep step);
  /// Adds a memset of a region to zero. Returns its index.
  int add_zero(std::string name, int region);

  Status forward(internal::ContextState& context, Stream stream, const ForwardTensors& tensors,
                 Workspace workspace) const override;
  Status backward(internal::ContextState& context, Stream stream, const BackwardTensors& tensors,
                  Workspace workspace) const override;
  /// Compiles every kernel that is not loaded yet, in parallel, and loads it. A call does this by
  /// itself; then it only launches.
  Status prepare(internal::ContextState& context) const override;

  int parts = 1;  ///< forward: in how many the keys are cut; kernels read it (ForwardArguments)

  const std::vector<GpuStep>& gpu_steps() const noexcept { return gpu_steps_; }
  GpuDevice& device() const noexcept { return device_; }

 private:
  int add_step(PlanStep shown, GpuStep step);
  /// The loaded kernel of a step.
  Result<const Kernel*> kernel_of(std::size_t index) const;
  template <class Arguments>
  Status run(Stream stream, Arguments& arguments, Workspace workspace) const;

  GpuDevice& device_;
  std::vector<GpuStep> gpu_steps_;
  mutable std::vector<std::atomic<const Kernel*>> kernels_;  ///< per step, once loaded
};

}  // namespace flashlab::cuda
