#pragma once

#include "api/implementation.h"

namespace flashlab::cuda {

/// `sm80`: the portable tensor-core kernels, sm_80 to sm_120. fp16 and bf16 multiply as they are,
/// fp32 as sums of 16-bit terms (`ieee`) or in tf32.
const internal::Implementation& sm80_implementation();

}  // namespace flashlab::cuda
