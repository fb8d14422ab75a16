#pragma once

// Forward of the portable tensor-core kernels for fp32 tensors: scaled fp16 terms, and three bf16
// terms where those would not do. kernels/sm80/forward_fp32/kernel.cu says how.

#include <memory>

#include "api/implementation.h"
#include "cuda/kernels/sm80/forward_fp32/tiles.h"

namespace flashlab::cuda {

using device::Fp32ForwardTiling;

/// The tiling for a device that grants a block `shared_limit` bytes; `rows` queries per head.
/// `short_loop`: causal and no mask tensor, so that registers are left for Q at wide heads.
Fp32ForwardTiling choose_fp32_forward_tiling(std::int64_t rows, int head_dim, int head_dim_v,
                                             int terms, bool short_loop, int shared_limit);

/// Steps: split K and V into terms; forward; forward of what is guarded (its blocks leave at once
/// where nothing is); with split keys a merge.
/// Workspace: K and V as terms (4 bytes an element with `ieee`, 2 with `tf32`, head dims rounded
/// up to 16), a mark per block; with s parts s B Hq Sq (Dv + 2) floats, chosen so that all of it
/// stays below 1.5 times the bytes of Q, K and V.
/// Errors: kUnsupported (head dims beyond 256, lengths beyond 2^31 - 1024).
Result<std::shared_ptr<internal::PlanState>> plan_sm80_forward_fp32(
    const internal::ContextState& context, const Problem& problem,
    const internal::Geometry& geometry);

}  // namespace flashlab::cuda
