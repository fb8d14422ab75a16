#pragma once

// Barriers that warps, not threads, arrive at: an arrival per thread would cost 32 times as many.

#include "arguments.h"
#include "ptx/barrier.h"
#include "ptx/memory.h"

namespace flashlab::device {

/// Lanes of a warp that arrive for it. One is enough: __syncwarp() orders the accesses of all lanes
/// before its arrival (PTX ISA, "bar.warp.sync" and causality order). compute-sanitizer's racecheck
/// seems not to follow that order: of what the 16-bit backward stores before an arrival it reported
/// hazards in multiples of 31, nearly all (H200, CUDA 13.0, 2026-11-21). So bench/sanitize.py lets
/// it watch kernels in which all 32 arrive; no run of these is recorded yet.
inline constexpr int kArrivalsPerWarp = 1;

/// One thread initialises; the others see it after a block barrier.
__device__ inline void init_warp_barrier(const Int64& barrier, int warps) {
  ptx::barrier_init(ptx::shared_address(&barrier), warps * kArrivalsPerWarp);
}

/// What the warp did before is visible to those who wait for the phase.
__device__ inline void arrive_as_warp(const Int64& barrier) {
  __syncwarp();
  if (threadIdx.x % 32 < kArrivalsPerWarp) ptx::barrier_arrive(ptx::shared_address(&barrier));
}

}  // namespace flashlab::device
