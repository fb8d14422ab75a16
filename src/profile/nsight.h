#pragma once

// NVIDIA's profilers, where they are installed: the commands that run a program under them and what
// they print. Nsight Compute (ncu) counts what kernels do, Nsight Systems (nsys) draws when they
// ran.

#include <cstdint>
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

/// Which metrics: all of them, those without the waits that only some GPUs count, or the time and
/// the three throughputs that every GPU has.
enum class NcuDetail : std::uint8_t { kAll, kCommon, kFew };

/// What a run under ncu leaves: the report ncu-ui opens, `path` + ".ncu-rep", or CSV in `path`.
struct NcuOutput {
  std::string path;
  bool report = false;
};

/// Which launches ncu counts: of kernels of these names `count` after as many, or all with 0. It
/// runs a launch once for every few counters.
struct NcuLaunches {
  std::vector<std::string> kernels;
  int count = 0;
};

/// `program` under ncu, clocks and caches as they are.
std::vector<std::string> ncu_command(const std::string& ncu, const NcuOutput& output,
                                     const NcuLaunches& launches,
                                     const std::vector<std::string>& program, NcuDetail detail);

/// Writes the counters of `report` + ".ncu-rep" as CSV into `log`.
std::vector<std::string> ncu_table_command(const std::string& ncu, const std::string& report,
                                           const std::string& log);

/// Kernels in the order of their first call. Lines that are no CSV are passed over.
std::vector<KernelCounters> parse_ncu(std::string_view csv);

/// A kernel's row of nsys' own sums.
struct NsysKernel {
  std::string kernel;
  int calls = 0;
  double total_ms = 0, share = 0;
};

/// FLASHLAB_NSYS, or nsys in PATH, in a CUDA toolkit or where Nsight Systems installs itself; empty
/// when there is none.
std::string find_nsys();

/// `program` under nsys, with CUDA's calls, kernels one by one and NVTX ranges, into the report
/// `output` + ".nsys-rep".
std::vector<std::string> nsys_command(const std::string& nsys, const std::string& output,
                                      const std::vector<std::string>& program);

/// Sums of that report: the file `output` + "_cuda_gpu_kern_sum.csv" and one of NVTX ranges.
std::vector<std::string> nsys_sums_command(const std::string& nsys, const std::string& output);

/// Kernels as nsys orders them.
std::vector<NsysKernel> parse_nsys(std::string_view csv);

}  // namespace flashlab::profile
