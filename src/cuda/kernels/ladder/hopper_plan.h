#pragma once

// The ladder's forward rungs for Hopper (sm_90 alone): fa2-tma, fa2-wgmma, fa3, fa3-turns and
// fa3-frozen. fp16 and bf16, head dims that are multiples of 8.

#include <cstdint>
#include <vector>

#include "api/implementation.h"

namespace flashlab::cuda {

/// Implementation objects, in the order of the ladder. Their plans refuse, with kUnsupported, other
/// GPUs, head dims beyond 128 or not a multiple of 8, rows that the copy engine cannot address, and
/// tiles other than 128 queries x 64 or 128 keys.
std::vector<const internal::Implementation*> ladder_hopper_implementations();

/// Dynamic shared memory of a Hopper rung's kernel: the size of its `Storage`.
std::int64_t ladder_hopper_shared_bytes(std::int64_t tile_k, std::int64_t head_dim,
                                        std::int64_t head_dim_v);

}  // namespace flashlab::cuda
