#include "lab/measure/gpu_ruler.h"

#include <fmt/format.h>

#include "lab/machine/gpu_memory.h"
#include "lab/machine/memory.h"
#include "lab/measure/gpu_clock.h"
#include "runtime/program/executor.h"

namespace flashlab::lab {
namespace {

// A launch between two events costs 2 to 5 us beside its kernel, and the device's timer moves in
// steps of up to 1 us.
constexpr double kLaunchCostMs = 0.006;
constexpr double kTimerStepMs = 0.001;

RulerReading read_kernel(cuda::GpuDevice& gpu, DeviceMemory& memory, SampleClock& clock,
                         double ms) {
  RulerReading out;
  out.name = fmt::format("kernel of {} ms on {}", ms, to_string(memory.device()));
  out.unit = "ms";
  out.expected = ms;
  out.tolerance = 0.01 + kLaunchCostMs / ms;
  // The kernel's only parameter is its duration.
  runtime::Executor executor({&gpu});
  executor.program().add(
      {.name = "lab_spin",
       .work = runtime::KernelWork{
           spin_kernel(), {}, runtime::ParameterBlock(static_cast<std::uint64_t>(ms * 1e6))}});
  if (const Status prepared = executor.prepare(); !prepared.ok()) {
    out.note = prepared.message();
    return out;
  }
  MeasureOptions options;
  options.repeats = 25;
  options.cold_cache = true;
  options.clock = &clock;
  const Stream stream = memory.stream();
  const Result<Samples> samples = measure(options, [&] {
    return executor.enqueue({.streams = {&stream, 1}});
  });
  const auto statistics = samples.ok() ? samples->statistics() : std::optional<Statistics>();
  if (!statistics) {
    out.note = samples.ok() ? "no samples" : samples.status().message();
    return out;
  }
  out.measured = statistics->median;
  const bool possible = statistics->min >= ms - kTimerStepMs - clock.resolution_ms();
  out.ok = possible && statistics->min <= ms * (1 + out.tolerance);
  if (out.ok && statistics->median > ms * (1 + out.tolerance)) {
    out.note = fmt::format("something delayed the median; the fastest sample took {:.4g} ms",
                           statistics->min);
  }
  return out;
}

// The high-water mark of device allocations whose sizes are known.
RulerReading read_allocations(cuda::GpuDevice& gpu, DeviceMemory& memory) {
  constexpr std::size_t kFirst = 3 << 20, kSecond = 1 << 20;
  RulerReading out;
  out.name = fmt::format("peak of 3 + 1 MiB on {}", to_string(memory.device()));
  out.unit = "bytes";
  out.expected = kFirst + kSecond;
  cuda::GpuAllocator device_allocator(gpu);
  TrackingAllocator allocator(device_allocator);
  const Stream stream = memory.stream();
  const Result<void*> first = allocator.allocate(kFirst, 256, stream, {"ruler", "first"});
  const Result<void*> second = allocator.allocate(kSecond, 256, stream, {"ruler", "second"});
  if (first.ok()) allocator.deallocate(*first, kFirst, stream);
  if (second.ok()) allocator.deallocate(*second, kSecond, stream);
  out.measured = static_cast<double>(allocator.peak_bytes());
  out.ok = first.ok() && second.ok() && out.measured == out.expected &&
           allocator.current_bytes() == 0 && memory.synchronize().ok();
  if (!first.ok()) out.note = first.status().message();
  return out;
}

}  // namespace

cuda::KernelSpec spin_kernel() {
  return {"lab/spin.cu", "lab_spin", "struct Config {};", {}};
}

std::vector<RulerReading> check_gpu_ruler(std::shared_ptr<DeviceMemory> memory) {
  const auto broken = [&](const Status& status) {
    RulerReading out;
    out.name = fmt::format("clock of {}", to_string(memory->device()));
    out.note = status.message();
    return std::vector<RulerReading>{out};
  };
  auto gpu = gpu_of(memory->device());
  if (!gpu.ok()) return broken(gpu.status());
  auto clock = gpu_clock(memory);
  if (!clock.ok()) return broken(clock.status());
  std::vector<RulerReading> out;
  for (const double ms : {0.02, 0.1, 1.0, 5.0}) {
    out.push_back(read_kernel(**gpu, *memory, **clock, ms));
  }
  out.push_back(read_allocations(**gpu, *memory));
  return out;
}

}  // namespace flashlab::lab
