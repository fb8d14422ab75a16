#pragma once

// In which order blocks of the main backward kernel (kernel.cu) add to a tile of dQ, where it is
// fixed.

#include "ptx/atomic.h"

namespace flashlab::device {

/// Where a warp's part of dQ goes, and when.
struct GradQTarget {
  float* at;  ///< this lane's place in the tile's accumulator
  unsigned* turn;
  unsigned rank;
  bool waits = true;  ///< ragged: QueryPlace::follows
};

/// Blocks add to a tile in the order of their ranks. Sequences whose offsets decrease share tiles:
/// a count only grows there, so that nobody waits for a turn that is over.
template <class Config>
__device__ void wait_for_turn(const GradQTarget& target) {
  if (threadIdx.x == 0) {
    if constexpr (Config::kRagged) {
      while (ptx::load_acquire(target.turn) < target.rank) {
      }
    } else {
      while (ptx::load_acquire(target.turn) != target.rank) {
      }
    }
  }
  __syncthreads();
}

template <class Config>
__device__ void pass_turn(const GradQTarget& target) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x != 0) return;
  if constexpr (Config::kRagged) {
    atomicMax(target.turn, target.rank + 1);
  } else {
    ptx::store_release(target.turn, target.rank + 1);
  }
}

}  // namespace flashlab::device
