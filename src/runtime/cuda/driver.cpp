#include "runtime/cuda/driver.h"

#include <string>

#include "runtime/library/library.h"

namespace flashlab::cuda {
namespace {

// Older drivers lack functions that are called (cuLaunchKernelEx came with 11.8) and cannot load
// what NVRTC 12.2 makes.
constexpr int kOldestDriver = 12020;

constexpr const char* kRemedy =
    "the driver is not installed or not visible in this container; the CPU backend works";

std::string version_string(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

int attribute(const DriverFunctions& api, DeviceAttribute which, CUdevice device) {
  int value = 0;
  return api.cuDeviceGetAttribute(&value, which, device) == kCudaSuccess ? value : 0;
}

DeviceInfo describe(const DriverFunctions& api, int ordinal) {
  DeviceInfo info;
  info.ordinal = ordinal;
  CUdevice device = 0;
  if (api.cuDeviceGet(&device, ordinal) != kCudaSuccess) return info;
  char name[256] = {};
  if (api.cuDeviceGetName(name, sizeof name - 1, device) == kCudaSuccess) info.name = name;
  std::size_t bytes = 0;
  if (api.cuDeviceTotalMem(&bytes, device) == kCudaSuccess) {
    info.memory_bytes = static_cast<std::int64_t>(bytes);
  }
  info.major = attribute(api, kComputeCapabilityMajor, device);
  info.minor = attribute(api, kComputeCapabilityMinor, device);
  info.multiprocessors = attribute(api, kMultiprocessorCount, device);
  info.clock_mhz = attribute(api, kClockRateKhz, device) / 1000;
  info.l2_bytes = attribute(api, kL2CacheBytes, device);
  info.shared_bytes_per_block = attribute(api, kMaxSharedMemoryPerBlockOptin, device);
  info.registers_per_multiprocessor = attribute(api, kMaxRegistersPerMultiprocessor, device);
  info.ecc = attribute(api, kEccEnabled, device) != 0;
  return info;
}

}  // namespace

std::string DeviceInfo::architecture() const {
  const int number = major * 10 + minor;
  return "sm_" + std::to_string(number) + (number >= 90 ? "a" : "");
}

Status Driver::check(CUresult result, const char* call) const {
  if (result == kCudaSuccess) return {};
  const char* name = nullptr;
  const char* text = nullptr;
  functions_.cuGetErrorName(result, &name);
  functions_.cuGetErrorString(result, &text);
  const StatusCode code =
      result == kCudaOutOfMemory ? StatusCode::kOutOfMemory : StatusCode::kDeviceError;
  return Status(code, {call,
                       std::string(name != nullptr ? name : "an unknown error") + " (" +
                           (text != nullptr ? text : std::to_string(result)) + ")",
                       "CUDA_SUCCESS", ""});
}

Result<Driver> open_driver() {
  // The second is where WSL2 keeps the Windows driver's library.
  auto library =
      Library::open("CUDA driver", {"libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"}, kRemedy);
  if (!library.ok()) return library.status();
  Driver driver;
  driver.path_ = library->path();
  std::string missing;
#define FLASHLAB_LOAD(name, symbol, ...) load(*library, symbol, driver.functions_.name, missing);
  FLASHLAB_DRIVER_FUNCTIONS(FLASHLAB_LOAD)
#undef FLASHLAB_LOAD
  if (driver.functions_.cuDriverGetVersion != nullptr) {
    driver.functions_.cuDriverGetVersion(&driver.version_);
  }
  if (!missing.empty() || driver.version_ < kOldestDriver) {
    return Status::unsupported(
        {"CUDA driver",
         "version " + driver.version_text() + (missing.empty() ? "" : " without " + missing),
         version_string(kOldestDriver) + " or newer",
         "update the NVIDIA driver to one of CUDA " + version_string(kOldestDriver) +
             " or newer; the CPU backend works"});
  }
  if (Status s = driver.check(driver.functions_.cuInit(0), "cuInit"); !s.ok()) {
    ErrorDetail detail = s.detail();
    detail.remedy = "nvidia-smi says more about the driver's state; the CPU backend works";
    return Status(s.code(), std::move(detail));
  }
  int count = 0;
  if (Status s = driver.check(driver.functions_.cuDeviceGetCount(&count), "cuDeviceGetCount");
      !s.ok()) {
    return s;
  }
  for (int i = 0; i < count; ++i) driver.devices_.push_back(describe(driver.functions_, i));
  if (driver.devices_.empty()) {
    return Status::unsupported({"CUDA driver", "no device", "an NVIDIA GPU visible to this process",
                                "check CUDA_VISIBLE_DEVICES; the CPU backend works"});
  }
  return driver;
}

Result<const Driver*> Driver::get() {
  static const Result<Driver> opened = open_driver();
  if (!opened.ok()) return opened.status();
  return &*opened;
}

std::string Driver::version_text() const {
  return version_string(version_);
}

}  // namespace flashlab::cuda
