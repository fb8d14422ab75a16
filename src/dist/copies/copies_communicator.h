#pragma once

// Ranks with a GPU each that exchange memory by their copy engines: a rank writes into the memory
// of the others, and no multiprocessor takes part but in sums, which are ours.

#include <cstddef>
#include <memory>

#include "flashlab/status.h"
#include "runtime/communicator/communicator.h"
#include "runtime/cuda/device.h"

namespace flashlab::dist {

/// How a sum is cut: pieces travel while others are added.
struct CopiesOptions {
  std::size_t slot_bytes = std::size_t{64} << 20;        ///< of one of four: a piece of every rank
  std::size_t least_piece_bytes = std::size_t{8} << 20;  ///< of a rank
};

/// Copies between the GPUs of `control`'s ranks, all on one host; all of them call it. Memory that
/// calls write to is announced by `share`. `control` and `device` outlive it.
/// Errors: kUnsupported (a GPU that cannot be reached, more than 8 ranks), kDeviceError.
Result<std::unique_ptr<runtime::Communicator>> copies_communicator(
    cuda::GpuDevice& device, runtime::Communicator& control, const CopiesOptions& options = {});

}  // namespace flashlab::dist
