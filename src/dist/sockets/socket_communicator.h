#pragma once

// Ranks of several hosts: rank 0 has a connection to each, gathers what they bring, and sends the
// result back. It is what GPUs' transports and MPI meet over, and carries sums of processors whose
// hosts have no MPI: right, not fast, for all bytes go through rank 0.

#include <memory>
#include <string>

#include "flashlab/status.h"
#include "runtime/communicator/communicator.h"

namespace flashlab::dist {

struct SocketOptions {
  int rank = 0, size = 1;
  std::string address;     ///< of rank 0
  int port = 0;            ///< rank 0 listens on one of the ports behind it
  double timeout_s = 120;  ///< for the others to come, and later for each thing waited for
  std::string group;       ///< what all ranks of this run know, and no other run
  std::string host;        ///< for messages
  std::string build;       ///< ranks of different builds do not go together
};

/// All ranks call it. Errors: kInvalidArgument (ranks disagree about size or build, two processes
/// are one rank), kDeviceError (no port is free, somebody did not come in time, named).
Result<std::unique_ptr<runtime::Communicator>> socket_communicator(const SocketOptions& options);

}  // namespace flashlab::dist
