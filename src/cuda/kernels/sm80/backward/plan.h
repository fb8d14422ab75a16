#pragma once

// Backward of the portable tensor-core kernels: fp16 and bf16 on mma.sync, sm_80 and later.

#include <memory>
#include <optional>

#include "api/implementation.h"
#include "cuda/kernels/sequence_arguments.h"
#include "cuda/kernels/sm80/backward/tiles.h"
#include "cuda/launch/arguments.h"
#include "cuda/launch/config.h"
#include "cuda/launch/gpu_plan.h"

namespace flashlab::cuda {

using device::BackwardTiling;

/// The tiling for head dims, with or without a mask tensor or a fixed order of additions (or what
/// takes their registers: two of softcap, ALiBi and dropout), on a
/// device that grants a block `shared_limit` bytes (its multiprocessors hold 1 KiB more), the
/// fastest that fits; nothing if none does.
std::optional<BackwardTiling> choose_backward_tiling(int head_dim, int head_dim_v, bool mask,
                                                     bool deterministic, int shared_limit);

/// How query rows are cut, for the steps before and after the products, Hopper's too. Their
/// kernels are compiled for this and for the tensors that they touch, whatever the rest of the
/// call.
struct BackwardRows {
  CallForm call = CallForm::kGeneral;
  int tile_q = 64, dim_unit = 32;
  std::int64_t blocks = 0;    ///< tiles of queries of all heads
  bool counts_heads = false;  ///< the tiles of keys that are done, for each key head
  const device::Sequences* sequences = nullptr;  ///< of a ragged call
  // Where the step before leaves delta; fp32's does not divide it by dropout's scale.
  runtime::Place delta{buffer_of_region(device::kRegionDelta)};
  bool delta_is_whole = false;
};
/// What the step before makes beside delta and LSE in base 2.
struct PreparedRows {
  bool zeros = false;        ///< for the sums of dQ
  bool turns = false;        ///< counters at zero
  bool copy_grad_o = false;  ///< d_o in the type of q
};
GpuStep prepare_step(const GpuPlan& plan, const BackwardRows& rows, const PreparedRows& prepared,
                     std::string words);
/// The step behind, by warps_q x warps_k warps as the sums lie; tile_k: what counts_heads counts.
struct FinishedRows {
  int warps_q = 1, warps_k = 4, tile_k = 128;
  bool vectors = true;  ///< sums lie by fours: kVectorReduction
};
GpuStep finish_step(const GpuPlan& plan, const BackwardRows& rows, const FinishedRows& finished,
                    std::string words);
/// Gradients of sinks, by delta of the step before; anywhere behind it.
GpuStep sinks_step(const GpuPlan& plan, const BackwardRows& rows);

/// Three kernels: rows (delta, LSE in base 2, a zero accumulator), the five products by tiles of
/// keys, dQ to its type; a fourth for gradients of sinks.
/// Workspace: 4 B Hq Sq' (D' + 2) bytes with Sq' and D' rounded up to tiles; 2 B Hq Sq D' more for
/// an fp32 d_o, and 4 bytes per tile of queries with `deterministic`.
/// Repeat: dK and dV bit for bit; dQ with `deterministic`, when blocks add in a fixed order (else
/// its last bits vary from run to run).
/// Errors: kUnsupported (head dims beyond 256, lengths beyond 2^31 - 1024, shared memory).
Result<std::shared_ptr<internal::PlanState>> plan_sm80_backward(
    const internal::ContextState& context, const Problem& problem,
    const internal::Geometry& geometry);

}  // namespace flashlab::cuda
