#pragma once

// The handshake of a ring in shared memory: a stream of tiles passes through kStages places, and a
// place is filled again when everybody has read it. This file owns stages and phases; kernels write
// neither `%` nor parities. Where threads copy for themselves (cp.async, sm80) they name tiles by
// their number in the stream: StageOf. Where one warp copies for others (TMA, sm90) each side keeps
// its place: Ring.

#include "ptx/barrier.h"
#include "ptx/memory.h"
#include "ptx/transaction.h"

namespace flashlab::device {

/// An mbarrier: a phase ends when the expected number of arrivals is complete, then the next
/// begins. Phases count from 0; the barrier holds only their parity, so nobody may be two behind.
struct PhaseBarrier {
  long long word;

  __device__ unsigned address() const { return ptx::shared_address(&word); }
  /// By one thread, before a block barrier.
  __device__ void init(int arrivals) { ptx::barrier_init(address(), arrivals); }
  __device__ void arrive() const { ptx::barrier_arrive(address()); }
  /// Arrives when this thread's copies so far (cp.async) have landed.
  __device__ void arrive_after_copies() const { ptx::barrier_arrive_after_copies(address()); }
  /// Returns when the phase has ended. The phase before the first counts as ended.
  __device__ void wait(unsigned phase) const {
    while (!ptx::barrier_passed(address(), phase % 2)) {
    }
  }
  __device__ void wait_parity(unsigned parity) const {
    while (!ptx::barrier_passed(address(), parity)) {
    }
  }
};

/// As PhaseBarrier::wait_parity; the thread may sleep meanwhile (sm_90). `barrier` is its address.
__device__ inline void wait_for_phase(unsigned barrier, unsigned parity) {
  while (!ptx::barrier_passed_soon(barrier, parity)) {
  }
}

/// The places of a stream's tiles, which are numbered from 0.
template <int kStages>
struct StageOf {
  /// Where a tile lies.
  static __device__ unsigned stage(unsigned tile) { return tile % kStages; }
  /// The phase, of its place's barriers, that ends when it has landed or has been read.
  static __device__ unsigned phase(unsigned tile) { return tile / kStages; }
  /// Of the parity of the phase that ends when the tile before it in its place has been read.
  static __device__ unsigned phase_before(unsigned tile) { return tile / kStages + 1; }
  /// The place behind `stage`, for loops that keep the place instead of the number.
  static constexpr __device__ int next(int stage) { return stage + 1 == kStages ? 0 : stage + 1; }
};

/// The barriers of a Ring, in shared memory: of each place, `full` ends a phase when the data has
/// landed, `empty` when every consumer is done.
template <int kStages>
struct RingBarriers {
  PhaseBarrier full[kStages], empty[kStages];

  /// By one thread, before barrier_init_fence and a block barrier.
  __device__ void init(int producers, int consumers) {
#pragma unroll
    for (int i = 0; i < kStages; ++i) {
      full[i].init(producers);
      empty[i].init(consumers);
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
  /// This thread is. Every thread arrives where others store what it has read: racecheck does not
  /// see that one lane's arrival behind __syncwarp stands for all.
  __device__ void release_own() const { ptx::barrier_arrive(empty()); }
  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

}  // namespace flashlab::device
