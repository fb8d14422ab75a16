#pragma once

// How a backward call is cut into tasks: which keys each task owns, and in which order tasks start.

#include <cstdint>
#include <vector>

#include "api/problem.h"
#include "cpu/simd/backward_kernels.h"

namespace flashlab::internal {

using simd::KeySplit;

/// The queries that see any key of [key_begin, key_end) by the bounds alone, clamped to
/// [0, seqlen_q).
KeySplit visible_queries(const Geometry& geometry, std::int64_t key_begin, std::int64_t key_end);

struct BackwardSchedule {
  int block_keys = 0;            ///< keys whose packed panels a task holds at a time
  std::vector<KeySplit> splits;  ///< of every (batch, key head), longest first
  double balance = 1;            ///< mean / longest thread, by the model below
};

/// Chooses the block size and the number of splits: the fewest splits within half a percent of the
/// best balance, since each one costs a partial dQ of its own.
///
/// `threads` is how many to balance for: pass a constant where results may not depend on it.
/// `max_block_keys` and `panel_keys`: blocks are whole panels, at most so long.
/// Cost: O(keys / panel_keys + tasks), independent of batch and heads beyond a small multiple of
/// `threads`.
BackwardSchedule schedule_backward(const Geometry& geometry, int threads, int max_block_keys,
                                   int panel_keys, int max_splits);

}  // namespace flashlab::internal
