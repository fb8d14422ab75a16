#pragma once

// Of the Hopper forward kernel (kernel.cu): sizes, shared memory, and which tile comes when.

#include "ptx/barrier.h"
#include "sm90_forward_arguments.h"
#include "tile/key_range.h"
#include "tile/mutation.h"
#include "tile/ring.h"
#include "tile/slab.h"

namespace flashlab::device {

inline constexpr int kWarpgroupThreads = 128, kWarpgroupRows = 64;
inline constexpr int kQueuedTasks = 4;  ///< tiles known ahead, the current one included

/// Sizes that follow from a Config.
template <class Config>
struct Sm90Tiles {
  static constexpr int kConsumers = Config::kConsumers;  ///< warpgroups with 64 queries each
  static constexpr int kTileQ = kConsumers * kWarpgroupRows;
  static constexpr int kThreads = (kConsumers + 1) * kWarpgroupThreads;
  static constexpr int kBlockKeys = Config::kBlockKeys;  ///< keys of a step
  static constexpr int kDimSteps = divide_up(Config::kHeadDim, 16);
  static constexpr int kKeySteps = kBlockKeys / 16;
  using TileQ = SlabTile<kWarpgroupRows, Config::kHeadDim>;
  using TileK = SlabTile<kBlockKeys, Config::kHeadDim>;
  using TileV = SlabTile<kBlockKeys, Config::kHeadDimV>;
  static constexpr int kScores = kBlockKeys / 2;  ///< a thread's share of S
  /// A thread's share of O: whole slabs of 64 features, and the last one in steps of 16.
  static constexpr int kFullSlabs = Config::kHeadDimV / kSlabColumns;
  static constexpr int kLastColumns = round_up(Config::kHeadDimV % kSlabColumns, 16);
  static constexpr int kOutputs = kFullSlabs * 32 + kLastColumns / 2;
  /// Registers per thread: what the block is launched with, divided anew (ptx::take_registers).
  static constexpr int kConsumerRegisters = kConsumers == 3 ? 160 : 232;
  static constexpr int kProducerRegisters = kConsumers == 3 ? 32 : 40;
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static_assert(kConsumers * kConsumerRegisters + kProducerRegisters <=
                (kConsumers + 1) * kLaunchRegisters);
};

/// A tile of queries of one head, and the blocks of keys that some row of it sees.
template <class Config>
struct Sm90Task {
  bool exists;  ///< there is one: the last of a block's tasks does not
  int batch, head_q, head_k;
  int first_row;
  int first_block, end_block;

  /// Sections of heads share L2; inside one, the tiles with most keys of all heads come first.
  __device__ Sm90Task(const Sm90ForwardArguments& args, int index) {
    const Shape& shape = args.call.shape;
    const TileOrder& order = args.order;
    exists = index < order.tiles;
    if (!exists) return;
    const int section_tiles = order.section_heads * order.tiles_q;
    const int section = index / section_tiles, rest = index - section * section_tiles;
    const int first_head = section * order.section_heads;
    const int heads = smaller(order.section_heads, order.heads - first_head);
    const int rank = rest / heads, head = first_head + rest - rank * heads;
    const int tile = Config::kBoundedRight ? order.tiles_q - 1 - rank : rank;
    batch = head / shape.heads_q;
    head_q = head - batch * shape.heads_q;
    head_k = head_q / shape.group;
    first_row = tile * Sm90Tiles<Config>::kTileQ;
    const KeyRange seen = keys_seen_by_any<Config>(
        shape, first_row, smaller(first_row + Sm90Tiles<Config>::kTileQ, shape.seqlen_q) - 1);
    first_block = seen.begin / Config::kBlockKeys;
    end_block = mutation::last_tile<Config>(divide_up(seen.end, Config::kBlockKeys));
  }

  __device__ bool empty() const { return end_block <= first_block; }
  /// Whether a warpgroup has rows of the tile and the tile has keys: then it gets a tile of Q.
  __device__ bool needs_queries(const Shape& shape, int warpgroup) const {
    return !empty() && first_row + warpgroup * kWarpgroupRows < shape.seqlen_q;
  }
};

template <class Config>
struct alignas(kSlabAlignment) Sm90ForwardStorage {
  using Tiles = Sm90Tiles<Config>;
  unsigned char q[Tiles::kConsumers][Config::kStagesQ][Tiles::TileQ::kBytes];
  unsigned char k[Config::kStagesK][Tiles::TileK::kBytes];
  unsigned char v[Config::kStagesV][Tiles::TileV::kBytes];
  Sm90Task<Config> tasks[kQueuedTasks];
  RingBarriers<kQueuedTasks> ring_tasks;
  RingBarriers<Config::kStagesQ> ring_q[Tiles::kConsumers];
  RingBarriers<Config::kStagesK> ring_k;
  RingBarriers<Config::kStagesV> ring_v;

  /// By one thread, before the block's first barrier.
  __device__ void init_barriers() {
#pragma unroll
    for (auto& ring : ring_q) ring.init(1, kWarpgroupThreads / 32);
    constexpr int kConsumerWarps = Tiles::kConsumers * kWarpgroupThreads / 32;
    ring_tasks.init(1, kConsumerWarps + 1);
    ring_k.init(1, kConsumerWarps);
    ring_v.init(1, kConsumerWarps);
    ptx::barrier_init_fence();
  }
};

}  // namespace flashlab::device
