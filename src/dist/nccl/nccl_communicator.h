#pragma once

// Ranks with a GPU each that exchange memory by NCCL's kernels.

#include <memory>

#include "flashlab/status.h"
#include "runtime/communicator/communicator.h"
#include "runtime/cuda/device.h"

namespace flashlab::dist {

/// NCCL between the GPUs of `control`'s ranks; all of them call it. Its sums are NCCL's own: they
/// depend on its version, on sizes and on the machine. `control` and `device` outlive it.
/// Errors: kUnsupported (no NCCL, or one that is too old, on any of the ranks; ranks with different
/// ones), kDeviceError.
Result<std::unique_ptr<runtime::Communicator>> nccl_communicator(cuda::GpuDevice& device,
                                                                 runtime::Communicator& control);

}  // namespace flashlab::dist
