#pragma once

// A measured collective between GPUs.

#include <memory>

#include "lab/subjects/collective/collective_ranks.h"
#include "runtime/cuda/device.h"
#include "runtime/kernel_store/compile.h"

namespace flashlab::lab {

struct GpuWorkOptions {
  bool graph = true;       ///< calls are captured once and replayed; else enqueued one by one
  double timeout_s = 120;  ///< so long a rank may keep the others waiting
};

inline constexpr unsigned kExchangeThreads = 256;

/// A kernel that fills what is exchanged or counts wrong elements of the result; by its entry.
cuda::KernelSpec exchange_kernel(DType dtype, const char* entry);

/// Over the GPUs of `transport`'s ranks, whose processes are `control`; both outlive it.
std::unique_ptr<CollectiveWork> gpu_work(cuda::GpuDevice& device, runtime::Communicator& transport,
                                         runtime::Communicator& control,
                                         const CollectiveProblem& problem,
                                         const GpuWorkOptions& options);

}  // namespace flashlab::lab
