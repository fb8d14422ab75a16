#pragma once

// From a rank to the group of all ranks, and the way back to who started it.

#include <memory>
#include <string>
#include <string_view>

#include "dist/start/world.h"
#include "flashlab/status.h"
#include "runtime/communicator/communicator.h"

namespace flashlab::dist {

struct JoinOptions {
  std::string group = "main";        ///< another name, another communicator of the same ranks
  std::string transport = "shared";  ///< or "mpi"
  double timeout_s = 120;            ///< for others, at the start and inside each collective
};

/// The communicator of all ranks of the world, over CPUs. All call it. A process that is alone is a
/// group of one.
/// Ranks of one host share memory; of several they meet by sockets, at rank 0.
/// Errors: kUnsupported (several hosts, and no address), those of Segment::meet, of
/// socket_communicator and of mpi_communicator.
Result<std::unique_ptr<runtime::Communicator>> join(const World& world,
                                                    const JoinOptions& options = {});

/// What a rank tells `flashlab launch` when it ends, instead of printing it: the launcher makes one
/// message of what all ranks say. False: no launcher of ours listens.
/// `lost`: another rank is the reason.
bool report_to_launcher(int exit_code, bool lost, std::string_view text);

/// The variable that names the descriptor it goes to.
inline constexpr const char* kReportVariable = "FLASHLAB_REPORT";

}  // namespace flashlab::dist
