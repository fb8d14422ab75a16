#pragma once

// Kernels that no plan of attention launches: the public merge, the append, the weighted sum, the
// instrument's.

#include <vector>

#include "lab/kernels/variants.h"

namespace flashlab::lab {

/// The public merge in every element type and access width: whoever splits keys himself needs it.
std::vector<KernelVariant> merge_variants();

/// The append of every element type, with rotary tables of it and of fp32.
std::vector<KernelVariant> append_variants();

/// The weighted sum in both forms, the roofs that this GPU has, and the kernel of known duration.
std::vector<KernelVariant> instrument_variants(const cuda::DeviceInfo& device);

}  // namespace flashlab::lab
