#pragma once

// Of the Hopper forward kernel (kernel.cu): sizes, shared memory, and which tile comes when.

#include "ptx/barrier.h"
#include "sm90/forward/launch_arguments.h"
#include "sm90/forward/tiles.h"
#include "tile/bounded.h"
#include "tile/key_range.h"
#include "tile/mutation.h"
#include "tile/pipeline.h"
#include "tile/schedule.h"
#include "tile/sequence.h"
#include "tile/slab.h"
#include "tile/warpgroup.h"

namespace flashlab::device {

/// The warps of the warpgroup that does not multiply, by what their first threads do.
/// kCopiesValues: in caches.
enum ProducerWarp { kCopiesKeys, kCopiesQueries, kOrdersTiles, kCopiesValues };
/// Barriers that hardware knows by number, 0 is the block's: one for each consumer's turns.
enum NamedBarrier { kFirstTurn = 1 };

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
  /// ALiBi makes causal scores grow with the key, and a row's reference is the maximum of its first
  /// block: blocks come from the last to the first then, or every one would raise it.
  static constexpr bool kLastKeysFirst = Config::kAlibi && Config::kBoundedRight;
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
  /// One consumer is launched with all that a thread can have.
  static constexpr bool kDividesRegisters = kConsumers > 1;
};

/// What a tile's rows are: positions of one query head or, packed, of all heads that share a key
/// head: row = position * group + member. A group divides 64, so that a warpgroup's rows are whole
/// positions, one box for the copy engine; so it is a power of two. A kernel that may pack finds
/// out how many heads when it runs, at the price of shifts.
template <class Config>
struct Sm90Rows {
  static __device__ int members_log2(const Shape& shape) {
    return Config::kPackGroup ? shape.packed_log2 : 0;
  }
  static __device__ int heads(const Shape& shape) { return shape.heads_q >> members_log2(shape); }
  static __device__ int count(const Shape& shape) { return shape.seqlen_q << members_log2(shape); }
  static __device__ int position(const Shape& shape, int row) { return row >> members_log2(shape); }
  /// Whether rows from this one on exist. A head's first tile may begin in front of them.
  static __device__ bool exist(const Shape& shape, int row) {
    return static_cast<unsigned>(row) < static_cast<unsigned>(count(shape));
  }
  /// `first`: the query head of the first member.
  static __device__ int head(const Shape& shape, int first, int row) {
    return first + (row & ((1 << members_log2(shape)) - 1));
  }
  /// Keys that some row, and that every row of [first, last] sees.
  static __device__ KeyRange seen_by_any(const Shape& shape, int first, int last) {
    return keys_seen_by_any<Config>(shape, position(shape, first), position(shape, last));
  }
  static __device__ KeyRange seen_by_all(const Shape& shape, int first, int last) {
    return keys_seen_by_all<Config>(shape, position(shape, first), position(shape, last));
  }
};

/// Which rows a tile has: its place in the order of tiles as head and first row.
template <class Config>
struct Sm90Tile {
  int head;  ///< batch * Sm90Rows::heads() + head or group
  int first_row;

  __device__ Sm90Tile(const TileOrder& order, int index) {
    const TileOrder::Place place = order.place(index);
    head = place.head;
    first_row =
        Config::kBoundedRight
            ? (order.tiles_q - 1 - place.rank) * Sm90Tiles<Config>::kTileQ - order.rows_before
            : place.rank * Sm90Tiles<Config>::kTileQ;
  }
};

/// What a task of a ragged call has of its sequence; nothing else says where a tensor's rows are.
template <bool kRagged>
struct Sm90Sequence {
  __device__ int first_row_of_results() const { return 0; }
  __device__ int first_key_row() const { return 0; }
  __device__ int first_value_row() const { return 0; }
};
template <>
struct Sm90Sequence<true> {
  Shape shape;                    ///< of the sequence's dense call
  int begin_q, begin_k, begin_v;  ///< rows of the tensors, over all entries of a batch
  int results;                    ///< where its rows of O and LSE begin
  int room;                       ///< rows of O and LSE up to the next sequence's
  float unused_o, unused_lse;     ///< what those get that it does not use

  __device__ int first_row_of_results() const { return results; }
  __device__ int first_key_row() const { return begin_k; }
  __device__ int first_value_row() const { return begin_v; }
};

/// A tile of queries of one head, and the blocks of keys that some row of it sees, or a part of
/// them.
template <class Config>
struct Sm90Task : Sm90Sequence<Config::kRagged> {
  bool exists = false;        ///< there is one: the last of a block's tasks does not
  int batch, head_q, head_k;  ///< head_q: of the first member
  int first_row;
  int first_block, end_block;
  int slot;  ///< of KeyStream, for the results of a part; -1: they are the tile's

  Sm90Task() = default;
  __device__ Sm90Task(const Sm90ForwardArguments& args, int index) : exists(true), slot(-1) {
    const Shape& shape = args.call.shape;
    const Sm90Tile<Config> tile(args.order, index);
    const int heads = Sm90Rows<Config>::heads(shape);
    batch = tile.head / heads;
    head_q = (tile.head - batch * heads) << Sm90Rows<Config>::members_log2(shape);
    head_k = head_q / shape.group;
    first_row = tile.first_row;
    find_keys(shape);
  }
  /// Becomes a tile of a sequence whose rows are known. In its place: a producer's registers hold
  /// no task.
  __device__ void describe(const Sm90RaggedForwardArguments& args, const OrderedTile& tile,
                           SequenceTile at) {
    constexpr int kTileQ = Sm90Tiles<Config>::kTileQ;
    const Sequences& list = args.sequences;
    const bool wrong = at.q.too_long || at.k.too_long;
    if (wrong) at.q.length = at.k.length = 0;
    exists = true;
    batch = tile.sequence;
    slot = -1;
    Shape& shape = this->shape;
    shape = args.forward.call.shape;
    shape_of_sequence(shape, list, at);
    this->begin_q = at.q.first + batch * args.between_q;
    this->begin_k = at.k.first + batch * args.between_k;
    this->begin_v = at.k.first + batch * args.between_v;
    this->results = at.q.first;
    this->room = at.q.room;
    this->unused_o = wrong ? kNaN : 0.0f;
    this->unused_lse = wrong ? kNaN : kMinusInfinity;

    using Rows = Sm90Rows<Config>;
    head_q = tile.head << Rows::members_log2(shape);
    head_k = head_q / shape.group;
    const int rows = Rows::count(shape);
    first_row = tile.tile * kTileQ;
    if (Config::kBoundedRight && !Config::kBoundedLeft && at.q.length == at.q.room) {
      first_row -= (divide_up(rows, kTileQ) * kTileQ - rows) / kWarpgroupRows * kWarpgroupRows;
    }
    find_keys(shape);
  }
  /// Blocks [begin, end) of the stream, which are of `tile`.
  __device__ Sm90Task(const Sm90ForwardArguments& args, int tile, int begin, int end)
      : Sm90Task(args, args.stream.first_tile + tile) {
    const KeyStream& stream = args.stream;
    const int before = stream.begin_of_tile(tile);
    if (begin > before || end < stream.begin_of_tile(tile + 1)) {
      slot = stream.slot(static_cast<int>(blockIdx.x), tile);
    }
    end_block = smaller(end_block, first_block + end - before);
    first_block += begin - before;
  }

  __device__ bool empty() const { return end_block <= first_block; }
  /// The block that comes at a place of [first_block, end_block), and the place of a block.
  __device__ int block_at(int place) const { return block_at(place, mirror()); }
  __device__ int mirror() const { return first_block + end_block - 1; }
  static __device__ int block_at(int place, int mirror) {
    return Sm90Tiles<Config>::kLastKeysFirst ? mirror - place : place;
  }
  /// Whether a warpgroup has rows of the tile and the tile has keys: then it gets a tile of Q.
  __device__ bool needs_queries(const Shape& shape, int warpgroup) const {
    return !empty() && Sm90Rows<Config>::exist(shape, first_row + warpgroup * kWarpgroupRows);
  }

 private:
  __device__ void find_keys(const Shape& shape) {
    const KeyRange seen = Sm90Rows<Config>::seen_by_any(
        shape, first_row,
        smaller(first_row + Sm90Tiles<Config>::kTileQ, Sm90Rows<Config>::count(shape)) - 1);
    first_block = seen.begin / Config::kBlockKeys;
    end_block = mutation::last_tile<Config>(divide_up(seen.end, Config::kBlockKeys));
  }
};

/// Lengths and bounds: the call's, or of a ragged call those of the task's sequence.
template <class Config>
__device__ inline const Shape& shape_of(const ForwardArguments& call,
                                        const Sm90Task<Config>& task) {
  if constexpr (Config::kRagged) {
    return task.shape;
  } else {
    return call.shape;
  }
}

/// What dense and ragged calls are launched with alike.
__device__ inline const Sm90ForwardArguments& forward_of(const Sm90ForwardArguments& args) {
  return args;
}
__device__ inline const Sm90ForwardArguments& forward_of(const Sm90RaggedForwardArguments& args) {
  return args.forward;
}
__device__ inline const Sm90ForwardArguments& forward_of(const Sm90CachedForwardArguments& args) {
  return args.ragged.forward;
}
__device__ inline const Sm90RaggedForwardArguments& ragged_of(
    const Sm90RaggedForwardArguments& args) {
  return args;
}
__device__ inline const Sm90RaggedForwardArguments& ragged_of(
    const Sm90CachedForwardArguments& args) {
  return args.ragged;
}
/// A cached call is a ragged one, too.
template <class Config>
using Sm90Call =
    ArgumentsOf<Config::kCached,
                ArgumentsOf<Config::kRagged, Sm90ForwardArguments, Sm90RaggedForwardArguments>,
                Sm90CachedForwardArguments>;

/// Barriers of the tasks, which `consumers` warps and the producers of Q read.
template <bool kRagged>
struct Sm90TaskBarriers : RingBarriers<kQueuedTasks> {
  __device__ void init(int consumers) { RingBarriers<kQueuedTasks>::init(1, consumers + 1); }
};
/// A ragged call's tasks come from a warp of their own. It takes a tile no sooner than the last
/// keys of the one before are being copied, as dense calls do: a block that has taken more keeps
/// them from others.
template <>
struct Sm90TaskBarriers<true> : RingBarriers<kQueuedTasks> {
  /// The producer of K and V has come to another task's last keys, or in a cache to its first.
  PhaseBarrier begun;

  __device__ void init(int consumers) {
    RingBarriers<kQueuedTasks>::init(1, consumers + 2);
    begun.init(1);
  }
};

template <class Config>
struct alignas(kSlabAlignment) Sm90ForwardStorage {
  using Tiles = Sm90Tiles<Config>;
  unsigned char q[Tiles::kConsumers][Config::kStagesQ][Tiles::TileQ::kBytes];
  unsigned char k[Config::kStagesK][Tiles::TileK::kBytes];
  unsigned char v[Config::kStagesV][Tiles::TileV::kBytes];
  Sm90Task<Config> tasks[kQueuedTasks];
  Sm90TaskBarriers<Config::kRagged> ring_tasks;
  RingBarriers<Config::kStagesQ> ring_q[Tiles::kConsumers];
  RingBarriers<Config::kStagesK> ring_k;
  RingBarriers<Config::kStagesV> ring_v;

  /// By one thread, before the block's first barrier.
  __device__ void init_barriers() {
#pragma unroll
    for (auto& ring : ring_q) ring.init(1, kWarpgroupThreads / 32);
    constexpr int kConsumerWarps = Tiles::kConsumers * kWarpgroupThreads / 32;
    ring_tasks.init(kConsumerWarps + (Config::kCached ? 1 : 0));
    ring_k.init(1, kConsumerWarps);
    ring_v.init(1, kConsumerWarps);
    ptx::barrier_init_fence();
  }
};

}  // namespace flashlab::device
