#include "cuda/launch/gpu_plan.h"

#include <fmt/format.h>

#include <array>

#include "cuda/launch/arguments.h"

namespace flashlab::cuda {
namespace {

template <class Tensors>
Status enqueue(const runtime::Executor& executor, bool lengths, Stream stream,
               const Tensors& tensors, Workspace workspace, void* schedule = nullptr) {
  std::array<void*, kTensorRoles + 1> addresses{};
  addresses.back() = schedule;
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

std::optional<TensorSpec> GpuPlan::schedule_spec() const {
  if (!listed) return {};
  const auto bytes =
      static_cast<std::int64_t>(regions[static_cast<std::size_t>(listed->tiles)].bytes);
  const std::int64_t row_bytes = listed->tile_rows * static_cast<std::int64_t>(sizeof(int));
  const std::int64_t columns = (Listed::kHeaderBytes + bytes + row_bytes - 1) / row_bytes;
  TensorSpec spec = contiguous_spec(DType::kInt32, {listed->tile_rows, columns}, problem.q.device);
  spec.alignment_bytes = 16;
  return spec;
}

// Both have the tensors of a call, by role, and the schedule behind them.
GpuPlan::Halves::Halves(const GpuPlan& plan) : list({&plan.device()}), rest({&plan.device()}) {
  const runtime::Program& all = *plan.program();
  for (runtime::Executor* half : {&list, &rest}) {
    for (const TensorRow& row : kTensors) half->program().add_tensor(row.name);
    half->program().add_tensor("schedule");
  }
  constexpr int kSchedule = static_cast<int>(kTensorRoles);
  std::vector<runtime::Place> places;
  for (const runtime::Buffer& buffer : all.buffers()) {
    const int index = static_cast<int>(places.size());
    if (index == buffer_of_region(plan.listed->header)) {
      places.push_back({kSchedule});
    } else if (index == buffer_of_region(plan.listed->tiles)) {
      places.push_back({kSchedule, Listed::kHeaderBytes});
    } else if (buffer.external) {
      places.push_back({index});
    } else {
      places.push_back({rest.program().add_region(buffer.name, buffer.bytes)});
    }
  }
  const auto moved = [&](runtime::Place place) -> runtime::Place {
    const runtime::Place& base = places[static_cast<std::size_t>(place.buffer)];
    return {base.buffer, base.offset_bytes + place.offset_bytes};
  };
  for (std::size_t i = 0; i < all.steps().size(); ++i) {
    runtime::Step step = all.steps()[i];
    auto& kernel = std::get<runtime::KernelWork>(step.work);
    kernel.parameters.move(moved);
    step.depends_on.clear();  // of one stream
    // Before the second step there is somebody else's kernel now, which it begins after as any.
    if (i == 1) kernel.shape.programmatic = false;
    (i == 0 ? list : rest).program().add(std::move(step));
  }
}

const GpuPlan::Halves& GpuPlan::halves() const {
  std::call_once(halved_, [&] { halves_ = std::make_unique<Halves>(*this); });
  return *halves_;
}

Status GpuPlan::make_schedule(Stream stream, const ForwardTensors& tensors, void* schedule) const {
  return enqueue(halves().list, true, stream, tensors, {}, schedule);
}

Status GpuPlan::forward_by(Stream stream, const ForwardTensors& tensors, Workspace workspace,
                           void* schedule) const {
  return enqueue(halves().rest, true, stream, tensors, workspace, schedule);
}

}  // namespace flashlab::cuda
