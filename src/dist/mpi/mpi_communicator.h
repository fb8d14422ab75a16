#pragma once

// Ranks whose bytes MPI carries, by the module that was built where mpi.h was found.

#include <memory>

#include "runtime/communicator/communicator.h"

namespace flashlab::dist {

/// `control` holds the same ranks: by it they meet before each collective, so a rank that is gone,
/// late, or came with another call is named as over shared memory. Once in a process. It outlives
/// the communicator, which keeps `owned` for callers that have one communicator alone.
/// Errors: kUnsupported (no module, with where it was looked for; MPI that was not started by its
/// mpirun, or lets one thread alone call it).
Result<std::unique_ptr<runtime::Communicator>> mpi_communicator(
    runtime::Communicator& control, std::unique_ptr<runtime::Communicator> owned = nullptr,
    double timeout_s = 120);

}  // namespace flashlab::dist
