#pragma once

// What ran on the GPUs of this process, kernel by kernel, as NVIDIA's profiling library (CUPTI)
// records it: opened when somebody asks.

#include <cstdint>
#include <string>
#include <vector>

#include "flashlab/status.h"
#include "runtime/cuda/cupti_api.h"

namespace flashlab::cuda {

/// A kernel, a memset or a copy that ran.
struct Activity {
  enum class Kind : std::uint8_t { kKernel, kMemset, kCopy };
  Kind kind = Kind::kKernel;
  std::string name;  ///< of a kernel, as its image has it (C++ names are mangled)
  std::uint64_t start_ns = 0, end_ns = 0;
  bool with_host = false;  ///< a copy from or to the host's memory
  /// Of a kernel.
  std::int64_t blocks = 0;
  int threads = 0, registers = 0;
  std::int64_t shared_bytes = 0;  ///< of a block, static and dynamic
};

class Cupti {
 public:
  /// Opens libcupti; the outcome is remembered.
  /// Errors: kUnsupported (not found, another version).
  static Result<const Cupti*> get();

  /// From here on everything is recorded. Nothing else of this process may use CUPTI's activities.
  /// Errors: kUnsupported (no permission, another profiler listens), kDeviceError.
  Status start() const;
  /// What ran since start(), in the order of its beginning. The GPU's work is waited for before.
  /// Errors: kDeviceError (records were lost).
  Result<std::vector<Activity>> stop() const;

  const std::string& path() const noexcept { return path_; }
  std::uint32_t version() const noexcept { return version_; }

 private:
  friend Result<Cupti> open_cupti();
  Status check(int result, const char* call) const;

  CuptiFunctions functions_;
  std::string path_;
  std::uint32_t version_ = 0;
};

}  // namespace flashlab::cuda
