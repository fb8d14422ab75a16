#pragma once

// Whether the Hopper backward cuts tiles of keys by queries, and how.

#include <cstdint>
#include <optional>

#include "api/problem.h"
#include "cuda/kernels/sm90/backward/plan.h"

namespace flashlab::cuda {

/// Where a call has so few tiles of keys that most multiprocessors wait for the longest ones: the
/// cut by which list scheduling of its parts ends first; nothing where whole tiles end about as
/// soon. A ragged call, dropout and ALiBi have whole tiles.
std::optional<device::KeyParts> choose_key_parts(const internal::Geometry& geometry,
                                                 const Sm90BackwardTiling& tiling,
                                                 int multiprocessors);

}  // namespace flashlab::cuda
