#pragma once

// Forward of the portable tensor-core kernels: fp16 and bf16 on mma.sync, sm_80 and later.

#include <memory>

#include "api/implementation.h"
#include "cuda/kernels/sm80/forward/tiles.h"

namespace flashlab::cuda {

using device::ForwardTiling;

/// What the tiling depends on.
struct ForwardNeeds {
  bool few_rows = false;  ///< the kernel for few query rows or split keys
  int head_dim = 0, head_dim_v = 0;
  bool transformed = false;  ///< scores are masked by a tensor or scaled before the softmax
  bool bounded = false;      ///< causal, or a window: rows differ in the keys they see
  bool by_element = false;   ///< rows of Q, K or V have too little alignment for cp.async
  bool window = false;       ///< bounded on the left
  int features = 0;          ///< how many of softcap, ALiBi and dropout there are, untransformed
};

/// The tiling on a device that grants a block `shared_limit` bytes; from large to small until it
/// fits.
ForwardTiling choose_forward_tiling(const ForwardNeeds& needs, int shared_limit);

/// Blocks of so many bytes of shared memory that a multiprocessor holds at once, at most
/// tiling.min_blocks.
int forward_resident_blocks(const ForwardTiling& tiling, int bytes, int shared_limit);

/// In how many parts the keys are split so that `blocks` blocks fill a device that holds
/// `capacity` at once; 1 where the blocks fill half of it or the keys are few. `tile_k`: keys of a
/// tile.
int choose_key_splits(std::int64_t blocks, std::int64_t capacity, std::int64_t seqlen_k,
                      int tile_k);

/// One kernel; with split keys a second one that merges the parts.
/// Workspace: none, or with s splits s B Hq Sq (Dv + 1) floats.
/// Errors: kUnsupported (head dims beyond 256, lengths beyond 2^31 - 1024, shared memory).
Result<std::shared_ptr<internal::PlanState>> plan_sm80_forward(
    const internal::ContextState& context, const Problem& problem,
    const internal::Geometry& geometry);

}  // namespace flashlab::cuda
