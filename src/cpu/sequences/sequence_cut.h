#pragma once

// How fine one sequence of a list is cut: by its own lengths and heads, whatever the threads.

#include <algorithm>

#include "api/problem.h"

namespace flashlab::internal {

/// As many threads as have this many pairs each, a quarter of a millisecond and more: finer tasks
/// cost what they bring, and where sequences are many, others fill the threads.
inline int threads_to_cut_sequence_for(const Geometry& g, int most) {
  constexpr double kPairsPerThread = 1 << 16;
  const double pairs = static_cast<double>(g.seqlen_q) * static_cast<double>(g.seqlen_k) *
                       static_cast<double>(g.heads_q);
  return static_cast<int>(std::clamp(pairs / kPairsPerThread, 1.0, static_cast<double>(most)));
}

}  // namespace flashlab::internal
