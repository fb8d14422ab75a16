#pragma once

// Where a run was made: filled once per run, saved with the results.

#include <string>
#include <string_view>

#include "flashlab/context.h"
#include "flashlab/status.h"
#include "lab/machine/doctor.h"
#include "lab/machine/machine.h"

namespace flashlab::lab {

struct EnvironmentRequest {
  std::string command;                  ///< what the user typed; see command_line()
  std::string protocol;                 ///< warm-ups, repeats, caches, in words
  int threads = 0;                      ///< used by the measurement
  CpuIsa cpu_isa = CpuIsa::kAutomatic;  ///< used by the measurement
  Device device{};                      ///< used by the measurement: a GPU is described too
  double observe_ms = 200;              ///< how long to look for other busy programs; 0: not at all
};

/// Reads what the system says: parts it does not say stay empty or 0. Roofs and clock stay empty:
/// roof.h measures them. The host's name is kept only as a short hash, enough to tell machines
/// apart.
Environment collect_environment(const EnvironmentRequest& request);

/// argv as one line that a shell would read back: arguments with special characters are quoted.
std::string command_line(int argc, const char* const* argv);

/// "2026-11-21T03:40:00Z".
std::string utc_now();

/// What looking for NVIDIA GPUs found, in one sentence: "NVIDIA H200 (cuda:0, sm_90a); driver for
/// CUDA 13.0", or "no CUDA device: libcuda.so.1 was not found. The driver is not installed or not
/// visible in this container."
std::string describe_cuda();

/// The same for an outcome of cuda::Driver::get() that is none.
std::string describe_no_cuda(const Status& status);

/// 8 hexadecimal digits of FNV-1a.
std::string short_hash(std::string_view text);

}  // namespace flashlab::lab
