#pragma once

// The naive composition with cuBLASLt: S = Q K^T by a batched product into a workspace, softmax,
// O = P V. What people write with a BLAS, as a rival to measure.

#include <vector>

#include "api/implementation.h"
#include "runtime/kernel_store/compile.h"

namespace flashlab::peers {

/// "cublas": forward and backward, fp32, tf32, fp16, bf16.
const internal::Implementation& cublas_implementation();

/// The kernels of our own between the products of such a plan, of kCublasKernelThreads; none of
/// another's plan.
std::vector<cuda::KernelSpec> cublas_kernels(const internal::PlanState& plan);
inline constexpr unsigned kCublasKernelThreads = 256;

}  // namespace flashlab::peers
