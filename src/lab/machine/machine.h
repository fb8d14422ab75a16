#pragma once

// Where and how a run was made: what is written down beside every result.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace flashlab::lab {

/// One thing that would spoil or explain a measurement.
struct EnvironmentWarning {
  std::string what;
  std::string remedy;
};

/// What a device did at one moment of a run. Empty: the system does not show it.
struct MonitorSample {
  double seconds = 0;  ///< since the run began
  std::optional<double> load_percent, clock_mhz, power_w, temperature_c, memory_bytes;
  std::string throttle;     ///< why its clock is low: "power limit"; empty: it is not, or not known
  int other_processes = 0;  ///< that compute on the same GPU
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
  std::optional<double> read_gb_per_s;  ///< of a GPU
  /// Where a GPU's roofs are its units' rates: what a loop of multiply-adds in registers reached.
  std::optional<double> loop_fp32_gflops, loop_bf16_gflops;
  std::string roof_source;  ///< "cuda:0: bf16 tensor cores at 1755 MHz (loop: mma.sync bf16), ..."
  std::string protocol;     ///< warm-ups, repeats, cold or hot caches, in words
  std::vector<EnvironmentWarning> warnings;
  std::vector<MonitorSample> monitor;  ///< of the device that was used, while the run was made
};

}  // namespace flashlab::lab
