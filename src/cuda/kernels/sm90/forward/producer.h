#pragma once

// Of the Hopper forward kernel (kernel.cu): the warps that start copies.

#include "ptx/dependency.h"
#include "sm90/forward/block.h"
#include "sm90/forward/cached_keys.h"
#include "tile/slab_copy.h"

namespace flashlab::device {

/// One thread: which tiles the block works off, and blocks of K and V in the order in which they
/// are read, tile after tile. It runs ahead of the consumers as far as the rings have places,
/// beyond the end of a tile too.
template <class Config>
struct Sm90KeyProducer {
  using Tiles = Sm90Tiles<Config>;
  const Sm90ForwardArguments& args;
  Sm90ForwardStorage<Config>& shared;
  Ring<kQueuedTasks> ring_tasks{shared.ring_tasks};
  Ring<Config::kStagesK> ring_k{shared.ring_k};
  Ring<Config::kStagesV> ring_v{shared.ring_v};

  /// The task stays where it is until its consumers are done with its last block.
  __device__ const Sm90Task<Config>& publish(const Sm90Task<Config>& next) {
    ring_tasks.wait_empty();
    auto& task = shared.tasks[ring_tasks.stage];
    task = next;
    ptx::barrier_arrive(ring_tasks.full());
    ring_tasks.advance();
    return task;
  }

  template <class Tile, int kStages>
  __device__ void load(Ring<kStages>& ring, const unsigned char* to, const EncodedTensorMap& map,
                       const Sm90Task<Config>& task, int begin, int place) {
    ring.wait_empty();
    ptx::barrier_arrive_expect(ring.full(), Tile::kBytes);
    copy_keys<Tile>(ptx::shared_address(to) + ring.stage * Tile::kBytes, map, task, begin,
                    task.block_at(place) * Config::kBlockKeys, ring.full());
    ring.advance();
  }
  template <class Tile>
  __device__ static void copy_keys(unsigned to, const EncodedTensorMap& map,
                                   const Sm90Task<Config>& task, int begin, int key,
                                   unsigned barrier) {
    if constexpr (Config::kRagged) {
      const BoundedRows rows(begin, task.shape.seqlen_k, key);
      copy_bounded_tile<Tile>(to, &map, rows.row, task.head_k, rows.end, barrier, ptx::kEvictLast);
    } else {
      copy_tile<Tile>(to, &map, key, task.head_k, task.batch, barrier, ptx::kEvictLast);
    }
  }
  __device__ void load_k(const Sm90Task<Config>& task, int place) {
    load<typename Tiles::TileK>(ring_k, shared.k[0], args.k, task, task.first_key_row(), place);
  }
  __device__ void load_v(const Sm90Task<Config>& task, int place) {
    load<typename Tiles::TileV>(ring_v, shared.v[0], args.v, task, task.first_value_row(), place);
  }

  /// `before_last` is called before the last block of keys is asked for.
  template <class BeforeLast>
  __device__ void load_tile(const Sm90Task<Config>& task, BeforeLast before_last) {
    if (task.empty()) return before_last();
#pragma unroll 1
    for (int place = task.first_block; place < task.end_block; ++place) {
      if (place + 1 == task.end_block) before_last();
      load_k(task, place);
      if (place > task.first_block) load_v(task, place - 1);
    }
    load_v(task, task.end_block - 1);
  }
  __device__ void load_tile(const Sm90Task<Config>& task) {
    load_tile(task, [] {});
  }

  /// Tiles that this block works off whole.
  __device__ void run_tiles() {
    const TileOrder& order = args.order;
    int index = static_cast<int>(blockIdx.x);
#pragma unroll 1
    while (index < order.tiles) {
      // The next tile is asked for so late that blocks get tiles as they end theirs, and before the
      // last copies, which wait for places, so that the answer is there behind them.
      load_tile(publish({args, index}), [&] {
        index += static_cast<int>(gridDim.x);
        if (order.counter != nullptr) {
          index = static_cast<int>(gridDim.x) + atomicAdd(order.counter, 1);
        }
      });
    }
  }

  /// This block's range of the stream of keys, tile after tile.
  __device__ void run_stream() {
    const KeyStream& stream = args.stream;
    if (static_cast<int>(blockIdx.x) >= stream.ranges) return;
    int block = stream.begin_of_range(static_cast<int>(blockIdx.x));
    const int end = stream.begin_of_range(static_cast<int>(blockIdx.x) + 1);
    int tile = stream.tile_of(block);
#pragma unroll 1
    for (; block < end; ++tile) {
      const int tile_end = smaller(end, stream.begin_of_tile(tile + 1));
      load_tile(publish({args, tile, block, tile_end}));
      block = tile_end;
    }
  }

  /// Tasks that Sm90TileOrder has published.
  __device__ void run_tasks() {
#pragma unroll 1
    for (;;) {
      ring_tasks.wait_full();
      const Sm90Task<Config>& task = shared.tasks[ring_tasks.stage];
      if (!task.exists) break;
      load_tile(task, [&] { shared.ring_tasks.begun.arrive(); });
      ring_tasks.release_own();
      ring_tasks.advance();
    }
  }

  __device__ void run() {
    if constexpr (Config::kRagged) {
      run_tasks();
    } else {
      run_tiles();
      if constexpr (Config::kStream) run_stream();
      publish({});
    }
  }
};

/// Whether a thread of those that order tiles is the one that writes; the others of its warp look
/// at pages of a cache with it.
template <class Config>
__device__ inline bool writes_order() {
  return !Config::kCached || threadIdx.x % 32 == 0;
}
/// The number of the next tile that no block has taken, behind the blocks' first ones. There are as
/// many numbers as tiles: the last one begins anew, for the next call by the same list.
template <class Config>
__device__ inline int take_tile(const TileSchedule& schedule, Int64 tiles) {
  int number = writes_order<Config>() ? atomicAdd(schedule.header + 1, 1) : 0;
  if (writes_order<Config>() && number == tiles - 1) schedule.header[1] = 0;
  if constexpr (Config::kCached) number = __shfl_sync(ptx::kFullMask, number, 0);
  return number;
}

/// One thread of a ragged call, a warp of a cached one: which tiles the block works off, in the
/// order of the list.
template <class Config>
__device__ void order_tiles(const Sm90Call<Config>& call, Sm90ForwardStorage<Config>& shared) {
  const Sm90RaggedForwardArguments& args = ragged_of(call);
  const TileSchedule& schedule = args.schedule;
  const int heads = Sm90Rows<Config>::heads(args.forward.call.shape);
  Ring<kQueuedTasks> ring_tasks(shared.ring_tasks);
  ptx::wait_for_kernel_before();  // which makes the list
  const Int64 tiles = Int64{schedule.header[0]} * heads;
  unsigned begun = 0;
#pragma unroll 1
  for (Int64 index = blockIdx.x;;
       index = static_cast<int>(gridDim.x) + take_tile<Config>(schedule, tiles)) {
    // Beside the number of tiles, not behind it.
    const Int64 place = index / heads;
    const ScheduledTile entry =
        schedule.tiles[place < schedule.capacity ? place : schedule.capacity - 1];
    if (index >= tiles) break;
    const auto tile = OrderedTile::of<Config::kBoundedRight>(entry, index, heads);
    SequenceTile at;
    at.q = rows_of(args.sequences.q, tile.sequence, args.sequences.count);
    if constexpr (Config::kCached) {
      at.k = cached_keys(call.ragged.sequences, call.cache, tile.sequence);
    } else {
      at.k = rows_of(args.sequences.k, tile.sequence, args.sequences.count);
    }
    ring_tasks.wait_empty();
    auto& task = shared.tasks[ring_tasks.stage];
    if (writes_order<Config>()) task.describe(args, tile, at);
    if constexpr (Config::kCached) find_in_cache<Config>(call, task);
    if (writes_order<Config>()) ptx::barrier_arrive(ring_tasks.full());
    ring_tasks.advance();
    shared.ring_tasks.begun.wait(begun++);
  }
  ring_tasks.wait_empty();
  if (!writes_order<Config>()) return;
  shared.tasks[ring_tasks.stage].exists = false;
  ptx::barrier_arrive(ring_tasks.full());
}

/// Copies a warpgroup's rows of Q. Packed, the box is of 64 / group positions of a group's heads.
template <class Config>
__device__ inline void copy_queries(const Sm90ForwardArguments& args, const Sm90Task<Config>& task,
                                    int row, unsigned shared, unsigned barrier) {
  using TileQ = typename Sm90Tiles<Config>::TileQ;
  const int position = Sm90Rows<Config>::position(args.call.shape, row);
  const bool packed = Sm90Rows<Config>::members_log2(args.call.shape) > 0;
  if constexpr (Config::kRagged) {
    const BoundedRows rows(task.begin_q, task.shape.seqlen_q, position);
    copy_bounded_tile<TileQ>(shared, &args.q, packed ? task.head_q : rows.row,
                             packed ? rows.row : task.head_q, rows.end, barrier, ptx::kEvictFirst);
    return;
  }
  copy_tile<TileQ>(shared, &args.q, packed ? task.head_q : position,
                   packed ? position : task.head_q, task.batch, barrier, ptx::kEvictFirst);
}

/// One thread: the tile of Q of every consumer, as soon as that one is done with the tile before.
template <class Config>
__device__ void produce_queries(const Sm90ForwardArguments& args,
                                Sm90ForwardStorage<Config>& shared) {
  using Tiles = Sm90Tiles<Config>;
  Ring<Config::kStagesQ> rings[Tiles::kConsumers];
#pragma unroll
  for (int consumer = 0; consumer < Tiles::kConsumers; ++consumer) {
    rings[consumer].attach(shared.ring_q[consumer]);
  }
  Ring<kQueuedTasks> ring_tasks(shared.ring_tasks);
#pragma unroll 1
  for (;;) {
    ring_tasks.wait_full();
    const Sm90Task<Config> task = shared.tasks[ring_tasks.stage];
    ptx::barrier_arrive(ring_tasks.empty());
    ring_tasks.advance();
    if (!task.exists) break;
#pragma unroll
    for (int consumer = 0; consumer < Tiles::kConsumers; ++consumer) {
      if (!task.needs_queries(shape_of(args.call, task), consumer)) continue;
      auto& ring = rings[consumer];
      ring.wait_empty();
      ptx::barrier_arrive_expect(ring.full(), Tiles::TileQ::kBytes);
      copy_queries<Config>(args, task, task.first_row + consumer * kWarpgroupRows,
                           ptx::shared_address(shared.q[consumer][ring.stage]), ring.full());
      ring.advance();
    }
  }
}

}  // namespace flashlab::device
