#pragma once

// The environment's members by their names in files: writing and reading walk this list.

#include "lab/machine/machine.h"

namespace flashlab::lab {

/// Calls `visit(name, member)` for every member but the warnings.
template <class Environment, class Visit>
void for_each_field(Environment& e, Visit visit) {
  visit("flashlab_version", e.flashlab_version);
  visit("commit", e.commit);
  visit("command", e.command);
  visit("date_utc", e.date_utc);
  visit("hostname_hash", e.hostname_hash);
  visit("os", e.os);
  visit("kernel", e.kernel);
  visit("compiler", e.compiler);
  visit("libc", e.libc);
  visit("cpu_model", e.cpu_model);
  visit("cpu_isa", e.cpu_isa);
  visit("cpu_flags", e.cpu_flags);
  visit("cpu_threads_online", e.cpu_threads_online);
  visit("threads_used", e.threads_used);
  visit("memory_bytes", e.memory_bytes);
  visit("l1d_bytes", e.l1d_bytes);
  visit("l2_bytes", e.l2_bytes);
  visit("l3_bytes", e.l3_bytes);
  visit("gpu", e.gpu);
  visit("driver", e.driver);
  visit("cuda_version", e.cuda_version);
  visit("gpu_architecture", e.gpu_architecture);
  visit("nvrtc", e.nvrtc);
  visit("gpu_memory_bytes", e.gpu_memory_bytes);
  visit("gpu_l2_bytes", e.gpu_l2_bytes);
  visit("gpu_multiprocessors", e.gpu_multiprocessors);
  visit("gpu_clock_mhz", e.gpu_clock_mhz);
  visit("gpu_max_clock_mhz", e.gpu_max_clock_mhz);
  visit("gpu_memory_clock_mhz", e.gpu_memory_clock_mhz);
  visit("gpu_power_w", e.gpu_power_w);
  visit("gpu_power_limit_w", e.gpu_power_limit_w);
  visit("gpu_temperature_c", e.gpu_temperature_c);
  visit("gpu_ecc", e.gpu_ecc);
  visit("clock_mhz", e.clock_mhz);
  visit("roof_fp32_gflops", e.roof_fp32_gflops);
  visit("roof_bf16_gflops", e.roof_bf16_gflops);
  visit("copy_gb_per_s", e.copy_gb_per_s);
  visit("read_gb_per_s", e.read_gb_per_s);
  visit("loop_fp32_gflops", e.loop_fp32_gflops);
  visit("loop_bf16_gflops", e.loop_bf16_gflops);
  visit("roof_source", e.roof_source);
  visit("protocol", e.protocol);
}

}  // namespace flashlab::lab
