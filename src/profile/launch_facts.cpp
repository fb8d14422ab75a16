#include "profile/launch_facts.h"

#include <algorithm>

namespace flashlab::profile {
namespace {

constexpr int kWarp = 32;
constexpr int kRegisterUnit = 256;
constexpr int kParts = 4;

template <class T>
T round_up(T value, T unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

MultiprocessorLimits limits_of(const cuda::GpuDevice& device) {
  const auto ask = [&](cuda::DeviceAttribute attribute) {
    cuda::CUdevice handle = 0;
    int value = 0;
    const cuda::DriverFunctions& api = device.api();
    const bool known = api.cuDeviceGet(&handle, device.info().ordinal) == cuda::kCudaSuccess &&
                       api.cuDeviceGetAttribute(&value, attribute, handle) == cuda::kCudaSuccess;
    return known ? value : 0;
  };
  MultiprocessorLimits out;
  out.multiprocessors = device.info().multiprocessors;
  out.threads = ask(cuda::kMaxThreadsPerMultiprocessor);
  out.blocks = ask(cuda::kMaxBlocksPerMultiprocessor);
  out.registers = ask(cuda::kMaxRegistersPerMultiprocessor);
  out.shared_bytes = ask(cuda::kMaxSharedMemoryPerMultiprocessor);
  out.reserved_shared_bytes = ask(cuda::kReservedSharedMemoryPerBlock);
  return out;
}

int resident_blocks(const LaunchFacts& launch, const MultiprocessorLimits& limits) {
  if (launch.threads <= 0) return 0;
  const int warps = round_up(launch.threads, kWarp) / kWarp;
  int out = std::min(limits.blocks, limits.threads / (warps * kWarp));
  if (launch.registers > 0) {
    const int of_warp = round_up(launch.registers * kWarp, kRegisterUnit);
    out = std::min(out, limits.registers / kParts / of_warp * kParts / warps);
  }
  constexpr std::int64_t kSharedUnit = 128;
  const std::int64_t shared =
      round_up(launch.shared_bytes + limits.reserved_shared_bytes, kSharedUnit);
  if (shared > 0) out = static_cast<int>(std::min<std::int64_t>(out, limits.shared_bytes / shared));
  return out;
}

LaunchFacts complete(LaunchFacts launch, const MultiprocessorLimits& limits) {
  const int blocks = resident_blocks(launch, limits);
  if (blocks <= 0 || limits.threads <= 0) return launch;
  const int warps = round_up(launch.threads, kWarp) / kWarp;
  launch.occupancy = static_cast<double>(blocks * warps * kWarp) / limits.threads;
  launch.waves = static_cast<double>(launch.blocks) / (blocks * limits.multiprocessors);
  return launch;
}

}  // namespace flashlab::profile
