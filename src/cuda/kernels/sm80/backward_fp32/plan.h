#pragma once

// Backward of the portable tensor-core kernels for fp32 tensors: `ieee` by two scaled fp16 terms
// per operand, `tf32` by one.

#include <cstdint>
#include <memory>

#include "api/implementation.h"

namespace flashlab::cuda {

/// How the main kernel cuts a problem. The names are the kernel's Config constants.
struct BackwardFp32Tiling {
  int warps = 8;       ///< per block; a warp has 16 keys
  int groups = 1;      ///< of warps with the same keys, which share the queries of a step
  int rows = 32;       ///< queries per step
  int stages = 2;      ///< steps of queries under way
  int parts = 1;       ///< blocks that share the columns of one tile of keys
  int min_blocks = 1;  ///< resident per multiprocessor

  int keys() const noexcept { return 16 * warps / groups; }
  friend bool operator==(const BackwardFp32Tiling&, const BackwardFp32Tiling&) = default;
};

/// Dynamic shared memory of the main kernel (one or two terms) or the guarded one (three); the
/// kernel asserts that it agrees.
int backward_fp32_shared_bytes(const BackwardFp32Tiling& tiling, int head_dim, int head_dim_v,
                               int terms);

/// The tiling for head dims on a device that grants a block `shared_limit` bytes; with three terms
/// that of the guarded kernel, which may not fit.
BackwardFp32Tiling choose_backward_fp32_tiling(int head_dim, int head_dim_v, int terms,
                                               int shared_limit);

/// Operands to terms, row sums, guard, main, guarded, plain, result: seven launches.
/// Workspace: terms (4 bytes per element of q, k, v and d_o; `tf32`: 2), 4 bytes per element of dq,
/// 8 bytes per query row and what is known of tiles.
/// Errors: kUnsupported (head dims beyond 256, lengths beyond 2^31 - 1024, shared memory).
Result<std::shared_ptr<internal::PlanState>> plan_sm80_backward_fp32(
    const internal::ContextState& context, const Problem& problem,
    const internal::Geometry& geometry);

}  // namespace flashlab::cuda
