#include "lab/measure/gpu_roof.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <thread>

#include "cuda/kernels/lab/roof_arguments.h"
#include "lab/machine/gpu_environment.h"
#include "lab/machine/gpu_memory.h"
#include "lab/measure/gpu_clock.h"
#include "lab/measure/statistics.h"
#include "runtime/kernel_store/config.h"

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
// Long beside the timer's steps of up to 1 us, short beside what a clock takes to change.
constexpr std::uint64_t kClockProbeNs = 300'000;
constexpr double kFullClock = 0.985;  // of the highest: what a probe may err by
constexpr std::chrono::milliseconds kClockPause{10};

// FLOPs of a clock and multiprocessor: dense fp16 and bf16 products with sums in fp32, and FMA.
// Products in tf32 run at half of the former everywhere. From the vendor's peak over boost clock
// and multiprocessors: T4 65 TFLOP/s, 1590 MHz, 40; A100 312, 1410, 108; A10 125, 1695, 72;
// L40S 362, 2520, 142; H100 SXM 989.4, 1830, 132.
struct UnitRates {
  int major, minor;
  double half, fma;
};
constexpr UnitRates kUnitRates[] = {
    {7, 5, 1024, 128}, {8, 0, 2048, 128}, {8, 6, 1024, 256}, {8, 9, 1024, 256}, {9, 0, 4096, 256},
};

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

GpuUnits gpu_units(const cuda::DeviceInfo& gpu, DType dtype, Precision precision) {
  const auto* rates = std::ranges::find_if(kUnitRates, [&](const UnitRates& each) {
    return each.major == gpu.major && each.minor == gpu.minor;
  });
  const bool turing = gpu.major < 8;
  if (rates == std::end(kUnitRates) || dtype == DType::kFp64) return {};
  // Boards for games add products of fp16 in fp32 at half the rate.
  const bool halved = gpu.name.find("GeForce") != std::string::npos && rates->half == 1024;
  const double half = halved ? rates->half / 2 : rates->half;
  if (dtype != DType::kFp32) {
    if (turing && dtype == DType::kBf16) return {};
    return {fmt::format("{} tensor cores", to_string(dtype)), half};
  }
  if (precision == Precision::kTf32 && !turing) return {"tf32 tensor cores", half / 2};
  // Turing's kernels multiply fp32 by FMA alone.
  if (turing || half / 3 < rates->fma) return {"fp32 FMA units", rates->fma};
  return {"fp16 tensor cores / 3", half / 3};
}

std::optional<double> units_flops(const cuda::DeviceInfo& gpu, const GpuUnits& units,
                                  double clock_hz) {
  if (!(units.flops_per_clock > 0) || !(clock_hz > 0)) return std::nullopt;
  return units.flops_per_clock * gpu.multiprocessors * clock_hz;
}

void await_clock(const std::function<double()>& hz, double full_hz,
                 std::chrono::milliseconds longest) {
  const auto until = std::chrono::steady_clock::now() + longest;
  while (hz() < full_hz && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(kClockPause);
  }
}

cuda::KernelSpec clock_kernel() {
  return {"lab/clock.cu", "lab_clock", "struct Config {};", {}};
}

GpuClockProbe::GpuClockProbe(cuda::GpuDevice& gpu, std::shared_ptr<DeviceMemory> memory)
    : gpu_(gpu), memory_(std::move(memory)), executor_({&gpu}) {}

GpuClockProbe::~GpuClockProbe() {
  memory_->release(out_);
}

Result<std::unique_ptr<GpuClockProbe>> GpuClockProbe::create(std::shared_ptr<DeviceMemory> memory) {
  auto gpu = gpu_of(memory->device());
  if (!gpu.ok()) return gpu.status();
  std::unique_ptr<GpuClockProbe> out(new GpuClockProbe(**gpu, std::move(memory)));
  auto place = out->memory_->allocate(2 * sizeof(std::uint64_t));
  if (!place.ok()) return place.status();
  out->out_ = *place;
  device::ClockArguments arguments{};
  arguments.out = static_cast<unsigned long long*>(out->out_);
  arguments.nanoseconds = kClockProbeNs;
  cuda::LaunchShape shape;
  shape.threads = 32;
  out->executor_.program().add(
      {.name = "lab_clock",
       .work = runtime::KernelWork{clock_kernel(), shape, runtime::ParameterBlock(arguments)}});
  if (Status s = out->executor_.prepare(); !s.ok()) return s;
  return out;
}

std::optional<double> GpuClockProbe::hz() {
  const Stream stream = memory_->stream();
  std::uint64_t read[2] = {};
  if (!executor_.enqueue({.streams = {&stream, 1}}).ok()) return std::nullopt;
  if (!memory_->download(read, out_, sizeof read).ok() || read[1] == 0) return std::nullopt;
  return static_cast<double>(read[0]) / static_cast<double>(read[1]) * 1e9;
}

void GpuClockProbe::await_full_clock(std::chrono::milliseconds longest) {
  const double full = kFullClock * gpu_.info().clock_mhz * 1e6;
  await_clock([this] { return hz().value_or(0); }, full, longest);
}

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
    std::optional<double>&roof, &loop;
  };
  std::string names;
  const auto named = [&names](const std::string& name) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
  };
  const cuda::DeviceInfo& info = (*gpu)->info();
  const auto probe = GpuClockProbe::create(memory);
  const auto clock_hz = [&probe] { return probe.ok() ? (*probe)->hz().value_or(0) : 0.0; };
  double clock = 0;
  for (const Measured& each :
       {Measured{DType::kFp32, environment.roof_fp32_gflops, environment.loop_fp32_gflops},
        Measured{DType::kBf16, environment.roof_bf16_gflops, environment.loop_bf16_gflops}}) {
    // Without bf16 tensor cores (sm_75) fp16 stands in its place, and the name says so.
    const bool instead = each.dtype == DType::kBf16 && info.major < 8;
    const DType dtype = instead ? DType::kFp16 : each.dtype;
    // The largest so far: a load of less power runs at a higher clock than these loops.
    clock = std::max(clock, clock_hz());
    std::vector<double> rates;
    auto window = gpu_roof_window(memory, dtype);
    if (window.ok()) {
      for (int i = 0; i < kGpuWindows; ++i) rates.push_back((*window)(window_seconds));
    } else if (first_failure.ok()) {
      first_failure = window.status();
    }
    clock = std::max(clock, clock_hz());
    const GpuUnits units = gpu_units(info, dtype, Precision::kIeee);
    const std::optional<double> rate = median_of(rates);
    const std::string loop = gpu_roof(info, dtype, Precision::kIeee).name;
    if (const auto most = units_flops(info, units, clock)) {
      each.roof = *most * 1e-9;
      if (rate) each.loop = *rate * 1e-9;
      named(fmt::format("{} at {:.0f} MHz (loop: {})", units.name, clock * 1e-6, loop));
    } else if (rate) {
      // The rates of this architecture's units are not known.
      each.roof = *rate * 1e-9;
      named(loop);
    }
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
