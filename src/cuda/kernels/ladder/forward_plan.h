#pragma once

// The forward rungs of the ladder on NVIDIA GPUs, one idea per kernel file: fa1, fa1-vector,
// fa1-shuffle, fa1-mma, fa2, fa2-vector, fa2-shuffle, fa2-mma, and fa2-deterministic (the forward
// of fa2 with a backward without atomics).

#include <cstdint>
#include <vector>

#include "api/implementation.h"

namespace flashlab::cuda {

/// Implementation objects of all rungs, in the order of the ladder. Their plans refuse, with
/// kUnsupported, head dims beyond 128 and tile sizes that cannot work or need more threads or
/// shared memory than the device has: required and available are named.
std::vector<const internal::Implementation*> ladder_forward_implementations();

/// What distinguishes the rungs on the host: how a tile is spread over threads and memory.
enum class LadderStep : std::uint8_t { kFirst, kVector, kShuffle, kMma };

/// Dynamic shared memory of a rung's kernel: the size of its `Storage`.
std::int64_t ladder_shared_bytes(LadderStep step, std::int64_t tile_q, std::int64_t tile_k,
                                 std::int64_t head_dim, std::int64_t head_dim_v);

/// Threads of a block.
std::int64_t ladder_threads(LadderStep step, std::int64_t tile_q, std::int64_t tile_k);

}  // namespace flashlab::cuda
