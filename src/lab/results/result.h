#pragma once

// What one measurement is: the rows of a results file, and the file itself
// (schema "flashlab.bench/1"). Everything that prints, plots or compares starts from these.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "case.h"
#include "flashlab/attention.h"

namespace flashlab::lab {

enum class RunStatus : std::uint8_t { kOk, kOutOfMemory, kUnsupported, kError };

/// "ok", "oom", "unsupported", "error".
const char* to_string(RunStatus status) noexcept;

/// One implementation on one case and pass. What was not measured stays empty (null in JSON).
struct BenchResult {
  std::string implementation;  ///< "cpu", "naive", "torch.flash", ...
  std::string device;          ///< "cpu", "cuda:0"
  std::string pass;            ///< "forward", "backward"
  cases::Case problem;

  RunStatus status = RunStatus::kOk;
  std::string message;  ///< why it is not ok

  int samples = 0;
  std::optional<double> median_ms, min_ms, mean_ms, max_ms, std_ms;
  std::optional<double> q1_ms, q3_ms;      ///< quartiles: what a baseline's verdict is made from
  std::optional<double> tflops;            ///< FLOPs / median
  std::optional<double> tflops_peak;       ///< FLOPs / min
  std::optional<double> roof_share;        ///< of the measured roof, 0..1
  std::optional<double> gb_per_s;          ///< ideal bytes / median
  std::optional<std::int64_t> peak_bytes;  ///< inputs + outputs + the call's high-water mark
  std::optional<std::int64_t> workspace_bytes;
  std::optional<std::int64_t> memory_before_backward_bytes;
  std::optional<std::int64_t> process_peak_bytes;
  std::optional<double> error_vs_fp64;        ///< max |x - fp64| over all outputs of the pass
  std::optional<double> naive_error_vs_fp64;  ///< the same of the naive formula in this dtype
  std::string error_sample;                   ///< "all" or "64 rows of 8 heads, seed 1"
  std::string plan;                           ///< one line: what ran

  /// Separately timed parts (naive: scores, softmax, values), name and median.
  struct Part {
    std::string name;
    double median_ms = 0;
  };
  std::vector<Part> parts;
};

/// One thing that would spoil or explain a measurement.
struct EnvironmentWarning {
  std::string what;
  std::string remedy;
};

/// Where and how a run was made.
struct Environment {
  std::string flashlab_version, commit, command, date_utc, hostname_hash;
  std::string os, kernel, compiler, libc;
  std::string cpu_model, cpu_isa, cpu_flags;
  int cpu_threads_online = 0, threads_used = 0;
  std::int64_t memory_bytes = 0, l1d_bytes = 0, l2_bytes = 0, l3_bytes = 0;
  std::string gpu, driver, cuda_version;         ///< of the GPU that was used; else empty
  std::string gpu_architecture, nvrtc, gpu_ecc;  ///< "sm_90a", "13.0", "on" or "off"
  std::int64_t gpu_memory_bytes = 0, gpu_l2_bytes = 0;
  int gpu_multiprocessors = 0;
  /// Before the run.
  std::optional<double> gpu_clock_mhz, gpu_max_clock_mhz, gpu_memory_clock_mhz;
  std::optional<double> gpu_power_w, gpu_power_limit_w, gpu_temperature_c;
  /// Of the device that was used; the clock as it was under the roof's load.
  std::optional<double> clock_mhz, roof_fp32_gflops, roof_bf16_gflops, copy_gb_per_s;
  std::string roof_source;  ///< "cuda:0: fp32 FMA, mma.sync bf16, device-to-device copy"
  std::string protocol;     ///< warm-ups, repeats, cold or hot caches, in words
  std::vector<EnvironmentWarning> warnings;
};

struct ResultFile {
  Environment environment;
  std::vector<BenchResult> results;
};

}  // namespace flashlab::lab
