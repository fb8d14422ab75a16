#pragma once

// Forward on Hopper: fp16 and bf16 (kernels/sm90/forward/kernel.cu).

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "api/implementation.h"
#include "cuda/kernels/sm90/forward/tiles.h"
#include "runtime/kernel_store/kernel.h"

namespace flashlab::cuda {

using device::Sm90ForwardTiling;

/// What the tiling depends on.
struct Sm90ForwardNeeds {
  int head_dim = 0, head_dim_v = 0;
  std::int64_t seqlen_k = 0;
  bool bounded = false;           ///< rows differ in the keys they see: causal, a window
  bool window = false;            ///< they do at their first key, too
  bool score_terms = false;       ///< what long steps have no registers for: softcap, a mask, two
  bool many_score_terms = false;  ///< several, or a mask with many registers to read
  bool few_tiles = false;         ///< of three consumers: multiprocessors would be left idle
  /// Tiles of one consumer are no more than multiprocessors; no packed groups.
  bool one_round = false;
  std::int64_t seqlen_q = 0;
  bool packed = false;  ///< a group's heads share tiles
  bool ragged = false;  ///< sequences of lengths that only the call knows
  bool shares = false;  ///< they do, or tiles share keys: one kernel, whatever the lengths
};

Sm90ForwardNeeds sm90_forward_needs(const Problem& problem, const internal::Geometry& geometry);

/// What a call runs with.
Sm90ForwardTiling sm90_forward_rule(const DeviceInfo& device, const Problem& problem,
                                    const internal::Geometry& geometry);

/// What it follows from.
Sm90ForwardTiling choose_sm90_forward_tiling(const Sm90ForwardNeeds& needs, int shared_limit);

/// Whether a tiling is the rule's for few keys at head dims of 65 to 128: its kernel may share
/// keys.
constexpr bool for_few_keys(const Sm90ForwardTiling& tiling) {
  return tiling.consumers == 2 && tiling.block_keys == 128;
}

/// One kernel; where tiles of queries differ in their keys (causal, a window) behind a memset of 4
/// bytes. Where whole tiles would leave multiprocessors idle, the keys of the last or of all tiles
/// are shared out evenly and a second kernel joins the parts.
/// Workspace: none; 256 bytes for the memset; fp32 O and LSE of the parts.
/// Errors: kUnsupported (head dims that are not multiples of 8 up to 256, a scale that is not
/// positive, rows that the copy engine cannot describe; where no implementation is named also few
/// queries, which sm80 serves faster).
Result<std::shared_ptr<internal::PlanState>> plan_sm90_forward(
    const internal::ContextState& context, const Problem& problem,
    const internal::Geometry& geometry);

}  // namespace flashlab::cuda
