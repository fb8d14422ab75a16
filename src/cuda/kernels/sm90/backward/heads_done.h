#pragma once

// Of the Hopper backward kernel (kernel.cu): which heads' dQ is complete. `finish` begins beside
// the last tiles of keys, on multiprocessors that have none left.

#include "ptx/atomic.h"
#include "sm90/backward/block.h"

namespace flashlab::device {

/// One thread: counts the tiles of keys of each head whose dQ is added. `finish` waits for these.
template <class Config>
struct Sm90HeadCounter {
  const BackwardArguments& args;
  Sm90BackwardStorage<Config>& shared;
  using Tiles = Sm90BackwardTiles<Config>;
  Ring<Config::kKeyStages> ring_keys{shared.ring_keys};

  __device__ void count(const Work& work) const {
    const int tiles = args.shape.batch * args.shape.heads_q * work.tiles_q;
    ptx::add_release(done_counter(args, tiles, work.batch, work.head_k), 1);
  }
  /// `first`: the tile of keys of a block that has no other.
  __device__ void run(const Work& first) {
    if constexpr (!Tiles::kStays) {
      if (first.per_head() > 0) wait_for_phase(ring_keys.empty(), 0);
      return count(first);
    }
#pragma unroll 1
    for (;;) {
      ring_keys.wait_full();
      const int index = shared.work[ring_keys.stage];
      ptx::barrier_arrive(ring_keys.empty());
      if (index < 0) break;
      wait_for_phase(ring_keys.empty(), ring_keys.phase);
      count(tile_of_keys<Config>(args.shape, PlacedTile<Config>(index).index()));
      ring_keys.advance();
    }
  }
};

}  // namespace flashlab::device
