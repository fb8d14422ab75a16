#pragma once

// The naive composition with cuBLASLt: S = Q K^T by a batched product into a workspace, softmax,
// O = P V. What people write with a BLAS, as a peer to measure.

#include "api/implementation.h"

namespace flashlab::peers {

/// "cublas": forward and backward, fp32, tf32, fp16, bf16.
const internal::Implementation& cublas_implementation();

}  // namespace flashlab::peers
