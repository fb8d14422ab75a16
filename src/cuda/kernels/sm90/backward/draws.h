#pragma once

// Of the Hopper backward kernel (kernel.cu): the warp that draws what dropout drops.

#include "ptx/special.h"
#include "sm90/backward/block.h"
#include "tile/probability.h"
#include "tile/query_walk.h"

namespace flashlab::device {

/// One warp: what dropout drops of each tile of queries, to the place that the tile comes to. It
/// has 24 registers: what can be found anew is not kept from tile to tile.
template <class Config>
struct Sm90DropoutProducer {
  static_assert(!Config::kAbreast);
  const BackwardArguments& args;
  const KeyOrder& order;
  Sm90BackwardStorage<Config>& shared;
  Ring<Config::kKeyStages> ring_keys{shared.ring_keys};
  Ring<Config::kStages> ring_queries{shared.ring_queries};

  __device__ void draw_tile(int query0, int key0) {
    ring_queries.wait_empty();
    const int lane = static_cast<int>(ptx::anew(threadIdx.x) % 32);
    shared.parts.of[ring_queries.stage].draw(shared.parts.words, args.dropout.limit, query0,
                                             ptx::anew(key0), lane, PtxArithmetic{});
    ptx::barrier_arrive(ring_queries.full());
    ring_queries.advance();
  }
  __device__ Work work_of(unsigned index) const {
    if constexpr (Config::kRagged) {
      return shared.parts.sequences[0].work;
    } else {
      return tile_of_keys<Config>(args.shape, ptx::anew(index));
    }
  }
  /// Of a tile of keys.
  __device__ void draw(unsigned index) {
#pragma unroll 1
    for (int member = 0; member < args.shape.group; ++member) {
      const Work work = work_of(index);
      const int head = work.head_k * args.shape.group + member;
      __syncwarp();
      if (ptx::anew(threadIdx.x) % 32 == 0) {
        shared.parts.words = KeepMask<Config>(args.dropout, args.shape, work.batch, head).words;
      }
      __syncwarp();
#pragma unroll 1
      for (int tile = work.first_tile; tile < work.end_tile; ++tile) {
        draw_tile(tile * Config::kTileQ, work.key0);
      }
    }
  }

  __device__ void run() {
    if constexpr (!Sm90BackwardTiles<Config>::kStays)
      return draw(Config::kRagged ? 0 : order.tile_at(blockIdx.x));
#pragma unroll 1
    for (;;) {
      ring_keys.wait_full();
      const int index = shared.work[ring_keys.stage];
      ring_keys.release();
      ring_keys.advance();
      if (index < 0) break;
      draw(static_cast<unsigned>(index));
    }
  }
};

}  // namespace flashlab::device
