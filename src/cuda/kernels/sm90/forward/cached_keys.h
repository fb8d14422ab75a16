#pragma once

// Of the Hopper forward kernel (kernel.cu): keys and values in a cache, whose rows are its entries
// or pages, one behind the other. A page lies anywhere, so a step's keys come in parts, each of one
// page: boxes that stand one below the other in shared memory. They begin at multiples of 8 rows,
// after which the swizzle repeats, so that together they are the step's one tile.

#include "sm90/forward/block.h"
#include "tile/slab_copy.h"

namespace flashlab::device {

/// What K or V of a cached call differ in.
template <class Config, bool kValues>
struct Sm90CachedSide {
  using Tile = typename Sm90Tiles<Config>::TileK;
  static constexpr int kStages = Config::kStagesK;
};
template <class Config>
struct Sm90CachedSide<Config, true> {
  using Tile = typename Sm90Tiles<Config>::TileV;
  static constexpr int kStages = Config::kStagesV;
};

/// A warp: blocks of K or of V in the order in which they are read. Its lanes ask the table where
/// the next 32 parts lie while the first lane copies those of the 32 before.
template <class Config, bool kValues>
struct Sm90CachedProducer {
  using Side = Sm90CachedSide<Config, kValues>;
  using Task = Sm90Task<Config>;
  const Sm90CachedForwardArguments& args;
  Sm90ForwardStorage<Config>& shared;
  Ring<kQueuedTasks> ring_tasks{shared.ring_tasks};
  Ring<Side::kStages> ring;

  __device__ Sm90CachedProducer(const Sm90CachedForwardArguments& args_,
                                Sm90ForwardStorage<Config>& shared_)
      : args(args_), shared(shared_) {
    if constexpr (kValues) {
      ring.attach(shared.ring_v);
    } else {
      ring.attach(shared.ring_k);
    }
  }

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  /// The first key of a task's part, counted in the order of reading; the number of keys where the
  /// task has no such part.
  __device__ int first_key(const Task& task, int part) const {
    const int place = task.first_block + (part >> args.parts_log2);
    if (place >= task.end_block) return task.shape.seqlen_k;
    const int in_block = (part & ((1 << args.parts_log2) - 1)) << args.part_log2;
    return smaller(task.block_at(place) * Config::kBlockKeys + in_block, task.shape.seqlen_k);
  }
  /// Asks for the page of this lane's part, of 32 from `part` on.
  __device__ int page_of(const Task& task, int part) const {
    const int* table = args.cache.table;
    const int key = first_key(task, part + lane());
    if (table == nullptr || key == task.shape.seqlen_k) return 0;
    return table[task.batch * args.cache.table_stride + key / args.cache.page_size];
  }
  /// The row where this lane's part begins.
  __device__ int row_of(const Task& task, int part, int page) const {
    const int key = first_key(task, part + lane());
    const int begin = kValues ? task.begin_v : task.begin_k;
    const int between = kValues ? args.ragged.between_v : args.ragged.between_k;
    if (args.cache.table == nullptr) return begin + key;
    return page * between + key % args.cache.page_size;
  }

  /// Copies a block, of which so many keys exist. `rows`: of each lane's part, from `part` on they
  /// are the block's.
  __device__ void load(int rows, int part, int head, int keys) {
    ring.wait_empty();
    if (lane() == 0) ptx::barrier_arrive_expect(ring.full(), Side::Tile::kBytes);
    if (args.parts_log2 == 0) {
      copy_parts<1>(rows, part, head, keys);
    } else {
      copy_parts<4>(rows, part, head, keys);
    }
    ring.advance();
  }
  /// kTogether: parts that are taken from their lanes at once; one exchange would wait for the
  /// other.
  template <int kTogether>
  __device__ void copy_parts(int rows, int part, int head, int keys) const {
    using Tile = typename Side::Tile;
    unsigned to =
        ptx::shared_address(kValues ? shared.v[0] : shared.k[0]) + ring.stage * Tile::kBytes;
    const unsigned end = to + Config::kBlockKeys * kSlabRowBytes;
    const EncodedTensorMap& map = kValues ? args.ragged.forward.v : args.ragged.forward.k;
#pragma unroll 1
    while (to < end) {
      int row[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        row[i] = __shfl_sync(ptx::kFullMask, rows, part++ % 32);
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const BoundedRows box(row[i], clamp_key(keys, 1 << args.part_log2), 0);
        if (lane() == 0 && to < end) {
          copy_bounded_tile<Tile>(to, &map, box.row, head, box.end, ring.full(), ptx::kEvictLast);
        }
        keys -= 1 << args.part_log2;
        to += kSlabRowBytes << args.part_log2;
      }
    }
  }

  __device__ void load_tile(const Task& task) {
    const int head = task.head_k;
    int next = page_of(task, 0), rows = 0, part = 0;
#pragma unroll 1
    for (int place = task.first_block; place < task.end_block; ++place) {
      if (part % 32 == 0) {
        rows = row_of(task, part, next);
        next = page_of(task, part + 32);
      }
      load(rows, part, head, task.shape.seqlen_k - task.block_at(place) * Config::kBlockKeys);
      part += 1 << args.parts_log2;
    }
  }

  __device__ void run() {
#pragma unroll 1
    for (;;) {
      ring_tasks.wait_full();
      const Task& task = shared.tasks[ring_tasks.stage];
      if (!task.exists) break;
      if (!kValues && lane() == 0) shared.ring_tasks.begun.arrive();
      if (!task.empty()) load_tile(task);
      ring_tasks.release();
      ring_tasks.advance();
    }
  }
};

/// Whether a page lies outside of the cache that is copied for some tile of a task's sequence: of
/// the blocks of keys that its queries see something of. A whole warp calls it, and reads the last
/// one again where there are no more.
template <class Config>
__device__ inline bool has_wrong_page(const KeyCache& cache, const Sm90Task<Config>& task) {
  const KeyRange seen = keys_seen_by_any<Config>(task.shape, 0, task.shape.seqlen_q - 1);
  if (seen.begin >= seen.end) return false;
  const int* table = cache.table + task.batch * cache.table_stride;
  constexpr int kKeys = Config::kBlockKeys;
  const int begin = seen.begin / kKeys * kKeys;
  const int end = smaller(divide_up(seen.end, kKeys) * kKeys, task.shape.seqlen_k);
  const int last = (end - 1) / cache.page_size;
  unsigned largest = 0;
#pragma unroll 1
  for (int n = begin / cache.page_size + static_cast<int>(threadIdx.x) % 32; n <= last; n += 256) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const auto page = static_cast<unsigned>(table[smaller(n + 32 * i, last)]);
      largest = page > largest ? page : largest;
    }
  }
  return __any_sync(ptx::kFullMask, largest >= static_cast<unsigned>(cache.pages));
}

/// By a warp, whose first lane has described a task: where its keys lie. With a wrong page it
/// becomes one of a sequence that uses no rows, and these get NaN.
template <class Config>
__device__ inline void find_in_cache(const Sm90CachedForwardArguments& args,
                                     Sm90Task<Config>& task) {
  const bool writes = threadIdx.x % 32 == 0;
  __syncwarp();
  if (args.cache.table == nullptr) {
    if (!writes || task.empty()) return;
    const CachedRows keys = cached_rows(args.ragged.sequences.k, args.cache, task.batch);
    task.begin_k = static_cast<int>(keys.padding + keys.entry * args.ragged.between_k);
    task.begin_v = static_cast<int>(keys.padding + keys.entry * args.ragged.between_v);
  } else if (task.shape.seqlen_k > 0 && has_wrong_page<Config>(args.cache, task) && writes) {
    task.shape.seqlen_q = task.shape.seqlen_k = task.first_block = task.end_block = 0;
    task.unused_o = task.unused_lse = kNaN;
  }
}

}  // namespace flashlab::device
