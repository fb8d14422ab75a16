#pragma once

// The copies of the rungs in which one thread of the block starts them all: each tile of K and V
// lands in one of kStages places, whose barrier counts its bytes.

#include "ladder/hopper_tiles.h"

namespace flashlab::device {

struct Storage {
  alignas(kSlabAlignment) unsigned char q[TileQ::kBytes];  // [Br, D]
  unsigned char k[kStages][TileK::kBytes];                 // [Bc, D]
  unsigned char v[kStages][TileV::kBytes];                 // [Bc, Dv]
  PhaseBarrier q_landed, landed[kStages];
};
static_assert(sizeof(Storage) == Config::kSharedBytes);

/// By one thread: announces the bytes of a tile of K and V and starts their copies.
__device__ inline void start_keys(Storage& shared, const HopperArguments& args,
                                  const QueryBlock& at, int tile) {
  const int stage = StageOf<kStages>::stage(tile);
  const unsigned barrier = shared.landed[stage].address();
  ptx::barrier_arrive_expect(barrier, TileK::kBytes + TileV::kBytes);
  copy_tile<TileK>(ptx::shared_address(shared.k[stage]), &args.k, tile * kTileK, at.head_k,
                   at.batch, barrier, ptx::kEvictLast);
  copy_tile<TileV>(ptx::shared_address(shared.v[stage]), &args.v, tile * kTileK, at.head_k,
                   at.batch, barrier, ptx::kEvictLast);
}

/// By all threads, of which `starts` is true in one: Q and the first tiles are under way.
__device__ inline void start_first(Storage& shared, const HopperArguments& args,
                                   const QueryBlock& at, bool starts) {
  if (starts) {
    shared.q_landed.init(1);
    for (PhaseBarrier& barrier : shared.landed) barrier.init(1);
    ptx::barrier_init_fence();
  }
  __syncthreads();
  if (!starts) return;
  ptx::barrier_arrive_expect(shared.q_landed.address(), TileQ::kBytes);
  copy_tile<TileQ>(ptx::shared_address(shared.q), &args.q, at.q0, at.head, at.batch,
                   shared.q_landed.address(), ptx::kEvictLast);
  for (int tile = 0; tile < kStages && tile < at.tiles(); ++tile) {
    start_keys(shared, args, at, tile);
  }
}

}  // namespace flashlab::device
