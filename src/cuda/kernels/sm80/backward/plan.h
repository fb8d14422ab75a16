#pragma once

// Backward of the portable tensor-core kernels: fp16 and bf16 on mma.sync, sm_80 and later.

#include <memory>
#include <optional>

#include "api/implementation.h"

namespace flashlab::cuda {

/// How the main kernel cuts a problem. The names are the kernel's Config constants.
struct BackwardTiling {
  int tile_q = 64;          ///< queries per step
  int tile_k = 128;         ///< keys per block
  int warps_q = 1;          ///< warps that share the same keys
  int warps_k = 4;          ///< groups of them
  int stages = 2;           ///< tiles of queries under way
  bool one_barrier = true;  ///< per step, at twice the memory for P and dS
  int min_blocks = 2;       ///< resident per multiprocessor

  int warps() const noexcept { return warps_q * warps_k; }
  friend bool operator==(const BackwardTiling&, const BackwardTiling&) = default;
};

/// Dynamic shared memory of the main kernel; the kernel asserts that it agrees.
int backward_shared_bytes(const BackwardTiling& tiling, int head_dim, int head_dim_v);

/// The tiling for head dims, with or without a mask tensor or a fixed order of additions (or what
/// takes their registers: two of softcap, ALiBi and dropout), on a
/// device that grants a block `shared_limit` bytes (its multiprocessors hold 1 KiB more), the
/// fastest that fits; nothing if none does.
std::optional<BackwardTiling> choose_backward_tiling(int head_dim, int head_dim_v, bool mask,
                                                     bool deterministic, int shared_limit);

/// Three kernels: rows (delta, LSE in base 2, a zero accumulator), the five products by tiles of
/// keys, dQ to its type.
/// Workspace: 4 B Hq Sq' (D' + 2) bytes with Sq' and D' rounded up to tiles; 2 B Hq Sq D' more for
/// an fp32 d_o, and 4 bytes per tile of queries with `deterministic`.
/// Repeat: dK and dV bit for bit; dQ with `deterministic`, when blocks add in a fixed order (else
/// its last bits vary from run to run).
/// Errors: kUnsupported (head dims beyond 256, lengths beyond 2^31 - 1024, shared memory).
Result<std::shared_ptr<internal::PlanState>> plan_sm80_backward(
    const internal::ContextState& context, const Problem& problem,
    const internal::Geometry& geometry);

}  // namespace flashlab::cuda
