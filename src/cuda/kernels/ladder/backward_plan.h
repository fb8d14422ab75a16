#pragma once

// Backward of the ladder's FlashAttention-2 rungs: plans that the rungs' implementation objects
// return for Pass::kBackward.

#include <memory>

#include "api/implementation.h"

namespace flashlab::cuda {

/// delta, one kernel over key tiles that adds dQ in fp32 atomically, and a kernel that rounds dQ.
/// Workspace: delta [B, Hq, Sq] and dQ [B, Hq, Sq, D] in fp32. Not repeatable in the last bits.
/// Errors: kUnsupported (head dims beyond 128; tiles that need more shared memory or threads than
/// the device has: required and available are named).
Result<std::shared_ptr<internal::PlanState>> plan_fa2_backward(
    const internal::ContextState& context, const Problem& problem,
    const internal::Geometry& geometry);

/// The same gradients without atomics, equal bit for bit from run to run: delta, one pass over key
/// tiles for dK and dV, one over query tiles for dQ, which recomputes P and dS.
/// Workspace: delta [B, Hq, Sq] in fp32. Errors: as above.
Result<std::shared_ptr<internal::PlanState>> plan_fa2_deterministic_backward(
    const internal::ContextState& context, const Problem& problem,
    const internal::Geometry& geometry);

/// plan_fa2_backward on tensor cores: fp16 and bf16, sm_80 or newer.
/// Errors: as above, and kUnsupported for fp32 and older GPUs.
Result<std::shared_ptr<internal::PlanState>> plan_fa2_mma_backward(
    const internal::ContextState& context, const Problem& problem,
    const internal::Geometry& geometry);

}  // namespace flashlab::cuda
