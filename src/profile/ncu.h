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
  const char* unit;     ///< "us", "%", "GB/s", "warps"
};
/// Time, SM, DRAM and L2 as shares and as bandwidths, tensor pipe, active warps.
std::span<const NcuMetric> ncu_metrics();
/// What warps wait for instead of issuing, in warps that wait per instruction that is issued.
std::span<const NcuMetric> ncu_stalls();
/// The longest waits of a kernel: "a copy from global memory 3.1, a barrier 1.2"; empty without.
std::string longest_waits(const KernelCounters& kernel, std::size_t most = 3);

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
