#pragma once

// Backward on Hopper for head dims above 128: fp16 and bf16 (kernels/sm90/backward_wide).

#include <cstdint>
#include <memory>

#include "api/implementation.h"
#include "cuda/kernels/sm90/backward_wide/tiles.h"

namespace flashlab::cuda {

/// Whether a problem's head dims are those of this plan, and not of plan_sm90_backward's.
bool is_wide_sm90_backward(const internal::Geometry& geometry);

using device::WideTiling;

/// The tiling with as many stages as fit a block of sm_90.
WideTiling choose_wide_tiling(const internal::Geometry& geometry);

/// dS of a call lies in memory between the two kernels, so a call is worked off in parts.
struct WideParts {
  std::int64_t heads = 0;  ///< of keys, in a part
  std::int64_t tiles = 0;  ///< of keys, in a part: all, or fewer of one head
  std::int64_t count = 0;  ///< parts
  std::int64_t bytes = 0;  ///< of dS in the largest one
};
/// The most bytes of dS that are in memory at a time.
inline constexpr std::int64_t kWideScoresBytes = std::int64_t{1} << 30;
/// As many heads at a time as `most` bytes hold, else as many keys of one head; equal parts.
/// count 0: 64 keys of one head are too much.
WideParts choose_wide_parts(const internal::Geometry& geometry,
                            std::int64_t most = kWideScoresBytes);

/// Kernels: delta and LSE in base 2 (sm80's); then for each part dK, dV and dS by tiles of keys,
/// and dQ = scale dS K by tiles of queries. Workspace: dS of a part, at most 1 GiB; two fp32
/// numbers per row of q; where a head's keys are several parts, dQ of one key head's queries in
/// fp32.
/// Repeat: bit for bit.
/// Errors: kUnsupported (head dims above 256 or, of q, to 128; masks, softcap, ALiBi, dropout; d_o
/// of another type; rows that the copy engine cannot describe; more than 1024 parts), which 'sm80'
/// serves.
Result<std::shared_ptr<internal::PlanState>> plan_sm90_backward_wide(
    const internal::ContextState& context, const Problem& problem,
    const internal::Geometry& geometry, std::int64_t most = kWideScoresBytes);

}  // namespace flashlab::cuda
