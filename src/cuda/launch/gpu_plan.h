#pragma once

// An attention plan of one GPU: a program whose tensors are the call's, by role.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "api/implementation.h"
#include "cuda/kernels/arguments.h"
#include "runtime/program/executor.h"

namespace flashlab::cuda {

/// One launch of a plan, as planners fill it in.
struct GpuStep {
  std::string name;  ///< for people and profilers; equals spec.entry unless it must differ
  KernelSpec spec;
  LaunchShape shape;
  std::string configuration;  ///< ConfigPrinter::summary(): what the kernel is compiled with
  std::string words;          ///< for people: formula or tile, stages; blocks and memory follow
  /// What the kernel is launched with. Empty: the pass's ForwardArguments or BackwardArguments,
  /// with every tensor and region.
  runtime::ParameterBlock parameters;
  /// The steps whose results it needs, -1 for one that was left out; not set: the one before.
  std::optional<std::vector<int>> after;
};

class GpuPlan : public internal::PlanState {
 public:
  GpuPlan(const GpuDevice& device, const Problem& problem, const internal::Geometry& geometry);

  /// Adds a workspace region and returns its index in the kernels' `regions`. Regions come before
  /// the kernels that use them. Precondition: fewer than kMaxRegions so far.
  int add_gpu_region(std::string name, std::size_t bytes);
  /// Adds a launch behind the steps there are. Returns its index.
  int add_kernel(GpuStep step);
  /// Adds a memset of a region, which no step has used yet, to zero. Returns its index.
  int add_zero(std::string name, int region);
  /// Adds any step to the program; what is shown of it the planner adds to `steps`.
  int append(runtime::Step step) { return executor_.program().add(std::move(step)); }

  Status forward(internal::ContextState& context, Stream stream, const ForwardTensors& tensors,
                 Workspace workspace) const override;
  Status backward(internal::ContextState& context, Stream stream, const BackwardTensors& tensors,
                  Workspace workspace) const override;
  /// Compiles every kernel that is not loaded yet, in parallel, and loads it. A call does this by
  /// itself; then it only launches.
  Status prepare(internal::ContextState& context) const override;

  /// See flashlab/schedule.h: what the first step leaves in two regions, which a call may bring.
  struct Listed {
    int tiles = -1, header = -1;  ///< regions; the header's bytes are at most kHeaderBytes
    std::int64_t tile_rows = 0;
    static constexpr std::int64_t kHeaderBytes = 16;
  };
  std::optional<Listed> listed;
  std::optional<TensorSpec> schedule_spec() const;
  /// Precondition of all below: `listed` is set, `schedule` is memory of that spec.
  Status make_schedule(Stream stream, const ForwardTensors& tensors, void* schedule) const;
  Status forward_by(Stream stream, const ForwardTensors& tensors, Workspace workspace,
                    void* schedule) const;

  /// The first step alone and those behind it, with the schedule as one more tensor.
  struct Halves {
    explicit Halves(const GpuPlan& plan);
    runtime::Executor list, rest;
  };
  const Halves& halves() const;

  int parts = 1;  ///< forward: in how many the keys are cut; kernels read it (ForwardArguments)

  const runtime::Program* program() const noexcept override { return &executor_.program(); }
  const GpuDevice& device() const noexcept { return executor_.device(); }

 private:
  int add(runtime::Step step, PlanStep shown);

  runtime::Executor executor_;
  mutable std::once_flag halved_;
  mutable std::unique_ptr<Halves> halves_;
};

}  // namespace flashlab::cuda
