#pragma once

// NVIDIA's management library: clocks, power, temperature and the other programs of a GPU. Opened
// when somebody asks; a machine without it (WSL2 before 2023, small containers) measures all the
// same and knows less.

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "flashlab/status.h"
#include "runtime/cuda/driver.h"

struct nvmlDevice_st;

namespace flashlab::cuda {

using nvmlDevice_t = ::nvmlDevice_st*;
using nvmlReturn_t = int;  ///< 0 is success

struct nvmlUtilization_t {
  unsigned gpu, memory;  ///< percent of the last sampling period
};
struct nvmlMemory_t {
  unsigned long long total, free, used;  ///< bytes
};
struct nvmlProcessInfo_t {
  unsigned pid;
  unsigned long long usedGpuMemory;
  unsigned gpuInstanceId, computeInstanceId;
};

// clang-format off
#define FLASHLAB_NVML_FUNCTIONS(X)                                                                \
  X(nvmlInit, "nvmlInit_v2", nvmlReturn_t())                                                      \
  X(nvmlSystemGetDriverVersion, "nvmlSystemGetDriverVersion", nvmlReturn_t(char*, unsigned))      \
  X(nvmlDeviceGetHandleByPciBusId, "nvmlDeviceGetHandleByPciBusId_v2",                            \
    nvmlReturn_t(const char*, nvmlDevice_t*))                                                     \
  X(nvmlDeviceGetClockInfo, "nvmlDeviceGetClockInfo", nvmlReturn_t(nvmlDevice_t, int, unsigned*)) \
  X(nvmlDeviceGetMaxClockInfo, "nvmlDeviceGetMaxClockInfo",                                       \
    nvmlReturn_t(nvmlDevice_t, int, unsigned*))                                                   \
  X(nvmlDeviceGetPowerUsage, "nvmlDeviceGetPowerUsage", nvmlReturn_t(nvmlDevice_t, unsigned*))    \
  X(nvmlDeviceGetEnforcedPowerLimit, "nvmlDeviceGetEnforcedPowerLimit",                           \
    nvmlReturn_t(nvmlDevice_t, unsigned*))                                                        \
  X(nvmlDeviceGetPowerManagementDefaultLimit, "nvmlDeviceGetPowerManagementDefaultLimit",         \
    nvmlReturn_t(nvmlDevice_t, unsigned*))                                                        \
  X(nvmlDeviceGetTemperature, "nvmlDeviceGetTemperature",                                         \
    nvmlReturn_t(nvmlDevice_t, int, unsigned*))                                                   \
  X(nvmlDeviceGetEccMode, "nvmlDeviceGetEccMode", nvmlReturn_t(nvmlDevice_t, int*, int*))         \
  X(nvmlDeviceGetUtilizationRates, "nvmlDeviceGetUtilizationRates",                               \
    nvmlReturn_t(nvmlDevice_t, nvmlUtilization_t*))                                               \
  X(nvmlDeviceGetMemoryInfo, "nvmlDeviceGetMemoryInfo",                                           \
    nvmlReturn_t(nvmlDevice_t, nvmlMemory_t*))                                                    \
  X(nvmlDeviceGetComputeRunningProcesses, "nvmlDeviceGetComputeRunningProcesses_v3",              \
    nvmlReturn_t(nvmlDevice_t, unsigned*, nvmlProcessInfo_t*))                                    \
  X(nvmlDeviceGetCurrentClocksThrottleReasons, "nvmlDeviceGetCurrentClocksThrottleReasons",       \
    nvmlReturn_t(nvmlDevice_t, unsigned long long*))
// clang-format on

/// The library's functions, named as in nvml.h. One that the installed version lacks is null.
struct NvmlFunctions {
#define FLASHLAB_DECLARE(name, symbol, ...) std::type_identity_t<__VA_ARGS__>* name = nullptr;
  FLASHLAB_NVML_FUNCTIONS(FLASHLAB_DECLARE)
#undef FLASHLAB_DECLARE
};

/// Why a GPU runs below its highest clock (nvml.h, "nvmlClocksThrottleReasons").
enum ThrottleReason : unsigned long long {
  kThrottleApplicationClocks = 0x2,  ///< somebody has set lower clocks
  kThrottlePowerCap = 0x4,
  kThrottleHardware = 0x8,  ///< the power supply or the board slows it down
  kThrottleThermalSoftware = 0x20,
  kThrottleThermalHardware = 0x40,
  kThrottlePowerBrake = 0x80,
};

/// What a GPU does at this moment. What the library does not say stays empty.
struct GpuState {
  std::string driver;  ///< "580.65.06"
  std::optional<int> sm_clock_mhz, max_sm_clock_mhz, memory_clock_mhz;
  std::optional<double> power_w, power_limit_w, default_power_limit_w;
  std::optional<int> temperature_c;
  std::optional<bool> ecc;
  std::optional<int> utilization_percent;
  std::optional<std::int64_t> used_bytes;   ///< of its memory, by everybody
  std::vector<unsigned> processes;          ///< computing on it, this one left out
  unsigned long long throttle_reasons = 0;  ///< ThrottleReason bits
};

class Nvml {
 public:
  /// Opens libnvidia-ml.so.1, WSL2's folder included; the outcome is remembered.
  /// Errors: kUnsupported (not found), kDeviceError (it does not start).
  static Result<const Nvml*> get();

  /// The state of the GPU at a PCI address: "00000000:3B:00.0". Errors: kDeviceError (not there).
  Result<GpuState> state(const std::string& pci_address) const;

  const std::string& path() const noexcept { return path_; }

 private:
  friend Result<Nvml> open_nvml();
  NvmlFunctions functions_;
  std::string path_;
};

/// The PCI address of a GPU as NVML wants it; empty if the driver does not say.
std::string pci_address(const Driver& driver, int ordinal);

}  // namespace flashlab::cuda
