#pragma once

// What about this machine, right now, would spoil a measurement, and what to do about it.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lab/machine/machine.h"

namespace flashlab::lab {

/// Another program that uses the processor.
struct BusyProcess {
  int pid = 0;
  std::string name;
  double cores = 0;  ///< of one core: 1.0 is a whole core
};

/// The facts that warnings are made from.
struct MachineState {
  int cpus = 0;                        ///< that this process may use
  int threads_used = 0;                ///< by the measurement; 0: unknown
  std::optional<double> load_average;  ///< of the last minute
  std::vector<BusyProcess> busy;       ///< busiest first; this process is not among them
  std::optional<double> stolen_cores;  ///< taken by the host of a virtual machine
  std::optional<double> cpu_quota;     ///< cores that the control group grants
  std::string governor;                ///< cpufreq governor; empty where there is none to see
  std::optional<double> available_memory_share;
  bool sanitized = false;    ///< this build is instrumented by a sanitizer
  bool unoptimized = false;  ///< this build was compiled without optimisation
};

struct ProcessTime {
  std::string name;
  double seconds = 0;  ///< of processor time since its start
};

/// Of every process that `proc` shows, this one left out, by its pid.
std::map<int, ProcessTime> process_times(const std::string& proc = "/proc");

/// Who used a quarter of a core or more between two looks, busiest first.
std::vector<BusyProcess> busy_between(const std::map<int, ProcessTime>& before,
                                      const std::map<int, ProcessTime>& after, double seconds);

/// Looks for `observe_ms` at who uses the processor. Cost: that time. Parts that the system does
/// not show stay empty.
MachineState observe_machine(double observe_ms = 200);

/// One warning per finding, worst first, each with a remedy. Pure.
std::vector<EnvironmentWarning> diagnose(const MachineState& state);

}  // namespace flashlab::lab
