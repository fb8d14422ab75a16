#pragma once

// The GPU's instrument measured by itself: kernels of known duration.

#include <vector>

#include "lab/machine/device_memory.h"
#include "lab/measure/measure.h"
#include "runtime/kernel_store/compile.h"

namespace flashlab::lab {

/// Times kernels that last 0.02, 0.1, 1 and 5 ms by the GPU's own timer, as implementations are
/// timed (events, L2 flushed), and an allocation's peak. A duration passes when the fastest sample
/// is neither shorter than possible nor beyond the tolerance. Cost: some 0.2 s. `memory` is a
/// GPU's.
std::vector<RulerReading> check_gpu_ruler(std::shared_ptr<DeviceMemory> memory);

/// The kernel that they run, one thread that looks at the clock.
cuda::KernelSpec spin_kernel();

}  // namespace flashlab::lab
