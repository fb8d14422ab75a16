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
  static constexpr unsigned kAhead = 128;  ///< tiles of keys
  const BackwardArguments& args;
  unsigned* counters;
  unsigned all;             ///< tiles of the accumulator
  unsigned tiles, tiles_k;  ///< of these those of a key head, and its tiles of keys

  __device__ explicit Sm90Zeros(const BackwardArguments& args_)
      : args(args_),
        counters(static_cast<unsigned*>(args.regions[kRegionTurns])),
        tiles(args.shape.group * divide_up(args.shape.seqlen_q, Config::kTileQ)),
        tiles_k(divide_up(args.shape.seqlen_k, Config::kTileK)) {
    all = args.shape.batch * args.shape.heads_k * tiles;
  }

  /// Returns when a key head's tiles are zeros.
  __device__ void await(int head) const {
    while (ptx::load_acquire(counters + kFirstOfTiles + head) != tiles) __nanosleep(32);
  }

  /// The next tile if a block that begins with this tile of keys is to see to it, by one thread.
  /// Else `all` or more. Its own key head's are wanted at once, of the next ones as many as keep
  /// ahead.
  __device__ unsigned take(unsigned index) const {
    const Int64 ahead = Int64(index % tiles_k + kAhead) * tiles / tiles_k;
    const Int64 wanted = Int64(index / tiles_k + 1) * tiles + ahead;
    if (ptx::load_acquire(counters + kTicketsOfZeros) >= wanted) return all;
    return atomicAdd(counters + kTicketsOfZeros, 1u);
  }
  /// By a warp.
  __device__ void write(unsigned index) const {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (;;) {
      unsigned tile = 0;
      if (lane == 0) tile = take(index);
      tile = __shfl_sync(ptx::kFullMask, tile, 0);
      if (tile >= all) return;
      auto* const at = static_cast<float4*>(args.regions[kRegionGradQ]) +
                       Int64(tile) * (Tiles::Sizes::kTileFloats / 4) + lane;
#pragma unroll 8
      for (int i = 0; i < Tiles::Sizes::kTileFloats / 4; i += 32) at[i] = make_float4(0, 0, 0, 0);
      __syncwarp();
      if (lane == 0) {
        __threadfence();
        atomicAdd(counters + kFirstOfTiles + tile / tiles, 1u);
      }
    }
  }
  /// The same for every tile of keys of the block.
  __device__ void run(const Sm90BackwardStorage<Config>& shared) const {
    write(blockIdx.x);
    if constexpr (!Tiles::kStays) return;
    Ring<Config::kKeyStages> ring_keys(shared.ring_keys);
#pragma unroll 1
    for (;;) {
      ring_keys.wait_full();
      const int index = shared.work[ring_keys.stage];
      ring_keys.release();
      ring_keys.advance();
      if (index < 0) return;
      write(index);
    }
  }
};

}  // namespace flashlab::device
