#pragma once

// What the rungs with a warp for the copies share: shared memory, the handshake of its rings, that
// warp's program, the consumers' turns, and who has how many registers.

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
                                  const EncodedTensorMap& map, const QueryBlock& at, int k0) {
  ring.wait_empty();
  ptx::barrier_arrive_expect(ring.full(), Tile::kBytes);
  copy_tile<Tile>(ptx::shared_address(places) + ring.stage * Tile::kBytes, &map, k0, at.head_k,
                  at.batch, ring.full(), ptx::kEvictLast);
  ring.advance();
}

/// One thread's work for the whole block: every copy, as early as there is a place for it.
__device__ inline void produce(Storage& shared, const HopperArguments& args, const QueryBlock& at) {
  ptx::barrier_arrive_expect(shared.q_landed.address(), TileQ::kBytes);
  copy_tile<TileQ>(ptx::shared_address(shared.q), &args.q, at.q0, at.head, at.batch,
                   shared.q_landed.address(), ptx::kEvictLast);
  Ring<kStages> ring_k(shared.ring_k), ring_v(shared.ring_v);
#pragma unroll 1
  for (int tile = 0; tile < at.tiles(); ++tile) {
    fill_place<TileK>(ring_k, shared.k[0], args.k, at, tile * kTileK);
    fill_place<TileV>(ring_v, shared.v[0], args.v, at, tile * kTileK);
  }
}

/// A consumer has read the tile at its place of a ring.
__device__ inline void leave_place(Ring<kStages>& ring) {
  ring.release();
  ring.advance();
}

/// Waits until it is this consumer's turn to start products; and gives the turn to the other one.
/// Each has a barrier that hardware knows by number (0 is the block's); both consumers' threads
/// come to it.
enum NamedBarrier { kFirstTurn = 1 };
__device__ inline void await_turn(int consumer) {
  ptx::meet(kFirstTurn + consumer, kConsumers * kWarpgroupThreads);
}
__device__ inline void pass_turn(int consumer) {
  ptx::meet_later(kFirstTurn + (1 - consumer), kConsumers * kWarpgroupThreads);
}

/// The block's threads take their roles: the first warpgroup's first thread copies, each of the
/// others runs consume(shared, call, at, consumer).
template <class Consume>
__device__ inline void divide_work(Storage& shared, const HopperArguments& args,
                                   const Consume& consume) {
  const QueryBlock at(args.call.shape);
  if (threadIdx.x == 0) shared.init_barriers();
  __syncthreads();
  const int warpgroup = __shfl_sync(ptx::kFullMask, threadIdx.x / kWarpgroupThreads, 0);
  if (warpgroup == 0) {
    ptx::give_registers<kProducerRegisters>();
    if (threadIdx.x == 0) produce(shared, args, at);
  } else {
    ptx::take_registers<kConsumerRegisters>();
    consume(shared, args.call, at, warpgroup - 1);
  }
}

}  // namespace flashlab::device
