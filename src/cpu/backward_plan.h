#pragma once

// Backward of implementation "cpu": fp32, fp16 and bf16 on any instruction set with a kernel table.

#include <memory>

#include "api/implementation.h"

namespace flashlab::internal {

/// Plans the backward pass of a validated problem.
///
/// Computes    dq, dk, dv as flashlab::backward says
/// Types       fp32, fp16, bf16 inputs (fp64 is the plain implementation's); gradients in the
/// inputs'
///             dtype or fp32; sums in fp32. bf16 on AVX512-BF16 multiplies in bf16 with P and dS
///             rounded to bf16; everything else is widened to fp32 when it is packed.
/// Workspace   delta            4 B Hq Sq bytes
///             dq_accumulators  4 splits B Hq Sq round_up(D, lanes) bytes, splits <= 32
///             thread_scratch   packed panels and tiles, per thread, independent of the lengths
/// Repeat      bitwise repeatable for a thread count; with Options::deterministic for any
/// Errors      kUnsupported: fp64 and fp8 inputs
Result<std::shared_ptr<PlanState>> plan_backward(const ContextState& context,
                                                 const Problem& problem, const Geometry& geometry);

/// Workspace that suffices for any sequence of at most these lengths. Precondition: is_sequence.
std::size_t most_backward_bytes(const ContextState& context, const Problem& problem,
                                const Geometry& geometry);

}  // namespace flashlab::internal
