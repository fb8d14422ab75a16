#pragma once

// How a command ends, and how it says why.

#include <string>

#include "flashlab/status.h"

namespace flashlab::cli {

/// Exit codes: scripts rely on them.
enum ExitCode : int {
  kExitOk = 0,
  kExitFailure = 1,      ///< something failed, or no case ended ok
  kExitUsage = 2,        ///< the command line or a file it names cannot be used
  kExitRegression = 3,   ///< slower than the baseline
  kExitCheckFailed = 4,  ///< `check` found a wrong result
  kExitInterrupted = 130,
};

/// Thrown inside the command line only, caught in main: one sentence and its exit code. Everything
/// below src/cli returns a Status instead.
struct Failure {
  int exit_code = kExitUsage;
  std::string text;
  bool of_another_rank = false;  ///< this rank ends because another one did
  bool silent = false;           ///< and that one, or a third, says so
};

[[noreturn]] inline void fail_usage(std::string text) {
  throw Failure{kExitUsage, std::move(text)};
}
[[noreturn]] inline void fail(std::string text) {
  throw Failure{kExitFailure, std::move(text)};
}

/// The exit code that fits a library's error: what the user gave is 2, what the machine did is 1.
inline int exit_code_of(const Status& status) {
  const bool usage =
      status.code() == StatusCode::kInvalidArgument || status.code() == StatusCode::kUnsupported;
  return usage ? kExitUsage : kExitFailure;
}
[[noreturn]] inline void fail(const Status& status) {
  throw Failure{exit_code_of(status), status.message()};
}

}  // namespace flashlab::cli
