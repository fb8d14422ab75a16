#pragma once

// All that there is between the GPUs of several ranks.

#include <memory>

#include "dist/start/join_gpu.h"
#include "flashlab/context.h"
#include "flashlab/status.h"
#include "runtime/communicator/communicator.h"

namespace flashlab::dist {

/// What a process can carry bytes between its GPU and the others' by, and why one is missing.
struct GpuTransports {
  std::unique_ptr<runtime::Communicator> nccl, copies;
  std::unique_ptr<runtime::Communicator> chosen;  ///< null where both are missing
  Status nccl_status, copies_status;
};

/// All ranks of `control` call it, each with its GPU; it outlives them. Errors: those of
/// GpuDevice::open and check_gpus, a lost rank.
Result<GpuTransports> gpu_transports(Device device, runtime::Communicator& control,
                                     const ChoiceOptions& options = {});

}  // namespace flashlab::dist
