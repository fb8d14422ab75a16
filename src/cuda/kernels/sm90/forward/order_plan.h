#pragma once

// Of the plan of Hopper's forward (plan.h): the cut of a problem, which tile comes when, and
// whether keys are shared out.

#include <cstdint>

#include "api/context_state.h"
#include "cuda/kernels/sm90/forward/launch_arguments.h"
#include "cuda/kernels/sm90/forward/plan.h"
#include "cuda/launch/config.h"

namespace flashlab::cuda::sm90_forward {

inline constexpr int kWarpgroupRows = 64;

struct Choice {
  CallForm call = CallForm::kGeneral;
  Sm90ForwardTiling tiling;
  bool bounded = false;
  std::int64_t group = 1;  ///< query heads whose rows share tiles
  device::TileOrder order{};
  device::KeyStream stream{};
  int grid = 0;

  bool streams() const { return stream.tiles > 0; }
  bool shares() const { return streams() || group > 1; }  ///< keys, or tiles
  bool counts() const { return bounded && !streams(); }
};

Choice choose(const Problem& problem, const internal::Geometry& g, const DeviceInfo& device,
              const Sm90ForwardTiling& tiling);

/// What a sequence of a call has: of a ragged one the mean. So that bits depend on a sequence alone
/// a deterministic one counts as long.
struct UsualLengths {
  std::int64_t queries, keys;
};
UsualLengths usual_lengths(const Problem& problem, const internal::Geometry& g);

/// Query heads whose rows share tiles. Packed where that leaves fewer warpgroups' rows empty. A
/// group divides their rows: a box for the copy engine (Sm90Rows).
std::int64_t packed_heads(const Problem& problem, const internal::Geometry& g);

}  // namespace flashlab::cuda::sm90_forward
