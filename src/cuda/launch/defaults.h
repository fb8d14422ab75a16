#pragma once

// What runs on a GPU where a call names no implementation.

#include <vector>

#include "api/implementation.h"
#include "runtime/cuda/driver.h"

namespace flashlab::cuda {

/// What such a call tries on this GPU, in turn: the first that serves its problem runs. GPUs for
/// which the production kernels were written have these alone; older ones the rungs of the ladder,
/// fastest first, then `naive`, which serves every problem that they refuse but tf32.
std::vector<const internal::Implementation*> default_implementations(const DeviceInfo& gpu);

}  // namespace flashlab::cuda
