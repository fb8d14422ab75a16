#include "lab/measure/gpu_roof.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "cuda/kernels/lab/roof_arguments.h"
#include "lab/machine/gpu_environment.h"
#include "lab/machine/gpu_memory.h"
#include "lab/measure/gpu_clock.h"
#include "lab/measure/statistics.h"
#include "runtime/kernel_store/config.h"
#include "runtime/program/executor.h"

namespace flashlab::lab {
namespace {

// Two blocks of 8 warps give every scheduler 4 warps of 16 independent chains: more change nothing.
constexpr unsigned kBlocksPerMultiprocessor = 2;
constexpr int kChains = 16;  // of roof.cu
constexpr int kGpuWindows = 7;
constexpr double kLaunchMs = 1;  // of one launch: far above the cost of launching
constexpr std::size_t kGpuCopyBytes = std::size_t{1} << 30;
constexpr unsigned kReadBlocksPerMultiprocessor = 8;
constexpr int kReadPasses = 8;  // of a launch, whose start and end are then a thousandth of it

// The roof's kernel, its output and its clock.
class RoofLoop {
 public:
  RoofLoop(cuda::GpuDevice& gpu, std::shared_ptr<DeviceMemory> memory)
      : gpu_(gpu), memory_(std::move(memory)), executor_({&gpu}) {}
  RoofLoop(const RoofLoop&) = delete;
  RoofLoop& operator=(const RoofLoop&) = delete;
  ~RoofLoop() { memory_->release(out_); }

  Status create(const GpuRoof& roof) {
    cuda::LaunchShape shape;
    shape.grid_x = kBlocksPerMultiprocessor * static_cast<unsigned>(gpu_.info().multiprocessors);
    shape.threads = kRoofThreads;
    const std::size_t threads = std::size_t{shape.grid_x} * kRoofThreads;
    flops_per_turn_ = roof.flops_per_thread * static_cast<double>(threads);
    auto out = memory_->allocate(threads * sizeof(float));
    if (!out.ok()) return out.status();
    out_ = *out;
    runtime::ParameterBlock block(device::RoofArguments{.out = static_cast<float*>(out_)});
    block.scalar(offsetof(device::RoofArguments, turns), sizeof(int), 0);
    executor_.program().add(
        {.name = "lab_roof",
         .work = runtime::KernelWork{roof_kernel(roof), shape, std::move(block)}});
    if (Status s = executor_.prepare(); !s.ok()) return s;
    auto clock = gpu_clock(memory_);
    if (!clock.ok()) return clock.status();
    clock_ = std::move(*clock);
    return calibrate();
  }

  // FLOP/s over a window; 0 after a failure.
  double window(double seconds) {
    const int launches = std::max(1, static_cast<int>(std::lround(seconds * 1e3 / kLaunchMs)));
    const Result<double> ms = run(launches);
    if (!ms.ok() || !(*ms > 0)) return 0;
    return flops_per_turn_ * turns_ * launches / (*ms * 1e-3);
  }

 private:
  Result<double> run(int launches) {
    if (Status s = clock_->start(); !s.ok()) return s;
    for (int i = 0; i < launches; ++i) {
      const Stream stream = memory_->stream();
      const auto turns = static_cast<std::uint64_t>(turns_);
      const Status s = executor_.enqueue({.streams = {&stream, 1}, .scalars = {&turns, 1}});
      if (!s.ok()) return s;
    }
    return clock_->stop();
  }

  // Turns of the loop that make a launch last kLaunchMs.
  Status calibrate() {
    turns_ = 1000;
    double ms = 0;
    for (int attempt = 0; attempt < 8 && ms < 0.5 * kLaunchMs; ++attempt) {
      const Result<double> took = run(1);
      if (!took.ok()) return took.status();
      ms = *took;
      const double factor = std::clamp(kLaunchMs / std::max(ms, 1e-3), 0.1, 100.0);
      turns_ = static_cast<int>(std::clamp(turns_ * factor, 100.0, 1e8));
    }
    return {};
  }

  cuda::GpuDevice& gpu_;
  std::shared_ptr<DeviceMemory> memory_;
  std::unique_ptr<SampleClock> clock_;
  runtime::Executor executor_;
  double flops_per_turn_ = 0;
  void* out_ = nullptr;
  int turns_ = 0;
};

}  // namespace

GpuRoof gpu_roof(const cuda::DeviceInfo& gpu, DType dtype, Precision precision) {
  const bool turing = gpu.major < 8;
  const bool tf32 = dtype == DType::kFp32 && precision == Precision::kTf32;
  const bool tensor_cores = tf32 || dtype == DType::kFp16 || dtype == DType::kBf16;
  // sm_75 has tensor cores for fp16 only.
  if (dtype == DType::kFp64 || (turing && tensor_cores && dtype != DType::kFp16)) return {};
  GpuRoof out;
  const char* element = dtype == DType::kFp16 ? "kFp16" : dtype == DType::kBf16 ? "kBf16" : "kFp32";
  const bool half_depth = tf32 || turing;
  cuda::ConfigPrinter config;
  config.choice("kElement", "Element", element)
      .boolean("kTensorCores", tensor_cores)
      .boolean("kTuring", turing);
  out.config = config.text();
  out.name = tensor_cores ? fmt::format("mma.sync {}", tf32 ? "tf32" : to_string(dtype))
                          : std::string("fp32 FMA");
  const double per_product = 2.0 * 16 * 8 * (half_depth ? 8 : 16) / 32;  // a warp's, per thread
  out.flops_per_thread = kChains * (tensor_cores ? per_product : 2.0);
  return out;
}

cuda::KernelSpec roof_kernel(const GpuRoof& roof) {
  return {"lab/roof.cu", "lab_roof", roof.config, {}};
}

Result<RoofWindow> gpu_roof_window(std::shared_ptr<DeviceMemory> memory, DType dtype,
                                   Precision precision) {
  auto gpu = gpu_of(memory->device());
  if (!gpu.ok()) return gpu.status();
  const GpuRoof roof = gpu_roof((*gpu)->info(), dtype, precision);
  if (roof.name.empty()) {
    return Status::unsupported({"roof",
                                fmt::format("{} on {}", to_string(dtype), (*gpu)->info().name),
                                "a type that this GPU has fast instructions for", ""});
  }
  auto loop = std::make_shared<RoofLoop>(**gpu, std::move(memory));
  if (Status s = loop->create(roof); !s.ok()) return s;
  return RoofWindow([loop](double seconds) { return loop->window(seconds); });
}

std::optional<double> gpu_copy_gb_per_s(std::shared_ptr<DeviceMemory> memory) {
  auto gpu = gpu_of(memory->device());
  auto clock = gpu_clock(memory);
  if (!gpu.ok() || !clock.ok()) return std::nullopt;
  const Result<void*> from = memory->allocate(kGpuCopyBytes), to = memory->allocate(kGpuCopyBytes);
  // What was never written must not be read: initcheck would say so a million times.
  const bool there = from.ok() && to.ok() && memory->fill(*from, 1, kGpuCopyBytes).ok();
  std::vector<double> rates;
  for (int i = 0; i < kGpuWindows + 1 && there; ++i) {
    if (!(*clock)->start().ok()) break;
    {
      const auto current = (*gpu)->current();
      const auto stream = static_cast<cuda::CUstream>(memory->stream().handle);
      if ((*gpu)->api().cuMemcpyDtoDAsync(cuda::pointer_of(*to), cuda::pointer_of(*from),
                                          kGpuCopyBytes, stream) != cuda::kCudaSuccess) {
        break;
      }
    }
    const Result<double> ms = (*clock)->stop();
    if (!ms.ok() || !(*ms > 0)) break;
    // The first one warms up.
    if (i > 0) rates.push_back(2.0 * static_cast<double>(kGpuCopyBytes) / *ms * 1e-6);
  }
  if (from.ok()) memory->release(*from);
  if (to.ok()) memory->release(*to);
  return median_of(rates);
}

cuda::KernelSpec read_kernel() {
  return {"lab/read.cu", "lab_read", "", {}};
}

std::optional<double> gpu_read_gb_per_s(std::shared_ptr<DeviceMemory> memory) {
  auto gpu = gpu_of(memory->device());
  auto clock = gpu_clock(memory);
  if (!gpu.ok() || !clock.ok()) return std::nullopt;
  cuda::LaunchShape shape;
  shape.grid_x =
      kReadBlocksPerMultiprocessor * static_cast<unsigned>((*gpu)->info().multiprocessors);
  shape.threads = kRoofThreads;
  const std::size_t threads = std::size_t{shape.grid_x} * shape.threads;
  const Result<void*> data = memory->allocate(kGpuCopyBytes);
  const Result<void*> out = memory->allocate(threads * sizeof(float));
  std::vector<double> rates;
  if (data.ok() && out.ok() && memory->fill(*data, 1, kGpuCopyBytes).ok()) {
    runtime::Executor executor({*gpu});
    executor.program().add({.name = "lab_read",
                            .work = runtime::KernelWork{
                                read_kernel(), shape,
                                runtime::ParameterBlock(device::ReadArguments{
                                    *data, static_cast<float*>(*out),
                                    static_cast<long long>(kGpuCopyBytes / 16), kReadPasses})}});
    for (int i = 0; i < kGpuWindows + 1 && executor.prepare().ok(); ++i) {
      if (!(*clock)->start().ok()) break;
      const Stream stream = memory->stream();
      const bool launched = executor.enqueue({.streams = {&stream, 1}}).ok();
      const Result<double> ms = (*clock)->stop();
      if (!launched || !ms.ok() || !(*ms > 0)) break;
      // The first one warms up.
      if (i == 0) continue;
      rates.push_back(kReadPasses * static_cast<double>(kGpuCopyBytes) / *ms * 1e-6);
    }
  }
  if (data.ok()) memory->release(*data);
  if (out.ok()) memory->release(*out);
  return median_of(rates);
}

Status add_gpu_roofs(std::shared_ptr<DeviceMemory> memory, Environment& environment,
                     double window_seconds) {
  auto gpu = gpu_of(memory->device());
  if (!gpu.ok()) return gpu.status();
  Status first_failure;
  struct Measured {
    DType dtype;
    std::optional<double>& gflops;
  };
  std::string names;
  for (const Measured& each : {Measured{DType::kFp32, environment.roof_fp32_gflops},
                               Measured{DType::kBf16, environment.roof_bf16_gflops}}) {
    // Without bf16 tensor cores (sm_75) fp16 stands in its place, and the name says so.
    const bool instead = each.dtype == DType::kBf16 && (*gpu)->info().major < 8;
    const DType dtype = instead ? DType::kFp16 : each.dtype;
    auto window = gpu_roof_window(memory, dtype);
    if (!window.ok()) {
      if (first_failure.ok()) first_failure = window.status();
      continue;
    }
    std::vector<double> rates;
    for (int i = 0; i < kGpuWindows; ++i) rates.push_back((*window)(window_seconds));
    each.gflops = median_of(rates).value_or(0) * 1e-9;
    names += fmt::format("{}{}", names.empty() ? "" : ", ",
                         gpu_roof((*gpu)->info(), dtype, Precision::kIeee).name);
  }
  environment.clock_mhz = gpu_clock_mhz(**gpu);  // the load of a moment ago still sets it
  environment.copy_gb_per_s = gpu_copy_gb_per_s(memory);
  environment.read_gb_per_s = gpu_read_gb_per_s(memory);
  environment.roof_source =
      fmt::format("{}: {}, device-to-device copy, reads", to_string(memory->device()),
                  names.empty() ? "no arithmetic" : names);
  return first_failure;
}

}  // namespace flashlab::lab
