// Attention forward for fp16 and bf16 on Hopper (sm_90a): TMA, wgmma, warp specialisation.
//
//     O = softmax(scale Q K^T + mask) V        LSE = log(sum exp(scores))
//
// A block stays for the whole call and takes tiles of queries, 64 rows for each of its consumer
// warpgroups. A producer warpgroup copies blocks of 64 keys into two rings; consumers go through
// them at their own pace, each with its own Q, its own range of keys and its own results, and
// nobody waits at the end of a tile:
//
//     producer      K0  K1 V0  K2 V1  K3 V2 ...            next tile's K0 ...
//     consumer 0    S0 | S1 O0 | S2 O1 | ...                 S = Q K^T,  O += P V (wgmma)
//                   P0 | P1    | P2    | ...                 P = 2^(S - r)
//     consumer 1      S0 | S1 O0 | ...
//
// The tensor cores compute O += P(j - 1) V(j - 1) and the other warpgroups' products beside the
// exponentials of block j. The softmax has no running maximum (tile/softmax.h); a row whose sum
// leaves its range makes its warp compute the block's scores again and raise the reference.

#include "ptx/dependency.h"
#include "ptx/warpgroup.h"
#include "sm90/forward/producer.h"
#include "sm90/forward/block.h"
#include "sm90/forward/warpgroup.h"

namespace flashlab::device {

/// A consumer's keys of one tile: places [begin, end) of the task. Blocks outside
/// [clear_begin, clear_end) need a mask. With ALiBi, no key of those before behind_end is ahead of
/// the one that is aligned with its row, and no key of those from ahead_begin on behind.
template <class Config>
struct Sm90Range {
  const Sm90Task<Config>& task;
  int begin, end, clear_begin, clear_end, behind_end, ahead_begin;
  int mirror;  ///< Sm90Task::mirror(), which the loop does not read again

  __device__ Sm90Range(const Shape& shape, const Sm90Task<Config>& task_, int first_row)
      : task(task_) {
    using Rows = Sm90Rows<Config>;
    const int last = smaller(first_row + kWarpgroupRows, Rows::count(shape)) - 1;
    const KeyRange any = Rows::seen_by_any(shape, first_row, last);
    const KeyRange all = Rows::seen_by_all(shape, first_row, last);
    constexpr int kBlockKeys = Config::kBlockKeys;
    begin = larger(any.begin / kBlockKeys, task.first_block);
    end = smaller(divide_up(any.end, kBlockKeys), task.end_block);
    if (!Rows::exist(shape, first_row) || end < begin) end = begin = task.first_block;
    if (Config::kTurns && begin < end) begin = task.first_block, end = task.end_block;
    clear_begin = divide_up(all.begin, kBlockKeys);
    clear_end = all.end / kBlockKeys;
    behind_end = clear_end;
    if constexpr (Config::kAlibi) {
      static_assert(kWarpgroupRows <= kBlockKeys);
      const int aligned = Rows::position(shape, first_row) + shape.seqlen_k - shape.seqlen_q;
      const int crossed = (aligned + 1) / kBlockKeys;
      behind_end = smaller(clear_end, crossed);
      ahead_begin = crossed + 2;
    }
    mirror = task.mirror();
    if constexpr (Sm90Tiles<Config>::kLastKeysFirst) {
      const int last = block_at(begin);
      if (begin < end) begin = block_at(end - 1), end = last + 1;
    }
  }
  __device__ int block_at(int place) const { return Sm90Task<Config>::block_at(place, mirror); }
  __device__ int first_key(int place) const { return block_at(place) * Config::kBlockKeys; }
  /// Whether a block needs a mask or, with ALiBi, has keys ahead.
  __device__ bool masked(int place) const { return has_edge(block_at(place), behind_end); }
  /// Whether no key of a block without an edge is behind.
  __device__ bool ahead(int place) const {
    if constexpr (!Config::kAlibi) return false;
    return block_at(place) >= ahead_begin && !has_edge(block_at(place), clear_end);
  }
  __device__ bool has_edge(int block, int end_block) const {
    return (Config::kBoundedLeft && block < clear_begin) || block >= end_block;
  }
};

/// One consumer warpgroup's walk over its tiles.
template <class Config>
struct Sm90Consumer {
  using Tiles = Sm90Tiles<Config>;
  using Warpgroup = Sm90Warpgroup<Config>;
  using Scores = typename Warpgroup::Scores;
  using Elements = typename Warpgroup::Elements;
  static constexpr int kBlockKeys = Config::kBlockKeys;
  const Sm90ForwardArguments& args;
  int consumer;
  Ring<Config::kStagesQ> ring_q;
  Ring<Config::kStagesK> ring_k;  ///< the next block of keys that is not released
  Ring<Config::kStagesV> ring_v;  ///< the next block of values that is not released
  unsigned shared_q, shared_k, shared_v;
  Warpgroup warpgroup;

  __device__ Sm90Consumer(const Sm90ForwardArguments& args_, Sm90ForwardStorage<Config>& shared,
                          int consumer_)
      : args(args_),
        consumer(consumer_),
        ring_q(shared.ring_q[consumer]),
        ring_k(shared.ring_k),
        ring_v(shared.ring_v),
        shared_k(ptx::shared_address(shared.k)),
        shared_v(ptx::shared_address(shared.v)) {
    shared_q = ptx::shared_address(shared.q[consumer]);
  }

  /// With kTurns the warpgroups start their products in turn, so that one's exponentials run beside
  /// the others' products. Everyone takes the same number of turns.
  __device__ void await_turn() const {
    if constexpr (Config::kTurns) ptx::meet(kFirstTurn + consumer, 2 * kWarpgroupThreads);
  }
  __device__ void pass_turn() const {
    if constexpr (Config::kTurns) {
      ptx::meet_later(kFirstTurn + (consumer + 1) % Tiles::kConsumers, 2 * kWarpgroupThreads);
    }
  }

  /// Blocks that only other consumers need. A block counts as released only once it has landed.
  __device__ void skip(int blocks) {
#pragma unroll 1
    for (int i = 0; i < blocks; ++i) {
      if (i > 0) {
        await_turn();
        pass_turn();
      }
      ring_k.wait_full();
      ring_k.release();
      ring_k.advance();
      ring_v.wait_full();
      ring_v.release();
      ring_v.advance();
    }
  }

  __device__ unsigned keys_at(int stage) const {
    return shared_k + stage * Tiles::TileK::kBytes;
  }

  __device__ void start_scores(Scores& rS) {
    ring_k.wait_full();
    warpgroup.start_scores(rS, keys_at(ring_k.stage));
  }
  __device__ void start_outputs() {
    ring_v.wait_full();
    warpgroup.start_outputs(shared_v + ring_v.stage * Tiles::TileV::kBytes);
  }
  __device__ void finish_outputs() {
    warpgroup.pin_outputs();
    ring_v.release();
    ring_v.advance();
  }

  /// The mask tensor's elements of the block at a place, if there is one.
  __device__ void read_mask(Elements& elements, const Sm90Range<Config>& range, int place) const {
    if constexpr (!Warpgroup::kMasked) {
    } else if (place >= range.end) {
    } else if (range.masked(place)) {
      warpgroup.template read_mask<false>(elements, args.call, range.task, range.first_key(place));
    } else {
      warpgroup.template read_mask<true>(elements, args.call, range.task, range.first_key(place));
    }
  }
  /// Products become scores.
  __device__ void transform(Scores& rS, Elements& elements, const Sm90Range<Config>& range,
                            int place) {
    Warpgroup::arrange_mask(elements);
    if (Warpgroup::kTransformed && !range.masked(place)) {
      warpgroup.template transform_clear<false>(rS, args.call, range.task, elements,
                                                range.first_key(place));
    } else if (range.ahead(place)) {
      warpgroup.template transform_clear<true>(rS, args.call, range.task, elements,
                                               range.first_key(place));
    } else if (range.masked(place)) {
      warpgroup.template transform<false>(rS, args.call, range.task, elements,
                                          range.first_key(place));
    }
    if constexpr (Warpgroup::kEarlyMask) read_mask(elements, range, place + 1);
  }

  /// The first block of a tile: its maxima become the references.
  __device__ void first_softmax(Scores& rS, Elements& elements, const Sm90Range<Config>& range) {
    transform(rS, elements, range, range.begin);
    warpgroup.template raise_references<false>(rS, args.call);
    warpgroup.exponentials(rS, args.call);
    finish_softmax<true>(rS, range.first_key(range.begin));
  }

  /// Exponentials of a block while products are under way, then the end of these. The branch stands
  /// before the wait, or the compiler moves exponentials behind it.
  __device__ void exponentials(Scores& rS, Elements& elements, const Sm90Range<Config>& range,
                               int place) {
    transform(rS, elements, range, place);
    warpgroup.exponentials(rS, args.call);
    if (warpgroup.statistics.out_of_range()) {
      ptx::wgmma_wait<0>();
      warpgroup.pin_outputs();
      warpgroup.exponentials_again(rS, args.call, range.task, keys_at(ring_k.stage),
                                   range.first_key(place));
    } else {
      ptx::wgmma_wait<0>();
    }
  }
  /// kFirst: of a tile's first block.
  template <bool kFirst>
  __device__ void finish_softmax(Scores& rS, int first_key) {
    warpgroup.template accept<kFirst>(rS, args.call, first_key);
    ring_k.release();
    ring_k.advance();
  }

  /// S(j) and O += P(j - 1) V(j - 1) together, exponentials of block j beside the second.
  __device__ void walk(const Sm90Range<Config>& range) {
    Scores rS;
    Elements elements;
    read_mask(elements, range, range.begin);
    start_scores(rS);
    ptx::wgmma_wait<0>();
    pin(rS);
    first_softmax(rS, elements, range);
#pragma unroll 1
    for (int place = range.begin + 1; place < range.end; ++place) {
      await_turn();
      start_scores(rS);
      start_outputs();
      pass_turn();
      if constexpr (!Warpgroup::kEarlyMask) read_mask(elements, range, place);
      ptx::wgmma_wait<1>();
      pin(rS);
      exponentials(rS, elements, range, place);
      finish_outputs();
      finish_softmax<false>(rS, range.first_key(place));
    }
  }

  /// The blocks of keys of one tile. Returns how many of them only other consumers still need.
  __device__ int walk_tile(const Sm90Task<Config>& task) {
    warpgroup.first_row = task.first_row + consumer * kWarpgroupRows;
    const Shape& shape = shape_of(args.call, task);
    const Sm90Range<Config> range(shape, task, warpgroup.first_row);
    const bool queries = task.needs_queries(shape, consumer);
    warpgroup.begin(args.call, task);
    skip(range.begin - task.first_block);
    if (queries) ring_q.wait_full();
    warpgroup.shared_q = shared_q + ring_q.stage * Tiles::TileQ::kBytes;
    if (range.begin < range.end) walk(range);
    if (queries) {
      ring_q.release();
      ring_q.advance();
    }
    if (range.begin < range.end) {
      start_outputs();
      ptx::wgmma_wait<0>();
      finish_outputs();
    }
    return task.empty() ? 0 : task.end_block - range.end;
  }

  /// Every tile that the producer has published for this block.
  __device__ void run(const Sm90ForwardStorage<Config>& shared) {
    Ring<kQueuedTasks> ring_tasks(shared.ring_tasks);
#pragma unroll 1
    for (;;) {
      ring_tasks.wait_full();
      const Sm90Task<Config>& task = shared.tasks[ring_tasks.stage];
      if (!task.exists) break;
      const int skipped = walk_tile(task);
      if (Sm90Rows<Config>::exist(shape_of(args.call, task), warpgroup.first_row)) {
        warpgroup.store(args, task);
      }
      if constexpr (Config::kRagged) warpgroup.store_unused(args.call, task);
      ring_tasks.release();
      ring_tasks.advance();
      skip(skipped);
    }
  }
};

template <class Config>
__device__ void sm90_forward(const Sm90Call<Config>& call) {
  const Sm90ForwardArguments& args = forward_of(call);
  using Tiles = Sm90Tiles<Config>;
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<Sm90ForwardStorage<Config>*>(memory);
  static_assert(sizeof(Sm90ForwardStorage<Config>) == Config::kSharedBytes &&
                Config::kSharedBytes ==
                    shared_bytes(Sm90ForwardTiling{Config::kConsumers, Config::kBlockKeys,
                                                   Config::kStagesQ, Config::kStagesK,
                                                   Config::kStagesV, Config::kTurns},
                                 Config::kHeadDim, Config::kHeadDimV, Config::kRagged));

  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&args.q);
    ptx::prefetch_tensor_map(&args.k);
    ptx::prefetch_tensor_map(&args.v);
    shared.init_barriers();
  }
  __syncthreads();
  if constexpr (Config::kStream) ptx::launch_dependents();  // the merge waits for all of this one
  const int warpgroup = __shfl_sync(ptx::kFullMask, threadIdx.x / kWarpgroupThreads, 0);
  if (warpgroup == 0) {
    if constexpr (Tiles::kDividesRegisters) ptx::give_registers<Tiles::kProducerRegisters>();
    if constexpr (Config::kCached) {
      if (threadIdx.x / 32 == kCopiesKeys) Sm90CachedProducer<Config, false>(call, shared).run();
      if (threadIdx.x / 32 == kCopiesValues) Sm90CachedProducer<Config, true>(call, shared).run();
    } else {
      if (threadIdx.x == 32 * kCopiesKeys) Sm90KeyProducer<Config>{args, shared}.run();
    }
    if (threadIdx.x == 32 * kCopiesQueries) produce_queries<Config>(args, shared);
    if constexpr (Config::kCached) {
      if (threadIdx.x / 32 == kOrdersTiles) order_tiles<Config>(call, shared);
    } else if constexpr (Config::kRagged) {
      if (threadIdx.x == 32 * kOrdersTiles) order_tiles<Config>(call, shared);
    }
  } else {
    if constexpr (Tiles::kDividesRegisters) ptx::take_registers<Tiles::kConsumerRegisters>();
    const int consumer = warpgroup - 1;
    Sm90Consumer<Config> walker(args, shared, consumer);
    if (consumer == Tiles::kConsumers - 1) walker.pass_turn();  // the first turn is consumer 0's
    walker.run(shared);
    if (consumer == 0) walker.await_turn();  // nothing is left at a barrier
  }
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__((Config::kConsumers + 1) * 128, 1)
    flash_fwd_sm90(const __grid_constant__ flashlab::device::Sm90Call<Config> args) {
  flashlab::device::sm90_forward<Config>(args);
}
