// Attention backward for fp16 and bf16 on Hopper (sm_90a), step 2 of 3: the five products. A block
// works off tiles of 128 keys. Steps 1 and 3 are sm80's (sm80/backward/prepare.cu, finish.cu).
//
//     P = exp2(scale_log2 S + lse2)   dS = P * (dP - delta)   S = Q K^T, dP = dO V^T
//     dV += P^T dO    dK += dS^T Q (x scale at the end)    dQ += dS K (fp32, reduced in memory)
//
// K and V stay in shared memory, dK and dV in registers; tiles of queries (Q, dO, lse2, delta) of
// all heads of the group come through a ring. Each of two consumer warpgroups has 64 keys, and its
// part of dQ of all 128:
//
//     producer      K V, tile 0, tile 1 ...
//     consumer 0    dQ(i-1) dV dK(i) S dP(i+1) | P, dS(i+1)               | dQ(i) dV dK(i+1) ...
//     consumer 1    P, dS(i)                   | dQ(i-1) dV dK(i) S dP(i+1) | P, dS(i+1) ...
//
// S is made transposed: P^T and dS^T leave the tensor cores as the left operands of dV and dK, in
// the registers where they are. Only dQ needs the other warpgroup's dS, through shared memory, and
// comes a step late. The warpgroups multiply in turns, one's exponentials beside the other's
// products. dQ goes first: it is added to memory while dV and dK are computed.

#include "ptx/dependency.h"
#include "ptx/special.h"
#include "ptx/warpgroup.h"
#include "sm90/backward/draws.h"
#include "sm90/backward/producer.h"
#include "sm90/backward/sequence.h"
#include "sm90/backward/warpgroup.h"

namespace flashlab::device {

/// One consumer warpgroup's walk over the tiles of queries.
template <class Config>
struct Sm90KeyConsumer {
  using Tiles = Sm90BackwardTiles<Config>;
  using TileQuery = typename Tiles::TileQuery;
  using Warpgroup = Sm90KeyWarpgroup<Config>;
  /// What a step's tile of queries is: the block's first, the first of another tile of keys, any
  /// other.
  enum class StepOf { kFirst, kNextKeys, kSameKeys };
  using Cursor = GroupCursor<Config::kAbreast>;
  static constexpr int kTileQ = Config::kTileQ;
  static constexpr int kConsumerThreads = Tiles::kConsumers * kWarpgroupThreads;
  const BackwardArguments& args;
  const KeyOrder& order;
  Sm90BackwardStorage<Config>& shared;
  /// A sequence's by value: the loop would find shared memory's addresses in every step.
  ArgumentsOf<Config::kRagged, const Shape&, Shape> shape;
  int slots, slot;
  Work work;        ///< its tile of keys is at `ring_keys`
  Stretch stretch;  ///< of its steps
  PairVisibility<Config> visibility;
  Ring<Config::kKeyStages> ring_keys;
  Ring<Config::kStages> ring_queries;
  Ring<kScoreStages> ring_scores;  ///< where the next dS^T is stored
  int own_place = 0;               ///< of what is known of the tile of keys, with places of its own
  Warpgroup warpgroup;
  HeadSlope<Config> slope;  ///< of the head whose tiles of queries come by

  __device__ Sm90KeyConsumer(const Sm90BackwardArguments& args_,
                             Sm90BackwardStorage<Config>& shared_, const Work& first,
                             const Stretch& stretch_, int consumer)
      : args(args_.call),
        order(args_.order),
        shared(shared_),
        shape(Tiles::kFinds ? args.shape : shared.shape(args, 0)),
        slots(Tiles::kFinds ? 0 : shared.begins(0).slots),
        slot(Tiles::kFinds ? 0 : shared.begins(0).slot),
        work(first),
        stretch(stretch_),
        visibility(shape),
        ring_keys(shared.ring_keys),
        ring_queries(shared.ring_queries),
        ring_scores(shared.ring_scores),
        warpgroup(consumer) {}

  /// Whether a tile has a row without keys. Every warp finds the same.
  __device__ bool has_empty_row(int query0, const float* lse2) const {
    bool empty = false;
#pragma unroll
    for (int row = 0; row < kTileQ; row += 32) {
      const int own = row + warpgroup.lane();
      empty |= query0 + own < shape.seqlen_q && lse2[own] == kMinusInfinity;
    }
    return __any_sync(ptx::kFullMask, empty);
  }
  /// Empty rows give nothing, even if their Q or dO are not finite: they are cleared in shared
  /// memory, when no consumer's products with them are under way.
  __device__ void clear_empty_rows(int stage) const {
    constexpr int kChunks = Tiles::kDim / 8;
    const int thread = static_cast<int>(threadIdx.x) - kWarpgroupThreads;
    ptx::meet(kRowsCleared, kConsumerThreads);
#pragma unroll 1
    for (int i = thread; i < kTileQ * kChunks; i += kConsumerThreads) {
      if (shared.lse2[stage][i / kChunks] != kMinusInfinity) continue;
      const int at = TileQuery::offset(i / kChunks, i % kChunks);
      *reinterpret_cast<uint4*>(shared.q[stage] + at) = make_uint4(0, 0, 0, 0);
      *reinterpret_cast<uint4*>(shared.d_o[stage] + at) = make_uint4(0, 0, 0, 0);
    }
    ptx::async_proxy_fence();
    ptx::meet(kRowsCleared, kConsumerThreads);
  }

  /// Who has the turn starts dQ of a tile, dV and dK of the next one, S and dP of the one after
  /// that, and passes it before the last two have ended.
  __device__ void await_turn() const {
    ptx::meet(kFirstTurn + turn(), kConsumerThreads);
  }
  __device__ void pass_turn() const {
    ptx::meet_later(kFirstTurn + 1 - turn(), kConsumerThreads);
  }
  /// With dropout the loop has no registers to keep what follows from it.
  __device__ int turn() const {
    return Config::kDropout && Tiles::kStays ? ptx::anew(warpgroup.consumer) : warpgroup.consumer;
  }

  /// With a head's first tile of queries, whether or not this consumer's keys are seen there.
  __device__ void read_slope(const Cursor& at) {
    if constexpr (Config::kAlibi) {
      static_assert(!Config::kAbreast);
      if (at.tile == work.first_tile) {
        slope = HeadSlope<Config>(args.slopes, work.batch, at.head, kLog2E);
      }
    }
  }
  /// Of the tile of queries whose first one is given.
  __device__ typename Warpgroup::Exponents exponents(int query0) const {
    const int thread = static_cast<int>(warpgroup.thread);
    const int first_key = work.key0 + kWarpgroupRows * warpgroup.consumer;
    return {unit_of<Config>(args.score, args.shape), slope,
            HeadSlope<Config>::distance(shape, query0 + 2 * (thread % 4),
                                        first_key + thread / 32 * 16 + thread % 32 / 4)};
  }

  __device__ void open_sequence() {
    const Sm90Sequence& opened = shared.parts.sequences[place()];
    shape = opened.shape;
    work = opened.work;
    slots = opened.begins.slots, slot = opened.begins.slot;
    visibility = PairVisibility<Config>(shape);
  }
  __device__ int place() const { return Tiles::kOwnPlaces ? own_place : ring_keys.stage; }
  /// Waits for the tile of keys whose place is `ring_keys`. False: there are no more.
  __device__ bool open() {
    ring_keys.wait_full();
    const int index = __shfl_sync(ptx::kFullMask, shared.work[place()], 0);
    if constexpr (Tiles::kFinds) {
      if (index >= 0) open_sequence();
      return index >= 0;
    }
    const PlacedTile<Config> placed(index);
    if (index >= 0) work = tile_of_keys<Config>(shape, placed.index());
    if (Config::kAbreast && index >= 0) stretch = Stretch::whole(work, shape, placed.back());
    return index >= 0;
  }
  /// Where the tile of keys before lies. With one place: where the tile of keys does.
  __device__ int stage_before() const {
    return (ring_keys.stage == 0 ? Config::kKeyStages : ring_keys.stage) - 1;
  }
  __device__ void store(const Work& of) const {
    warpgroup.store(args, shape, of, shared.begins(0).d_k);
  }
  /// Of the tile at a place, which has a sequence of its own.
  __device__ void store_found(int stage) const {
    const Sm90Sequence& of = shared.parts.sequences[stage];
    warpgroup.store(args, of.shape, of.work, of.begins.d_k);
  }
  /// dK and dV of the tile of keys at a place, and zeros for the next one's.
  __device__ void store_gradients(int stage) {
    if constexpr (Tiles::kFinds) {
      store_found(stage);
    } else {
      const int index = __shfl_sync(ptx::kFullMask, shared.work[stage], 0);
      store(tile_of_keys<Config>(shape, PlacedTile<Config>(index).index()));
    }
    warpgroup.clear_gradients();
  }

  /// dS^T from registers to shared memory, for dQ.
  __device__ void send_scores() {
    ring_scores.wait_empty();
    // With dropout the loop has no registers to keep what follows from it.
    if constexpr (Config::kDropout) warpgroup.thread = ptx::anew(warpgroup.thread);
    warpgroup.store_scores(ptx::shared_address(shared.d_s[ring_scores.stage]));
    ptx::async_proxy_fence();
    __syncwarp();
    if (warpgroup.lane() == 0) ptx::barrier_arrive(ring_scores.full());
    ring_scores.advance();
  }

  /// P^T and dS^T of a tile of queries: to registers, dS^T to shared memory, too.
  template <StepOf kStep>
  __device__ void make_scores(const Cursor& at) {
    const int stage = ring_queries.stage, query0 = at.tile * kTileQ;
    typename Warpgroup::Pairs s, dp;
    warpgroup.start_scores(
        s, dp, ptx::shared_address(shared.k[ring_keys.stage]), ptx::shared_address(shared.q[stage]),
        ptx::shared_address(shared.v[ring_keys.stage]), ptx::shared_address(shared.d_o[stage]));
    pass_turn();
    if constexpr (kStep == StepOf::kNextKeys) {
      store_gradients(stage_before());
    }
    const float* lse2 = shared.lse2[stage];
    const bool empty = has_empty_row(query0, lse2);
    const PerQuery rows_lse2(lse2, warpgroup.thread);
    read_slope(at);
    ptx::wgmma_wait<1>();
    pin(s);
    const auto to_powers = exponents(query0);
    warpgroup.exponentials(s, rows_lse2, args.score, to_powers);
    const PerQuery rows_delta(shared.delta[stage], warpgroup.thread);
    // The branch stands before the wait, or the compiler moves exponentials behind it.
    if (empty) {
      ptx::wgmma_wait<0>();
      clear_empty_rows(stage);
    } else {
      ptx::wgmma_wait<0>();
    }
    pin(dp);
    const DropoutTile* drawn = nullptr;
    if constexpr (Config::kDropout) drawn = &shared.parts.of[stage];
    const int first_key = work.key0 + kWarpgroupRows * warpgroup.consumer;
    if (!empty && visibility.sees_all(query0, kTileQ, first_key, kWarpgroupRows)) {
      warpgroup.template differentiate<false>(s, dp, rows_lse2, rows_delta, to_powers, visibility,
                                              query0, work.key0, drawn);
    } else {
      warpgroup.template differentiate<true>(s, dp, rows_lse2, rows_delta, to_powers, visibility,
                                             query0, work.key0, drawn);
    }
    send_scores();
  }

  /// Of the tile before the last one that was stored: its dS^T lies where the next one comes. The
  /// turn says that the other's is there: it was stored before the other's last turn. `stage`: of
  /// its keys.
  __device__ void start_grad_q(float (&sum)[32], int stage) const {
    static_assert(kScoreStages == 2);
    warpgroup.start_grad_q(sum, ptx::shared_address(shared.d_s[ring_scores.stage]),
                           ptx::shared_address(shared.k[stage]));
  }
  /// `tile`: of the queries, among those of all heads.
  template <int kUnderWay>
  __device__ void finish_grad_q(float (&sum)[32], int tile) {
    ptx::wgmma_wait<kUnderWay>();
    pin(sum);
    ring_scores.release();
    warpgroup.reduce(sum, static_cast<float*>(args.regions[kRegionGradQ]) +
                              Int64(tile) * Tiles::Sizes::kTileFloats);
  }
  __device__ void release_queries() {
    warpgroup.pin_gradients();
    if constexpr (Config::kDropout) {
      ring_queries.release_own();
    } else {
      ring_queries.release();
    }
    ring_queries.advance();
  }

  /// A tile of queries, and dQ of the tile before it if there is one.
  template <StepOf kStep>
  __device__ void step(const Cursor& at, int tile_before) {
    if (sees_none<kStep>(at)) return step_unseen<kStep>(at, tile_before);
    ring_queries.wait_full();
    make_scores<kStep>(at);
    await_turn();
    float sum[32];
    start_grad_q_before<kStep>(sum);
    const int stage = ring_queries.stage;
    warpgroup.start_gradients(ptx::shared_address(shared.d_o[stage]),
                              ptx::shared_address(shared.q[stage]));
    finish_grad_q_before<kStep, 1>(sum, tile_before);
    ptx::wgmma_wait<0>();
    release_queries();
  }
  template <StepOf kStep>
  __device__ void start_grad_q_before(float (&sum)[32]) const {
    if constexpr (kStep == StepOf::kFirst) return;
    start_grad_q(sum, kStep == StepOf::kNextKeys ? stage_before() : ring_keys.stage);
  }
  template <StepOf kStep, int kUnderWay>
  __device__ void finish_grad_q_before(float (&sum)[32], int tile_before) {
    if constexpr (kStep != StepOf::kFirst) finish_grad_q<kUnderWay>(sum, tile_before);
    if constexpr (kStep == StepOf::kNextKeys) ring_keys.release(stage_before());
  }

  /// Whether a tile of queries sees none of this consumer's keys: on a diagonal the first one does
  /// not see consumer 1's, at a window's end the last one not consumer 0's. Half of a tile's
  /// products less (H200: 0.988 of the time at causal 512). Where blocks do not stay only the
  /// first tile is asked about; where a tile has as many queries as keys there is none.
  /// Not where rows are to be cleared: consumers do that together.
  template <StepOf kStep>
  __device__ bool sees_none(const Cursor& at) {
    constexpr bool kOfFirst = Tiles::kFinds ? kStep != StepOf::kSameKeys : kStep == StepOf::kFirst;
    constexpr bool kEvery = Tiles::kStays && !Tiles::kFinds;
    constexpr bool kAsks = kEvery || Tiles::kFinds ? !Tiles::kSplitQueries && (kEvery || kOfFirst)
                                                   : kOfFirst;
    constexpr bool kBounded = Config::kBoundedRight || (Tiles::kStays && Config::kBoundedLeft);
    if constexpr (!kAsks || !kBounded) return false;
    const int query0 = at.tile * kTileQ;
    const int first_key = work.key0 + kWarpgroupRows * warpgroup.consumer;
    if (!visibility.sees_none(query0, kTileQ, first_key, kWarpgroupRows)) return false;
    ring_queries.wait_full();
    return !has_empty_row(query0, shared.lse2[ring_queries.stage]);
  }
  /// That tile: its dS^T is zeros.
  template <StepOf kStep>
  __device__ void step_unseen(const Cursor& at, int tile_before) {
    pass_turn();
    if constexpr (kStep == StepOf::kNextKeys) store_gradients(stage_before());
    read_slope(at);
    warpgroup.clear_scores();
    send_scores();
    await_turn();
    float sum[32];
    start_grad_q_before<kStep>(sum);
    finish_grad_q_before<kStep, 0>(sum, tile_before);
    release_queries();
  }

  /// From tile of keys to tile of keys without a pause: the next one's first S and dP start in the
  /// turn in which dV and dK of this one's last tile of queries do, and dK and dV are stored
  /// beside.
  __device__ void walk() {
    Cursor at(work, shape, stretch);
    const auto tile = [&] {
      if constexpr (Config::kRagged) return at.head * slots + slot + at.tile;
      return (work.batch * shape.heads_q + at.head) * work.tiles_q + at.tile;
    };
    if (warpgroup.consumer == 1) pass_turn();  // the first turn is consumer 0's
    await_turn();
    step<StepOf::kFirst>(at, 0);
    int before = tile();
#pragma unroll 1
    for (;;) {
#pragma unroll 1
      for (at.next(work, shape); at.left > 0; at.next(work, shape)) {
        step<StepOf::kSameKeys>(at, before);
        before = tile();
      }
      if constexpr (!Tiles::kStays || Tiles::kOwnPlaces) break;
      // The other consumer gives the tile of keys before back in its next turn. Where its place is
      // what the next tile waits for, that turn comes first.
      if (Config::kKeyStages == 2 && work.per_head() * shape.group == 1) {
        pass_turn();
        await_turn();
      }
      ring_keys.advance();
      if (!open()) break;
      at = Cursor(work, shape, stretch);
      step<StepOf::kNextKeys>(at, before);
      before = tile();
    }
    pass_turn();
    float sum[32];
    const Ring<kScoreStages> next_scores = ring_scores;
    ring_scores.advance();  // nothing is stored any more
    wait_for_phase(ring_scores.full(), ring_scores.phase ^ 1);
    start_grad_q(sum, stage_before());
    if constexpr (Tiles::kOwnPlaces) {
      ptx::wgmma_wait<0>();
      ring_keys.release();
    }
    finish_grad_q<0>(sum, before);
    if constexpr (Tiles::kOwnPlaces) {
      ring_scores = next_scores;
    } else if constexpr (Tiles::kStays || Tiles::kCountsDone) {
      ring_keys.release(stage_before());
    }
    if (warpgroup.consumer == 0) await_turn();  // nothing is left at a barrier
  }

  /// Tiles of keys that no query sees have zeros. Nobody is given them.
  __device__ void store_unseen() {
    warpgroup.clear_gradients();
    const unsigned end_index = tiles_of_keys<Config>(shape);
#pragma unroll 1
    for (unsigned index = blockIdx.x; index < end_index; index += gridDim.x) {
      const Work unseen = tile_of_keys<Config>(shape, index);
      if (unseen.per_head() == 0) store(unseen);
    }
  }

  /// The block's only tile of keys.
  __device__ Work work_again() const {
    if constexpr (Config::kRagged) return shared.parts.sequences[0].work;
    const unsigned index = order.tile_at(static_cast<int>(ptx::block_index_again()));
    return tile_of_keys<Config>(shape, index);
  }

  /// K and V have one place: the next tile's come while this one's dK and dV are stored.
  __device__ void walk_alone() {
#pragma unroll 1
    while (open()) {
      walk();
      store_found(own_place);
      warpgroup.clear_gradients();
      ring_keys.advance();
      own_place = StageOf<Tiles::kPlaces>::next(own_place);
    }
  }

  __device__ void run() {
    if constexpr (Tiles::kOwnPlaces) {
      walk_alone();
    } else if constexpr (Tiles::kFinds) {
      if (open()) {
        walk();
        store_found(stage_before());
      }
    } else if constexpr (Tiles::kStays) {
      if (open()) {
        walk();
        store(work);
      }
      if constexpr (Config::kBoundedRight || Config::kBoundedLeft) store_unseen();
    } else {
      if (work.per_head() > 0) {
        ring_keys.wait_full();
        walk();
      }
      if constexpr (Config::kParts) {
        warpgroup.keep(part_sums<Config>(args, static_cast<int>(ptx::block_index_again())));
      } else {
        // Found again: the loop has no register to keep it.
        store(work_again());
      }
    }
  }
};

template <class Config>
__device__ Sm90BackwardStorage<Config>& storage() {
  extern __shared__ __align__(1024) unsigned char memory[];
  return *reinterpret_cast<Sm90BackwardStorage<Config>*>(memory);
}

/// Of the block at a place, which has one tile of keys or a part of it.
template <class Config>
__device__ inline Stretch stretch_of(const Sm90BackwardArguments& args, const Work& work,
                                     int place) {
  const KeyOrder& order = args.order;
  if constexpr (Config::kParts) {
    return Stretch::part(work, args.call.shape, order.parts, place % order.parts.most);
  } else {
    return Stretch::whole(work, args.call.shape, order.goes_back(place));
  }
}

template <class Config>
using Sm90BackwardCall =
    ArgumentsOf<Config::kRagged, Sm90BackwardArguments, Sm90RaggedBackwardArguments>;

template <class Config>
__device__ const Sm90BackwardArguments& launch_of(const Sm90BackwardCall<Config>& call) {
  if constexpr (Config::kRagged) {
    return call.launch;
  } else {
    return call;
  }
}

template <class Config>
__device__ void sm90_backward(const Sm90BackwardCall<Config>& call) {
  using Tiles = Sm90BackwardTiles<Config>;
  const Sm90BackwardArguments& args = launch_of<Config>(call);
  auto& shared = storage<Config>();
  static_assert(sizeof(Sm90BackwardStorage<Config>) == Config::kSharedBytes &&
                Config::kSharedBytes ==
                    shared_bytes(Sm90BackwardTiling{
                        Config::kTileQ, Config::kTileK, Config::kDimUnit, Config::kStages,
                        Config::kKeyStages, Config::kDropout, Config::kRagged}));

  if constexpr (Config::kRagged && !Tiles::kStays) {
    if (!find_sequence<Config>(call, shared)) return;
  }
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&args.k);
    ptx::prefetch_tensor_map(&args.v);
    ptx::prefetch_tensor_map(&args.q);
    ptx::prefetch_tensor_map(&args.d_o);
    shared.init_barriers();
  }
  __syncthreads();
  if constexpr (Tiles::kCountsDone) ptx::launch_dependents();
  const int warpgroup = __shfl_sync(ptx::kFullMask, threadIdx.x / kWarpgroupThreads, 0);
  // A block's only tile is found before roles part, or the compiler finds shared addresses anew in
  // every step.
  Work first{};
  Stretch stretch;
  if constexpr (Config::kRagged && !Tiles::kStays) {
    first = shared.parts.sequences[0].work;
  } else if constexpr (!Tiles::kStays) {
    const int place = static_cast<int>(blockIdx.x);
    const unsigned index = tile_of_block<Config>(args.order, place);
    first = tile_of_keys<Config>(args.call.shape, index);
    if constexpr (Config::kAbreast) stretch = stretch_of<Config>(args, first, place);
    if (Config::kParts && stretch.steps == 0) return;
  }
  if (warpgroup == 0) {
    ptx::give_registers<Tiles::kProducerRegisters>();
    if (threadIdx.x == 32 * kCopies) Sm90QueryProducer<Config>{args, shared}.run(first, stretch);
    if constexpr (Config::kDropout) {
      if (threadIdx.x / 32 == kDraws) {
        Sm90DropoutProducer<Config>{args.call, args.order, shared}.run();
      }
    }
    if (Tiles::kWritesZeros && threadIdx.x / 32 == kZeros) {
      Sm90Zeros<Config>(args).run(shared, args.order.tile_at(static_cast<int>(blockIdx.x)));
    }
    if constexpr (Tiles::kClaimsZeros) {
      if (threadIdx.x / 32 == kZeros) {
        Sm90ClaimedZeros<Config>{args.call, shared}.run(first, stretch);
      }
    }
    if constexpr (Tiles::kFinds) {
      if (threadIdx.x / 32 == kSearches) Sm90SequenceFinder<Config>{call, shared}.run();
    }
    if constexpr (Tiles::kCountsDone) {
      if (threadIdx.x == 32 * kCounts) Sm90HeadCounter<Config>{args.call, shared}.run(first);
    }
  } else {
    ptx::take_registers<Tiles::kConsumerRegisters>();
    Sm90KeyConsumer<Config>(args, shared, first, stretch, warpgroup - 1).run();
  }
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__((Config::kTileK / 64 + 1) * 128, 1)
    flash_bwd_sm90(const __grid_constant__ flashlab::device::Sm90BackwardCall<Config> args) {
  flashlab::device::sm90_backward<Config>(args);
}
