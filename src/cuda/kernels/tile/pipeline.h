#pragma once

// The handshake of a ring in shared memory: a stream of tiles passes through kStages places, and a
// place is filled again when everybody has read it. This file owns stages and phases; kernels name
// tiles by their number in the stream and write neither `%` nor parities.

#include "arguments.h"
#include "ptx/barrier.h"
#include "ptx/memory.h"

namespace flashlab::device {

/// An mbarrier: a phase ends when the expected number of arrivals is complete, then the next
/// begins. Phases count from 0; the barrier holds only their parity, so nobody may be two behind.
struct PhaseBarrier {
  Int64 word;

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

}  // namespace flashlab::device
