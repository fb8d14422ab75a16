#pragma once

// What a kernel's registers, shared memory and threads let a multiprocessor hold of it.

#include "profile/recording.h"
#include "runtime/cuda/device.h"

namespace flashlab::profile {

/// Of one multiprocessor, as the driver says.
struct MultiprocessorLimits {
  int multiprocessors = 0;  ///< of the GPU
  int threads = 0, blocks = 0, registers = 0;
  std::int64_t shared_bytes = 0, reserved_shared_bytes = 0;  ///< the latter of every block
};
MultiprocessorLimits limits_of(const cuda::GpuDevice& device);

/// Blocks of that shape that are resident on one multiprocessor at once. Registers are given to
/// whole warps in units of 256, and a warp stays in one of four parts (CUDA's occupancy formulas).
int resident_blocks(const LaunchFacts& launch, const MultiprocessorLimits& limits);

/// Fills occupancy and waves from the rest.
LaunchFacts complete(LaunchFacts launch, const MultiprocessorLimits& limits);

}  // namespace flashlab::profile
