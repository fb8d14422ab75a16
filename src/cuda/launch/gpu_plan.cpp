#include "cuda/launch/gpu_plan.h"

#include <fmt/format.h>

#include <array>

#include "cuda/launch/arguments.h"

namespace flashlab::cuda {
namespace {

template <class Tensors>
Status enqueue(const runtime::Executor& executor, bool lengths, Stream stream,
               const Tensors& tensors, Workspace workspace) {
  std::array<void*, kTensorRoles> addresses{};
  for_each_tensor(tensors, [&](const TensorRow& row, const GivenTensor& given) {
    // Kernels that only read take the same pointers as those that write.
    addresses[static_cast<std::size_t>(row.role)] = const_cast<void*>(given.data);
  });
  const CallScalars scalars = scalars_of(tensors, lengths);
  return executor.enqueue({.tensors = addresses,
                           .workspaces = {&workspace.data, 1},
                           .streams = {&stream, 1},
                           .scalars = scalars});
}

std::string memory_words(unsigned bytes) {
  return bytes % 1024 == 0 ? fmt::format("{} KiB", bytes / 1024)
                           : fmt::format("{:.1f} KiB", bytes / 1024.0);
}

// "512 blocks of 4 warps · 48 KiB of shared memory each"
std::string launch_words(const LaunchShape& shape) {
  const std::uint64_t blocks = std::uint64_t{shape.grid_x} * shape.grid_y * shape.grid_z;
  const bool warps = shape.threads % 32 == 0;
  const unsigned each = warps ? shape.threads / 32 : shape.threads;
  std::string text = fmt::format("{} block{} of {} {}{}", blocks, blocks == 1 ? "" : "s", each,
                                 warps ? "warp" : "thread", each == 1 ? "" : "s");
  if (shape.shared_bytes > 0) {
    text += fmt::format(" · {} of shared memory{}", memory_words(shape.shared_bytes),
                        blocks == 1 ? "" : " each");
  }
  const unsigned cluster = shape.cluster_x * shape.cluster_y * shape.cluster_z;
  if (cluster > 1) text += fmt::format(" · clusters of {}", cluster);
  return text;
}

}  // namespace

GpuPlan::GpuPlan(const GpuDevice& device, const Problem& problem,
                 const internal::Geometry& geometry)
    : executor_({&device}) {
  this->problem = problem;
  this->geometry = geometry;
  for (const TensorRow& row : kTensors) executor_.program().add_tensor(row.name);
}

int GpuPlan::add_gpu_region(std::string name, std::size_t bytes) {
  executor_.program().add_region(name, bytes);
  add_region(std::move(name), bytes);
  return static_cast<int>(regions.size()) - 1;
}

int GpuPlan::add(runtime::Step step, PlanStep shown) {
  shown.name = step.name;
  shown.depends_on = step.depends_on;
  steps.push_back(std::move(shown));
  return append(std::move(step));
}

int GpuPlan::add_kernel(GpuStep step) {
  if (step.parameters.bytes().empty()) {
    if (problem.pass == Pass::kForward) {
      device::ForwardArguments arguments = forward_arguments(problem, geometry);
      arguments.parts = parts;
      step.parameters = runtime::ParameterBlock(arguments);
    } else {
      step.parameters = runtime::ParameterBlock(backward_arguments(problem, geometry));
    }
    patch_addresses(step.parameters, problem, static_cast<int>(regions.size()));
  }
  const int before = static_cast<int>(steps.size()) - 1;
  if (!step.after) step.after = {before};
  std::erase(*step.after, -1);
  PlanStep shown;
  shown.configuration =
      step.words.empty() ? launch_words(step.shape) : step.words + " · " + launch_words(step.shape);
  return add(
      {.name = std::move(step.name),
       .configuration = std::move(step.configuration),
       .work = runtime::KernelWork{std::move(step.spec), step.shape, std::move(step.parameters)},
       .depends_on = std::move(*step.after)},
      std::move(shown));
}

int GpuPlan::add_zero(std::string name, int region) {
  const std::size_t bytes = regions[static_cast<std::size_t>(region)].bytes;
  return add(
      {.name = std::move(name),
       .work = runtime::MemsetWork{.target = {.buffer = buffer_of_region(region)}, .bytes = bytes}},
      {.kind = PlanStep::Kind::kMemset});
}

Status GpuPlan::prepare(internal::ContextState&) const {
  return executor_.prepare();
}

Status GpuPlan::forward(internal::ContextState&, Stream stream, const ForwardTensors& tensors,
                        Workspace workspace) const {
  return enqueue(executor_, geometry.has_lengths, stream, tensors, workspace);
}

Status GpuPlan::backward(internal::ContextState&, Stream stream, const BackwardTensors& tensors,
                         Workspace workspace) const {
  return enqueue(executor_, geometry.has_lengths, stream, tensors, workspace);
}

}  // namespace flashlab::cuda
