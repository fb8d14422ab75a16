#pragma once

// The learned numbers of a model on a GPU: the store's flat arenas, and the stream that its steps
// run on. Memory of a GPU and memory of the host that a GPU can copy from.

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>

#include "flashlab/context.h"
#include "runtime/communicator/communicator.h"
#include "runtime/cuda/device.h"
#include "train/cuda/lowering.h"
#include "train/run/parameters.h"

namespace flashlab::train {

/// Memory of a GPU, zero at first.
class DeviceBytes {
 public:
  DeviceBytes() = default;
  /// Errors: kOutOfMemory, naming `what`; kDeviceError.
  static Result<DeviceBytes> allocate(const cuda::GpuDevice& device, std::int64_t bytes,
                                      const char* what);
  ~DeviceBytes();
  DeviceBytes(DeviceBytes&& other) noexcept { *this = std::move(other); }
  DeviceBytes& operator=(DeviceBytes&& other) noexcept;
  std::byte* data() const { return reinterpret_cast<std::byte*>(address_); }
  std::int64_t size() const { return bytes_; }

 private:
  const cuda::GpuDevice* device_ = nullptr;
  cuda::CUdeviceptr address_ = 0;
  std::int64_t bytes_ = 0;
};

/// Page-locked memory of the host: copies to and from it do not wait.
class HostBytes {
 public:
  HostBytes() = default;
  static Result<HostBytes> allocate(const cuda::GpuDevice& device, std::int64_t bytes);
  ~HostBytes();
  HostBytes(HostBytes&& other) noexcept { *this = std::move(other); }
  HostBytes& operator=(HostBytes&& other) noexcept;
  std::byte* data() const { return static_cast<std::byte*>(address_); }

 private:
  const cuda::GpuDevice* device_ = nullptr;
  void* address_ = nullptr;
};

class DeviceParameters {
 public:
  /// The store's values and copies; moments are zero.
  static Result<std::shared_ptr<DeviceParameters>> create(const cuda::GpuDevice& device,
                                                          const ParameterStore& store);
  ~DeviceParameters();
  DeviceParameters(const DeviceParameters&) = delete;
  DeviceParameters& operator=(const DeviceParameters&) = delete;

  /// Values, copies and moments of the store to the GPU, and values and moments back. Wait. Of
  /// values that follow from halves the GPU has low ones (low_halves.h).
  Status push(const ParameterStore& store) const;
  Status pull(const ParameterStore& store) const;

  /// Values and copies to the other ranks, once: until this ends they write into them.
  Status share(runtime::Communicator& group);

  void* arena(ArenaSlot slot) const { return arenas_[static_cast<std::size_t>(slot)].data(); }
  std::int64_t bytes() const;
  cuda::CUstream stream() const { return stream_; }

 private:
  explicit DeviceParameters(const cuda::GpuDevice& device) : device_(device) {}
  Status push(const ParameterStore& store, std::initializer_list<ArenaSlot> slots) const;
  Status push_halves(const ParameterStore& store, bool moments) const;
  Status to_device(std::size_t slot, std::int64_t at, const std::byte* from,
                   std::int64_t bytes) const;
  Status to_host(std::size_t slot, std::int64_t at, std::byte* to, std::int64_t bytes) const;
  const cuda::GpuDevice& device_;
  std::array<DeviceBytes, kArenaSlots> arenas_;
  cuda::CUstream stream_ = nullptr;
  runtime::Communicator* group_ = nullptr;
};

}  // namespace flashlab::train
