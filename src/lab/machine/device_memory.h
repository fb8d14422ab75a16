#pragma once

// Where a context's kernels find their tensors: this machine's memory, or a GPU's. What fills,
// copies and compares tensors is written once, against this.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "flashlab/context.h"

namespace flashlab::lab {

/// The memory of a device and the stream of the work on it. Not thread-safe: one per thread.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  virtual Device device() const = 0;
  /// What calls are enqueued on. Null on a CPU.
  virtual Stream stream() const = 0;
  /// What may still be taken.
  virtual std::int64_t available_bytes() const = 0;

  /// 256-byte aligned. Errors: kOutOfMemory, kDeviceError.
  virtual Result<void*> allocate(std::size_t bytes) = 0;
  virtual void release(void* memory) noexcept = 0;

  /// Enqueued on the stream.
  virtual Status fill(void* memory, int byte, std::size_t bytes) = 0;
  /// Between host memory and this; complete when they return, and so is what was enqueued before.
  virtual Status upload(void* to, const void* from_host, std::size_t bytes) = 0;
  virtual Status download(void* to_host, const void* from, std::size_t bytes) = 0;

  /// Waits for what was enqueued. Errors: a failure of the work itself (kDeviceError).
  virtual Status synchronize() = 0;

  /// Ok while the device can still work. After an illegal address it cannot, for the rest of the
  /// process: every later call fails with the same error.
  virtual Status health() = 0;
};

/// The memory of the context's device; on a GPU with a stream of its own, so that work enqueued on
/// any other stream is found out. `context` outlives it.
Result<std::shared_ptr<DeviceMemory>> device_memory(const Context& context);

/// The memory of this machine.
std::shared_ptr<DeviceMemory> host_memory();

}  // namespace flashlab::lab
