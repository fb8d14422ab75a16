#pragma once

// One GPU as the library uses it: its primary context, shared with every framework of the process,
// and the allocator of its memory.

#include <memory>
#include <string>

#include "flashlab/context.h"
#include "runtime/cuda/driver.h"

namespace flashlab::cuda {

/// Makes a device's context current for a scope.
class ContextGuard {
 public:
  ContextGuard(const DriverFunctions& api, CUcontext context) : api_(api) {
    pushed_ = api_.cuCtxPushCurrent(context) == kCudaSuccess;
  }
  ~ContextGuard() {
    CUcontext popped = nullptr;
    if (pushed_) api_.cuCtxPopCurrent(&popped);
  }
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;
  bool ok() const noexcept { return pushed_; }

 private:
  const DriverFunctions& api_;
  bool pushed_ = false;
};

class GpuDevice {
 public:
  /// The device of that ordinal, opened once per process and never closed.
  /// Errors: kUnsupported (no driver, no such device, older than sm_75), kDeviceError.
  static Result<GpuDevice*> open(int ordinal);

  /// A GPU that is only described: plans can be made for it where there is no driver (the list of
  /// kernel variants, precompiling for another machine). Nothing loads or runs on it.
  static std::unique_ptr<GpuDevice> described(DeviceInfo info);
  bool is_described() const noexcept { return context_ == nullptr; }
  /// Errors: kUnsupported for a GPU that is only described.
  Status require_real() const;

  const DeviceInfo& info() const noexcept { return info_; }
  const Driver& driver() const noexcept { return driver_; }
  const DriverFunctions& api() const noexcept { return driver_.api(); }
  CUcontext context() const noexcept { return context_; }
  ContextGuard current() const { return ContextGuard(api(), context_); }

  GpuDevice(const GpuDevice&) = delete;
  GpuDevice& operator=(const GpuDevice&) = delete;

 private:
  GpuDevice(const Driver& driver, DeviceInfo info);
  const Driver& driver_;
  DeviceInfo info_;
  CUcontext context_ = nullptr;
};

/// The default allocator of a GPU: cuMemAllocAsync on the call's stream.
class GpuAllocator final : public Allocator {
 public:
  explicit GpuAllocator(GpuDevice& device) : device_(device) {}
  Result<void*> allocate(std::size_t bytes, std::size_t alignment, Stream stream,
                         Tag tag) noexcept override;
  void deallocate(void* pointer, std::size_t bytes, Stream stream) noexcept override;

 private:
  GpuDevice& device_;
};

}  // namespace flashlab::cuda
