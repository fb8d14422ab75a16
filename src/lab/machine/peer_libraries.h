#pragma once

// NVIDIA's libraries that peers run on or that a timeline needs, found without starting them.

#include <vector>

#include "lab/machine/gpu_choice.h"

namespace flashlab::lab {

/// cuBLASLt, cuDNN and CUPTI. They are loaded to ask their version (cuBLASLt: 0.1 s, 0.6 s from a
/// cold disk), but get no handle, which would need a GPU.
std::vector<VendorLibrary> peer_libraries();

}  // namespace flashlab::lab
