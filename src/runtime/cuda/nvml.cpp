#include "runtime/cuda/nvml.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "runtime/library/library.h"

namespace flashlab::cuda {
namespace {

constexpr int kClockSm = 1, kClockMemory = 2;
constexpr int kTemperatureGpu = 0;

// nvmlDeviceGet*(device, unsigned*) and its like, scaled; empty where the library has no answer.
template <class Function, class... Arguments>
std::optional<unsigned> ask(Function* function, nvmlDevice_t device, Arguments... arguments) {
  unsigned value = 0;
  if (function == nullptr || function(device, arguments..., &value) != 0) return std::nullopt;
  return value;
}

std::optional<int> whole(std::optional<unsigned> value) {
  return value ? std::optional(static_cast<int>(*value)) : std::nullopt;
}

std::optional<double> watts(std::optional<unsigned> milliwatts) {
  return milliwatts ? std::optional(*milliwatts * 1e-3) : std::nullopt;
}

std::vector<unsigned> other_processes(const NvmlFunctions& api, nvmlDevice_t device) {
  std::array<nvmlProcessInfo_t, 64> list{};
  unsigned count = list.size();
  std::vector<unsigned> out;
  if (api.nvmlDeviceGetComputeRunningProcesses == nullptr ||
      api.nvmlDeviceGetComputeRunningProcesses(device, &count, list.data()) != 0) {
    return out;
  }
  bool found_self = false;
  for (unsigned n = 0; n < count && n < list.size(); ++n) {
    const bool self = list[n].pid == static_cast<unsigned>(getpid());
    found_self = found_self || self;
    if (!self) out.push_back(list[n].pid);
  }
  // Inside a container NVML gives the host's numbers: then one that is not visible here is this
  // process.
  if (!found_self) {
    const auto hidden = std::find_if(out.begin(), out.end(), [](unsigned pid) {
      return access(fmt::format("/proc/{}", pid).c_str(), F_OK) != 0;
    });
    if (hidden != out.end()) out.erase(hidden);
  }
  return out;
}

}  // namespace

Result<Nvml> open_nvml() {
  auto library = Library::open("NVML", {"libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1"},
                               "it comes with NVIDIA's driver; clocks and power stay unknown");
  if (!library.ok()) return library.status();
  Nvml nvml;
  nvml.path_ = library->path();
  std::string missing;
#define FLASHLAB_LOAD(name, symbol, ...) load(*library, symbol, nvml.functions_.name, missing);
  FLASHLAB_NVML_FUNCTIONS(FLASHLAB_LOAD)
#undef FLASHLAB_LOAD
  const NvmlFunctions& api = nvml.functions_;
  const int result = api.nvmlInit == nullptr ? -1 : api.nvmlInit();
  if (result != 0 || api.nvmlDeviceGetHandleByPciBusId == nullptr) {
    return Status(StatusCode::kDeviceError,
                  {"NVML", result != 0 ? fmt::format("nvmlInit gave {}", result) : missing,
                   "a library that fits the driver", "update the NVIDIA driver"});
  }
  return nvml;
}

Result<const Nvml*> Nvml::get() {
  static const Result<Nvml> opened = open_nvml();
  if (!opened.ok()) return opened.status();
  return &*opened;
}

Result<GpuState> Nvml::state(const std::string& pci_address) const {
  const NvmlFunctions& api = functions_;
  nvmlDevice_t device = nullptr;
  if (const int result = api.nvmlDeviceGetHandleByPciBusId(pci_address.c_str(), &device);
      result != 0) {
    return Status(StatusCode::kDeviceError,
                  {"NVML", fmt::format("no GPU at {} (error {})", pci_address, result),
                   "a GPU that it knows", "clocks and power stay unknown"});
  }
  GpuState out;
  std::array<char, 96> text{};
  if (api.nvmlSystemGetDriverVersion != nullptr &&
      api.nvmlSystemGetDriverVersion(text.data(), text.size() - 1) == 0) {
    out.driver = text.data();
  }
  out.sm_clock_mhz = whole(ask(api.nvmlDeviceGetClockInfo, device, kClockSm));
  out.max_sm_clock_mhz = whole(ask(api.nvmlDeviceGetMaxClockInfo, device, kClockSm));
  out.memory_clock_mhz = whole(ask(api.nvmlDeviceGetClockInfo, device, kClockMemory));
  out.power_w = watts(ask(api.nvmlDeviceGetPowerUsage, device));
  out.power_limit_w = watts(ask(api.nvmlDeviceGetEnforcedPowerLimit, device));
  out.default_power_limit_w = watts(ask(api.nvmlDeviceGetPowerManagementDefaultLimit, device));
  out.temperature_c = whole(ask(api.nvmlDeviceGetTemperature, device, kTemperatureGpu));
  int ecc = 0, pending = 0;
  if (api.nvmlDeviceGetEccMode != nullptr &&
      api.nvmlDeviceGetEccMode(device, &ecc, &pending) == 0) {
    out.ecc = ecc != 0;
  }
  nvmlUtilization_t utilization{};
  if (api.nvmlDeviceGetUtilizationRates != nullptr &&
      api.nvmlDeviceGetUtilizationRates(device, &utilization) == 0) {
    out.utilization_percent = static_cast<int>(utilization.gpu);
  }
  nvmlMemory_t memory{};
  if (api.nvmlDeviceGetMemoryInfo != nullptr && api.nvmlDeviceGetMemoryInfo(device, &memory) == 0) {
    out.used_bytes = static_cast<std::int64_t>(memory.used);
  }
  out.processes = other_processes(api, device);
  if (api.nvmlDeviceGetCurrentClocksThrottleReasons != nullptr &&
      api.nvmlDeviceGetCurrentClocksThrottleReasons(device, &out.throttle_reasons) != 0) {
    out.throttle_reasons = 0;
  }
  return out;
}

std::string pci_address(const Driver& driver, int ordinal) {
  const DriverFunctions& api = driver.api();
  CUdevice device = 0;
  int domain = 0, bus = 0, slot = 0;
  if (api.cuDeviceGet == nullptr || api.cuDeviceGet(&device, ordinal) != kCudaSuccess ||
      api.cuDeviceGetAttribute(&domain, kPciDomain, device) != kCudaSuccess ||
      api.cuDeviceGetAttribute(&bus, kPciBus, device) != kCudaSuccess ||
      api.cuDeviceGetAttribute(&slot, kPciDevice, device) != kCudaSuccess) {
    return {};
  }
  return fmt::format("{:08X}:{:02X}:{:02X}.0", domain, bus, slot);
}

}  // namespace flashlab::cuda
