#pragma once

// Naive attention and the rungs of the ladder on NVIDIA GPUs, one idea per kernel file.

#include <memory>
#include <vector>

#include "api/implementation.h"

namespace flashlab::cuda {

/// The implementation named "naive". Workspace: forward S in fp32 [B, Hq, Sq, Sk] (P replaces it)
/// and LSE [B, Hq, Sq]; backward P, then dS in its place, in the inputs' type, and delta.
/// Steps, each one launch: forward scores, softmax, values; backward delta, probabilities, dv, ds,
/// dq, dk.
const internal::Implementation& naive_implementation();

/// The forward rungs, in the order of the ladder: fa1, fa1-vector, fa1-shuffle, fa1-mma, fa2,
/// fa2-deterministic (the forward of fa2 with a backward without atomics), fa2-vector, fa2-shuffle,
/// fa2-mma. Their plans refuse, with kUnsupported, head dims beyond 128 and tile sizes that cannot
/// work or need more threads or shared memory than the device has: required and available are
/// named.
std::vector<const internal::Implementation*> ladder_forward_implementations();

/// Those for Hopper (sm_90 alone): fa2-tma, fa2-wgmma, fa3, fa3-turns, fa3-frozen; fp16 and bf16.
/// Their plans refuse, with kUnsupported, other GPUs, head dims beyond 128 or not a multiple of 8,
/// rows that the copy engine cannot address, and tiles other than 128 queries x 64 or 128 keys.
std::vector<const internal::Implementation*> ladder_hopper_implementations();

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
