#pragma once

// Of the Hopper backward kernel (kernel.cu): the zeros that dQ is added to. A warp that has nothing
// else to do writes them shortly before, so that they are in L2 when they are added to.

#include "ptx/atomic.h"
#include "sm90/backward/block.h"

namespace flashlab::device {

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
      auto* const at = static_cast<float4*>(args.regions[kRegionGradQ]) +
                       Int64(tile) * (Tiles::Sizes::kTileFloats / 4) + lane;
#pragma unroll 8
      for (int i = 0; i < Tiles::Sizes::kTileFloats / 4; i += 32) at[i] = make_float4(0, 0, 0, 0);
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

}  // namespace flashlab::device
