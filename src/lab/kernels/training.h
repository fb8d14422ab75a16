#pragma once

// The kernels of training steps.

#include <vector>

#include "lab/kernels/variants.h"

namespace flashlab::lab {

/// Those of a few models' steps in the types that GPUs train in; none before sm_80.
std::vector<KernelVariant> training_variants(const cuda::DeviceInfo& device);

}  // namespace flashlab::lab
