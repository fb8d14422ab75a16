#pragma once

// One command as several processes of this host, which end together.

#include <atomic>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "flashlab/status.h"

namespace flashlab::dist {

struct LaunchOptions {
  int ranks = 1;
  std::vector<std::string> command;  ///< command[0]: a program, looked for in PATH
  /// Exit codes that are verdicts, not failures: the other ranks go on to their own.
  std::span<const int> verdicts{};
  double grace_s = 2;  ///< between being asked to end and being ended; 0: nobody is asked
  const std::atomic<bool>* interrupted = nullptr;
  /// Told every line that a rank other than 0 printed. Rank 0 has this process's own outputs.
  std::function<void(int rank, std::string_view line)> line;
};

struct LaunchEnd {
  int exit_code = 0;
  /// Of the failure that ended all; empty when there was none, or rank 0 has said it itself.
  std::string message;
};

/// Starts the ranks with torchrun's variables, each with a share of the processors, and waits. The
/// first that fails ends all. When this returns, or this process is killed, none of them runs.
/// Errors: kIoError when a process cannot be made.
Result<LaunchEnd> launch(const LaunchOptions& options);

}  // namespace flashlab::dist
