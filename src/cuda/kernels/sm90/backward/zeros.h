#pragma once

// Of the Hopper backward kernel (kernel.cu): the zeros that dQ is added to. A warp that has nothing
// else to do writes them shortly before, so that they are in L2 when they are added to.

#include "ptx/atomic.h"
#include "sm90/backward/block.h"

namespace flashlab::device {

/// Zeros to a tile of the accumulator, by a warp. `own`: a lane's first four floats there.
template <class Config>
__device__ inline void clear_accumulator(float4* own) {
#pragma unroll 8
  for (int i = 0; i < BackwardSizes<Config>::kTileFloats / 4; i += 32) {
    own[i] = make_float4(0, 0, 0, 0);
  }
}

/// The next tile of the accumulator is taken by a warp of any block. What a block waits for was
/// taken by a block that runs, or its own warp takes it: nobody waits for a block to start.
template <class Config>
struct Sm90Zeros {
  using Tiles = Sm90BackwardTiles<Config>;
  static constexpr int kAhead = 128;  ///< tiles of keys
  const BackwardArguments& args;
  const KeyOrder& order;
  unsigned* counters;
  unsigned tiles, all;  ///< of the accumulator: of a query head, of all

  __device__ explicit Sm90Zeros(const Sm90BackwardArguments& launch)
      : args(launch.call),
        order(launch.order),
        counters(static_cast<unsigned*>(args.regions[kRegionTurns])),
        tiles(divide_up(args.shape.seqlen_q, Config::kTileQ)),
        all(args.shape.batch * args.shape.heads_q * tiles) {}

  /// Returns when a query head's tiles are zeros.
  __device__ void await(int head) const {
    while (ptx::load_acquire(counters + kFirstOfTiles + head) != tiles) __nanosleep(32);
  }

  /// How many tiles a block that begins with this tile of keys is to see to, in the order of heads:
  /// its own section's, which are wanted at once, and as many of the next ones as keep ahead.
  __device__ unsigned wanted(unsigned index) const {
    const int head = static_cast<int>(index) / order.tiles, group = args.shape.group;
    const int first = order.first_of_section(head), section = order.heads_from(first);
    const unsigned own = (first + section) * group * tiles;
    const int tile = static_cast<int>(index) - head * order.tiles;
    const float keys = static_cast<float>(tile * section + head - first + kAhead);
    const float ahead = keys * static_cast<float>(group * tiles) / static_cast<float>(order.tiles);
    return own + static_cast<unsigned>(fminf(ahead, static_cast<float>(all - own)));
  }
  /// The next tile, by one thread; `all` or more where so many are taken.
  __device__ unsigned take(unsigned wanted_tiles) const {
    if (ptx::load_acquire(counters + kTicketsOfZeros) >= wanted_tiles) return all;
    return atomicAdd(counters + kTicketsOfZeros, 1u);
  }
  /// Which tile comes at a place of the order of heads.
  __device__ unsigned tile_at(unsigned place) const {
    const int group = args.shape.group;
    if (place < order.alone * group * tiles) return place;
    const int head = static_cast<int>(place / tiles);
    return place + (order.query_head_at(head, group) - head) * tiles;
  }
  /// By a warp.
  __device__ void write(unsigned wanted_tiles) const {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (;;) {
      unsigned taken = 0;
      if (lane == 0) taken = take(wanted_tiles);
      taken = __shfl_sync(ptx::kFullMask, taken, 0);
      if (taken >= all) return;
      const unsigned tile = tile_at(taken), head = tile / tiles;
      clear_accumulator<Config>(static_cast<float4*>(args.regions[kRegionGradQ]) +
                                Int64(tile) * (Tiles::Sizes::kTileFloats / 4) + lane);
      __syncwarp();
      if (lane == 0) {
        __threadfence();
        atomicAdd(counters + kFirstOfTiles + head, 1u);
      }
    }
  }
  /// The same for every tile of keys of the block. `index`: of its first.
  __device__ void run(const Sm90BackwardStorage<Config>& shared, unsigned index) const {
    write(wanted(index));
    if constexpr (!Tiles::kStays) return;
    Ring<Config::kKeyStages> ring_keys(shared.ring_keys);
#pragma unroll 1
    for (;;) {
      ring_keys.wait_full();
      const int next = shared.work[ring_keys.stage];
      ring_keys.release();
      ring_keys.advance();
      if (next < 0) return;
      write(wanted(static_cast<unsigned>(next)));
    }
  }
};

/// Where the heads of a group go abreast: a block's warp goes through the block's own steps, a few
/// ahead of the producer, and clears each tile of the accumulator that no other block has claimed.
/// Who waits for a tile waits for a warp that runs.
template <class Config>
struct Sm90ClaimedZeros {
  using Tiles = Sm90BackwardTiles<Config>;
  static constexpr int kAhead = 8;  ///< steps; 24 and 64 take 1.01 of the time (NOTES.md)
  static constexpr unsigned kFree = 0, kClaimed = 1, kCleared = 2;
  const BackwardArguments& args;
  Sm90BackwardStorage<Config>& shared;
  int step = 0;

  __device__ unsigned* claim_of(unsigned tile) const {
    return static_cast<unsigned*>(args.regions[kRegionTurns]) + kFirstOfTiles + tile;
  }
  /// Returns when a tile is zeros.
  __device__ void await(unsigned tile) const {
    while (ptx::load_acquire(claim_of(tile)) != kCleared) __nanosleep(20);
  }
  /// Of a step, by a warp.
  __device__ void clear(unsigned tile) const {
    const int lane = threadIdx.x % 32;
    unsigned before = kFree;
    if (lane == 0) {
      while (step > shared.parts.steps_begun + kAhead) __nanosleep(200);
      before = atomicCAS(claim_of(tile), kFree, kClaimed);
    }
    if (__shfl_sync(ptx::kFullMask, before, 0) != kFree) return;
    clear_accumulator<Config>(static_cast<float4*>(args.regions[kRegionGradQ]) +
                              Int64(tile) * (Tiles::Sizes::kTileFloats / 4) + lane);
    __syncwarp();
    if (lane == 0) {
      __threadfence();
      atomicAdd(claim_of(tile), kCleared - kClaimed);
    }
  }
  __device__ void walk(const Work& work, const Stretch& stretch) {
    GroupCursor<true> at(work, args.shape, stretch);
#pragma unroll 1
    for (; at.left > 0; at.next(work, args.shape), ++step) {
      clear((work.batch * args.shape.heads_q + at.head) * work.tiles_q + at.tile);
    }
  }
  /// `first`, `stretch`: of the block's only tile of keys.
  __device__ void run(const Work& first, const Stretch& stretch) {
    if constexpr (!Tiles::kStays) return walk(first, stretch);
    Ring<Config::kKeyStages> ring_keys(shared.ring_keys);
#pragma unroll 1
    for (;;) {
      ring_keys.wait_full();
      const int next = shared.work[ring_keys.stage];
      ring_keys.release();
      ring_keys.advance();
      if (next < 0) return;
      const PlacedTile<Config> placed(next);
      const Work work = tile_of_keys<Config>(args.shape, placed.index());
      walk(work, Stretch::whole(work, args.shape, placed.back()));
    }
  }
};

}  // namespace flashlab::device
