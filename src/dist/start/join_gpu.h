#pragma once

// From a group of processes to the transports between their GPUs.

#include <memory>

#include "dist/start/world.h"
#include "flashlab/status.h"
#include "runtime/communicator/communicator.h"
#include "runtime/cuda/device.h"

namespace flashlab::dist {

/// The GPU of a rank, of `visible` ones: the one of its number on its host, or the only one that it
/// sees. Errors: kInvalidArgument for fewer GPUs than ranks.
Result<int> gpu_of_rank(const World& world, int visible);

/// All ranks of `control` call it: each has a GPU of its own.
/// Errors: kInvalidArgument, naming the two ranks that have one; those of the driver.
Status check_gpus(const cuda::GpuDevice& device, runtime::Communicator& control);

/// Bytes of a call, counted as what a rank gives or gets, from which on copies are faster than
/// NCCL's kernels. As measured (bench/results/gpu/h200-x2-collectives.json).
std::size_t copies_from(runtime::Collective kind) noexcept;

/// What a communicator between GPUs is chosen for.
struct ChoiceOptions {
  bool sums_of_nccl = true;  ///< else every sum is ours, whatever its size
  bool beside_kernels =
      false;  ///< what runs beside keeps its multiprocessors: copies from 1 MiB on
};

/// By size one of the two, which outlive it: copies where they win, else NCCL. One of the two may
/// be missing.
std::unique_ptr<runtime::Communicator> chosen_communicator(runtime::Communicator& control,
                                                           runtime::Communicator* nccl,
                                                           runtime::Communicator* copies,
                                                           const ChoiceOptions& options = {});

}  // namespace flashlab::dist
