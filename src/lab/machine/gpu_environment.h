#pragma once

// Which GPU a run was made on, and what about it would spoil a measurement.

#include <optional>
#include <vector>

#include "lab/machine/machine.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/nvml.h"

namespace flashlab::lab {

/// The facts that warnings are made from.
struct GpuFacts {
  cuda::GpuState state;
  std::int64_t memory_bytes = 0, free_bytes = 0;
  bool wsl = false;  ///< Windows Subsystem for Linux
};

/// One warning per finding, worst first, each with a remedy. Pure.
std::vector<EnvironmentWarning> diagnose_gpu(const GpuFacts& facts);

/// Fills the environment's GPU part and appends the warnings. Never fails: what neither the driver
/// nor NVML says stays empty.
void add_gpu_environment(cuda::GpuDevice& gpu, Environment& environment);

/// "NVIDIA H200 · sm_90a · 132 multiprocessors · 139 GiB · driver 580.65 (CUDA 13.0)".
std::string describe_gpu(const Environment& environment);

/// The multiprocessors' clock at this moment, by NVML.
std::optional<double> gpu_clock_mhz(const cuda::GpuDevice& gpu);

/// Whether this system is WSL2, by its kernel's name.
bool is_wsl();

}  // namespace flashlab::lab
