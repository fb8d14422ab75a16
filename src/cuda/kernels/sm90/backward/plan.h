#pragma once

// Backward on Hopper: fp16 and bf16 (kernels/sm90/backward/kernel.cu).

#include <cstdint>
#include <memory>

#include "api/implementation.h"
#include "cuda/kernels/sm90/backward/tiles.h"

namespace flashlab::cuda {

using device::Sm90BackwardTiling;

/// head_dim: the larger one. short_window: every key is seen by few queries.
Sm90BackwardTiling choose_sm90_backward_tiling(std::int64_t head_dim, bool short_window,
                                               bool dropout, bool ragged = false);

/// Whether the copy engine can read q, k, v and d_o, and d_o has their type. Errors: kUnsupported.
Status check_sm90_backward_tensors(const Problem& problem);

/// Three kernels, of which the first and the last are sm80's: delta and LSE in base 2 and zeros;
/// the five products; dQ to its type. Workspace: dQ in fp32, two fp32 numbers per row of q; a
/// counter where blocks stay. Errors: kUnsupported (head dims above 128; a fixed order of
/// additions; masks; d_o of another type; rows that the copy engine cannot describe),
/// which 'sm80' serves.
Result<std::shared_ptr<internal::PlanState>> plan_sm90_backward(
    const internal::ContextState& context, const Problem& problem,
    const internal::Geometry& geometry);

}  // namespace flashlab::cuda
