#pragma once

#include "api/implementation.h"

namespace flashlab::cuda {

/// `sm90`: kernels of the instructions that only Hopper has (wgmma, the copy engine), in fp16 and
/// bf16.
const internal::Implementation& sm90_implementation();

}  // namespace flashlab::cuda
