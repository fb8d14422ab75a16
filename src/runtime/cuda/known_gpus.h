#pragma once

// GPUs that plans can be made for where none is installed: one well-known board per architecture.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/cuda/driver.h"

namespace flashlab::cuda {

/// The description for an architecture as `DeviceInfo::architecture()` writes it; "sm_90" and
/// "sm_90a" are the same. Empty for one that is not known.
///
/// Kernels depend on the limits (shared memory, registers), which belong to the architecture. The
/// number of multiprocessors, which differs between boards, only moves the choice between them.
std::optional<DeviceInfo> known_gpu(std::string_view architecture);

/// "sm_75", "sm_80", ..., oldest first.
std::vector<std::string> known_architectures();

}  // namespace flashlab::cuda
