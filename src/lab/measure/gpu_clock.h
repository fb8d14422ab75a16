#pragma once

// Time on a GPU: events on a stream, and the caches evicted between samples.

#include <memory>
#include <string>

#include "lab/machine/device_memory.h"
#include "lab/measure/measure.h"

namespace flashlab::lab {

/// Bytes written to evict a second-level cache of that size: at least twice as much, and enough
/// that the GPU is still writing while the host enqueues the sample's calls, so that the time of
/// launching is not in the sample.
std::int64_t flush_bytes(std::int64_t l2_bytes) noexcept;

/// A clock over the memory's stream. `memory` is a GPU's. Errors: kDeviceError. A device without
/// room for the buffer that evicts its cache has a clock whose flush() refuses.
Result<std::unique_ptr<SampleClock>> gpu_clock(std::shared_ptr<DeviceMemory> memory);

/// What reads the time on a device, and the state of the caches: "warm caches".
std::string clock_words(Device device);

}  // namespace flashlab::lab
