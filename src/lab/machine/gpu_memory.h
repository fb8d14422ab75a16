#pragma once

// A GPU's memory as the lab uses it.

#include <memory>

#include "lab/machine/device_memory.h"
#include "runtime/cuda/device.h"

namespace flashlab::lab {

/// The GPU behind a device. Errors: those of GpuDevice::open.
Result<cuda::GpuDevice*> gpu_of(Device device);

/// Memory of a GPU, with a stream of its own that does not wait for the default stream.
/// Errors: those of GpuDevice::open, kDeviceError.
Result<std::shared_ptr<DeviceMemory>> gpu_memory(Device device);

}  // namespace flashlab::lab
