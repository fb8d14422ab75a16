#pragma once

// A ring of places in shared memory between one producer and its consumers, each place with two
// barriers: `full` ends a phase when the data has landed, `empty` when every consumer is done.

#include "ptx/barrier.h"
#include "ptx/memory.h"
#include "ptx/transaction.h"

namespace flashlab::device {

/// Waits for the phase of a barrier (at a shared address) with this parity.
__device__ inline void wait_for_phase(unsigned barrier, unsigned parity) {
  while (!ptx::barrier_passed_soon(barrier, parity)) {
  }
}

/// The barriers of a ring, in shared memory.
template <int kStages>
struct RingBarriers {
  unsigned long long full[kStages], empty[kStages];

  /// By one thread, before barrier_init_fence and a block barrier.
  __device__ void init(int producers, int consumers) {
#pragma unroll
    for (int i = 0; i < kStages; ++i) {
      ptx::barrier_init(ptx::shared_address(&full[i]), producers);
      ptx::barrier_init(ptx::shared_address(&empty[i]), consumers);
    }
  }
};

/// Where one side stands in a ring. It owns stage and phase: nobody else computes them.
template <int kStages>
struct Ring {
  unsigned barriers;  ///< shared address of the RingBarriers
  int stage = 0;
  unsigned phase = 0;

  Ring() = default;
  __device__ explicit Ring(const RingBarriers<kStages>& of) { attach(of); }
  __device__ void attach(const RingBarriers<kStages>& of) { barriers = ptx::shared_address(&of); }

  __device__ unsigned full() const { return barriers + 8 * stage; }
  __device__ unsigned empty() const { return barriers + 8 * (kStages + stage); }

  __device__ void wait_full() const { wait_for_phase(full(), phase); }
  /// The phase before a barrier's first counts as ended: the first round does not wait.
  __device__ void wait_empty() const { wait_for_phase(empty(), phase ^ 1); }
  /// This warp is done with the place.
  __device__ void release() const { release(stage); }
  __device__ void release(int of_stage) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::barrier_arrive(barriers + 8 * (kStages + of_stage));
  }
  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

}  // namespace flashlab::device
