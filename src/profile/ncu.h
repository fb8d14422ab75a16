#pragma once

// Counters of a GPU's kernels by Nsight Compute, where it is installed: the command that collects
// them and what it prints.

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace flashlab::profile {

/// Of one kernel: means over its calls, by the metric's name.
struct KernelCounters {
  std::string kernel;
  int calls = 0;
  std::map<std::string, double, std::less<>> metrics;
};

struct NcuMetric {
  const char* name;     ///< as ncu calls it
  const char* heading;  ///< "DRAM"
  const char* unit;     ///< "us", "%", "warps"
};
/// Time, tensor pipe, SM, DRAM, L2, active warps, and what warps wait for.
std::span<const NcuMetric> ncu_metrics();

/// FLASHLAB_NCU, or ncu in PATH, in a CUDA toolkit or where Nsight Compute installs itself; empty
/// when there is none.
std::string find_ncu();

/// `program` under ncu, with CSV into `log`; only kernels of these names, clocks and caches as they
/// are. `few`: the time and the three throughputs that every GPU has.
std::vector<std::string> ncu_command(const std::string& ncu, const std::string& log,
                                     const std::vector<std::string>& kernels,
                                     const std::vector<std::string>& program, bool few);

/// Kernels in the order of their first call. Lines that are no CSV are passed over.
std::vector<KernelCounters> parse_ncu(std::string_view csv);

}  // namespace flashlab::profile
