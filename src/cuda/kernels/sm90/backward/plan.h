#pragma once

// Backward on Hopper: fp16 and bf16 (kernels/sm90/backward/kernel.cu).

#include <cstdint>
#include <memory>

#include "api/implementation.h"

namespace flashlab::cuda {

/// How the Hopper backward kernel cuts a problem. The names are the kernel's Config constants.
struct Sm90BackwardTiling {
  int tile_q = 64;     ///< queries of a step
  int tile_k = 128;    ///< keys of a tile, 64 for each consumer warpgroup
  int tile_dim = 128;  ///< features of a tile (kDimUnit); those beyond the head dims are zeros
  int stages = 2;      ///< tiles of queries under way
  /// 1: a block for each tile of keys. Above: blocks that stay, so many tiles of keys under way.
  int key_stages = 1;
  bool dropout = false;  ///< draws lie beside the tiles of queries
};

/// head_dim: the larger one. short_window: every key is seen by few queries.
Sm90BackwardTiling choose_sm90_backward_tiling(std::int64_t head_dim, bool short_window,
                                               bool dropout);

/// Dynamic shared memory of the kernel, which asserts that it agrees.
int sm90_backward_shared_bytes(const Sm90BackwardTiling& tiling);

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
