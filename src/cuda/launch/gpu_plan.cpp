#include "cuda/launch/gpu_plan.h"

#include <fmt/format.h>

#include <future>

#include "api/observer.h"
#include "cuda/launch/arguments.h"
#include "runtime/guard.h"

namespace flashlab::cuda {
namespace {

// Records an event before the first and after every step while somebody observes this thread, and
// reports the steps' times. Observing waits for the stream: measuring is its only use.
class StepTimes {
 public:
  StepTimes(const GpuDevice& device, CUstream stream, std::size_t steps)
      : observer_(internal::ObserveSteps::current()), device_(device), stream_(stream) {
    if (observer_ == nullptr) return;
    events_.resize(steps + 1, nullptr);
    for (CUevent& event : events_) {
      if (device_.api().cuEventCreate(&event, kEventDefault) != kCudaSuccess) observer_ = nullptr;
    }
    mark(0);
  }
  ~StepTimes() {
    for (CUevent event : events_) {
      if (event != nullptr) device_.api().cuEventDestroy(event);
    }
  }
  StepTimes(const StepTimes&) = delete;
  StepTimes& operator=(const StepTimes&) = delete;

  void mark(std::size_t index) const {
    if (observer_ != nullptr) device_.api().cuEventRecord(events_[index], stream_);
  }

  void report(const std::vector<GpuStep>& steps) const {
    if (observer_ == nullptr) return;
    if (device_.api().cuEventSynchronize(events_.back()) != kCudaSuccess) return;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      float milliseconds = 0;
      if (device_.api().cuEventElapsedTime(&milliseconds, events_[i], events_[i + 1]) ==
          kCudaSuccess) {
        observer_->step_finished(steps[i].name, milliseconds);
      }
    }
  }

 private:
  internal::StepObserver* observer_;
  const GpuDevice& device_;
  CUstream stream_;
  std::vector<CUevent> events_;
};

}  // namespace

GpuPlan::GpuPlan(GpuDevice& device, const Problem& problem, const internal::Geometry& geometry)
    : device_(device) {
  this->problem = problem;
  this->geometry = geometry;
}

int GpuPlan::add_gpu_region(std::string name, std::size_t bytes) {
  add_region(std::move(name), bytes);
  return static_cast<int>(regions.size()) - 1;
}

int GpuPlan::add_step(PlanStep shown, GpuStep step) {
  const int index = static_cast<int>(steps.size());
  shown.name = step.name;
  if (index > 0) shown.depends_on.push_back(index - 1);
  steps.push_back(std::move(shown));
  gpu_steps_.push_back(std::move(step));
  // Atomics do not move: while a plan is made none is set, so a fresh row of them is the same.
  kernels_ = std::vector<std::atomic<const Kernel*>>(gpu_steps_.size());
  return index;
}

int GpuPlan::add_kernel(GpuStep step) {
  const LaunchShape& s = step.shape;
  PlanStep shown;
  shown.kind = PlanStep::Kind::kKernel;
  shown.configuration =
      fmt::format("{} · grid {} x {} x {} · {} threads · {} shared bytes", step.configuration,
                  s.grid_x, s.grid_y, s.grid_z, s.threads, s.shared_bytes);
  return add_step(std::move(shown), std::move(step));
}

int GpuPlan::add_zero(std::string name, int region) {
  PlanStep shown;
  shown.kind = PlanStep::Kind::kMemset;
  GpuStep step;
  step.name = std::move(name);
  step.region = region;
  return add_step(std::move(shown), std::move(step));
}

Result<const Kernel*> GpuPlan::kernel_of(std::size_t index) const {
  if (const Kernel* known = kernels_[index].load(std::memory_order_acquire)) return known;
  const GpuStep& step = gpu_steps_[index];
  auto loaded = load_kernel(device_, step.spec, step.shape.shared_bytes);
  if (loaded.ok()) kernels_[index].store(*loaded, std::memory_order_release);
  return loaded;
}

Status GpuPlan::prepare(internal::ContextState&) const {
  // Nothing may be enqueued before everything is there: a call that fails writes nothing.
  std::vector<std::size_t> missing;
  for (std::size_t i = 0; i < gpu_steps_.size(); ++i) {
    if (gpu_steps_[i].spec.source.empty()) continue;
    if (kernels_[i].load(std::memory_order_acquire) == nullptr) missing.push_back(i);
  }
  if (missing.empty()) return {};
  std::vector<std::future<Status>> loading;
  for (std::size_t n = 1; n < missing.size(); ++n) {
    loading.push_back(std::async(std::launch::async, [this, i = missing[n]] {
      return internal::guard<Status>([&] { return kernel_of(i).status(); });
    }));
  }
  Status first = kernel_of(missing.front()).status();
  for (auto& each : loading) {
    Status status = each.get();
    if (first.ok() && !status.ok()) first = std::move(status);
  }
  return first;
}

template <class Arguments>
Status GpuPlan::run(Stream stream, Arguments& arguments, Workspace workspace) const {
  const ContextGuard current = device_.current();
  if (!current.ok()) {
    return Status(StatusCode::kDeviceError,
                  {"device", "the GPU's context cannot be made current", "a working context",
                   "an earlier kernel of this process may have failed"});
  }
  auto* base = static_cast<char*>(workspace.data);
  for (std::size_t i = 0; i < regions.size(); ++i) {
    arguments.regions[i] = base + regions[i].offset_bytes;
  }
  auto* cuda_stream = static_cast<CUstream>(stream.handle);
  const StepTimes times(device_, cuda_stream, gpu_steps_.size());
  for (std::size_t i = 0; i < gpu_steps_.size(); ++i) {
    const GpuStep& step = gpu_steps_[i];
    Status status;
    if (step.spec.source.empty()) {
      const WorkspaceRegion& region = regions[static_cast<std::size_t>(step.region)];
      status = device_.driver().check(
          device_.api().cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(base + region.offset_bytes),
                                        0, region.bytes, cuda_stream),
          "cuMemsetD8Async");
    } else {
      void* parameters[] = {&arguments};
      status = launch(device_, *kernels_[i].load(std::memory_order_relaxed), step.shape,
                      cuda_stream, parameters);
    }
    if (!status.ok()) return status;
    times.mark(i + 1);
  }
  times.report(gpu_steps_);
  return {};
}

Status GpuPlan::forward(internal::ContextState& context, Stream stream,
                        const ForwardTensors& tensors, Workspace workspace) const {
  if (Status s = prepare(context); !s.ok()) return s;
  auto arguments = arguments_of(geometry, tensors);
  arguments.parts = parts;
  return run(stream, arguments, workspace);
}

Status GpuPlan::backward(internal::ContextState& context, Stream stream,
                         const BackwardTensors& tensors, Workspace workspace) const {
  if (Status s = prepare(context); !s.ok()) return s;
  auto arguments = arguments_of(geometry, tensors);
  return run(stream, arguments, workspace);
}

}  // namespace flashlab::cuda
