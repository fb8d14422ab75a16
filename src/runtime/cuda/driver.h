#pragma once

// The NVIDIA driver of this machine: opened once, or the reason why not.

#include <cstdint>
#include <string>
#include <vector>

#include "flashlab/status.h"
#include "runtime/cuda/types.h"

namespace flashlab::cuda {

/// What a GPU is, as far as plans and people need it.
struct DeviceInfo {
  int ordinal = 0;
  std::string name;
  int major = 0, minor = 0;  ///< compute capability
  int multiprocessors = 0;
  int clock_mhz = 0;
  std::int64_t memory_bytes = 0;
  std::int64_t l2_bytes = 0;
  int shared_bytes_per_block = 0;  ///< opt-in maximum
  int registers_per_multiprocessor = 0;
  bool ecc = false;

  /// "sm_90a": the architecture kernels are compiled for. From sm_90 on the "a" target is used: it
  /// holds the instructions of exactly that chip, and kernels are compiled for exactly this GPU.
  std::string architecture() const;
};

class Driver {
 public:
  /// Opens libcuda.so.1 (WSL2's folder included) and initialises it; the outcome is remembered.
  /// Errors: kUnsupported (not found, too old, no device), kDeviceError (the driver's message).
  static Result<const Driver*> get();

  const DriverFunctions& api() const noexcept { return functions_; }
  const std::string& path() const noexcept { return path_; }
  int version() const noexcept { return version_; }  ///< 12040 is CUDA 12.4
  std::string version_text() const;                  ///< "12.4"

  const std::vector<DeviceInfo>& devices() const noexcept { return devices_; }

  /// Ok, or the driver's name and text for a failed call. kCudaOutOfMemory gives kOutOfMemory.
  Status check(CUresult result, const char* call) const;

 private:
  friend Result<Driver> open_driver();
  DriverFunctions functions_;
  std::string path_;
  int version_ = 0;
  std::vector<DeviceInfo> devices_;
};

}  // namespace flashlab::cuda
