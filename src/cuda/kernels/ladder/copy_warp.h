#pragma once

// What the rungs with a warp for the copies share: shared memory, the handshake of its rings, that
// warp's program, and who has how many registers.

#include "ladder/hopper_tiles.h"
#include "ladder/warpgroup_products.h"

namespace flashlab::device {

constexpr int kConsumers = kTileQ / kWarpgroupRows;  // warpgroups that multiply
constexpr int kThreads = (kConsumers + 1) * kWarpgroupThreads;
// Registers per thread: what the block is launched with (65536 / kThreads), divided anew.
constexpr int kConsumerRegisters = 232, kProducerRegisters = 40;
static_assert(kConsumers == 2);

struct Storage {
  alignas(kSlabAlignment) unsigned char q[TileQ::kBytes];  // [Br, D]
  unsigned char k[kStages][TileK::kBytes];                 // [Bc, D]
  unsigned char v[kStages][TileV::kBytes];                 // [Bc, Dv]
  PhaseBarrier q_landed;
  RingBarriers<kStages> ring_k, ring_v;  // of each place: it has landed, it has been read

  /// By one thread, before the block's only barrier. A place has been read when all warps say so.
  __device__ void init_barriers() {
    q_landed.init(1);
    ring_k.init(1, kConsumers * kWarpgroupThreads / 32);
    ring_v.init(1, kConsumers * kWarpgroupThreads / 32);
    ptx::barrier_init_fence();
  }
  /// Where a consumer's 64 rows of Q begin.
  __device__ unsigned queries_of(int consumer) const {
    return ptx::shared_address(q) + consumer * kWarpgroupRows * kSlabRowBytes;
  }
};
static_assert(sizeof(Storage) == Config::kSharedBytes);

/// Waits until a place is free and starts the copy of a tile into it.
template <class Tile>
__device__ inline void fill_place(Ring<kStages>& ring, const unsigned char* places,
                                  const EncodedTensorMap& map, const Place& at, int k0) {
  ring.wait_empty();
  ptx::barrier_arrive_expect(ring.full(), Tile::kBytes);
  copy_tile<Tile>(ptx::shared_address(places) + ring.stage * Tile::kBytes, &map, k0, at.head_k,
                  at.batch, ring.full(), ptx::kEvictLast);
  ring.advance();
}

/// One thread's work for the whole block: every copy, as early as there is a place for it.
__device__ inline void produce(Storage& shared, const HopperArguments& args, const Place& at) {
  ptx::barrier_arrive_expect(shared.q_landed.address(), TileQ::kBytes);
  copy_tile<TileQ>(ptx::shared_address(shared.q), &args.q, at.q0, at.head, at.batch,
                   shared.q_landed.address(), ptx::kEvictLast);
  Ring<kStages> ring_k(shared.ring_k), ring_v(shared.ring_v);
#pragma unroll 1
  for (int tile = 0; tile < at.tiles; ++tile) {
    fill_place<TileK>(ring_k, shared.k[0], args.k, at, tile * kTileK);
    fill_place<TileV>(ring_v, shared.v[0], args.v, at, tile * kTileK);
  }
}

/// A consumer has read the tile at its place of a ring.
__device__ inline void leave_place(Ring<kStages>& ring) {
  ring.release();
  ring.advance();
}

}  // namespace flashlab::device
