#pragma once

// How blocks find out which of them is the last one of a tile.

#include "decode/launch_arguments.h"
#include "ptx/atomic.h"

namespace flashlab::device {

/// Counts one part of a tile and returns how many were counted before. The workspace comes as it
/// is: a word without the plan's tag has counted none. Who counts the last part leaves the tag and
/// no count, so that later calls add, and need not compare. What the block wrote before a barrier
/// is there for who counts later.
__device__ inline int count_part(unsigned long long* word, unsigned long long tag, int parts) {
  unsigned long long seen = ptx::add_acquire_release(word, 1);
  while ((seen & ~kCountMask) != tag) {
    const unsigned long long found = atomicCAS(word, seen + 1, tag + 1);
    if (found == seen + 1) return 0;
    seen = (found & ~kCountMask) == tag ? ptx::add_acquire_release(word, 1) : found - 1;
  }
  const int before = static_cast<int>(seen & kCountMask);
  if (before + 1 == parts) *word = tag;
  return before;
}

}  // namespace flashlab::device
