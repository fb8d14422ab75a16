// Backward, step 2 of 3: the five products, one block per tile of keys.
//
//   P = exp2(scale_log2 S + lse2)   dS = P * (dP - delta)   S = Q K^T, dP = dO V^T
//   dV += P^T dO    dK += dS^T Q (x scale at the end)    dQ += dS K (fp32, reduced in memory)
//
// K and V stay in shared memory, dK and dV in registers; tiles of queries (Q, dO, lse2, delta) of
// all heads of the group stream through. Warps form a grid of kWarpsK x kWarpsQ: warp (wk, wq)
// computes S^T and dP^T for its keys and its share of the queries, and holds dK and dV for its keys
// and its share of the features.
//
//   load of the next tile      ───────────────────────────────
//   part one   S^T, P = exp2 | dP^T, dS | P, dS -> shared memory, arrive
//              own queries: dV, dK from registers
//   wait       until every warp has stored
//   part two   dV, dK of the other warps' queries from shared memory | dQ -> red
//
// S is computed transposed so that P^T and dS^T, as they leave the tensor cores, are the left
// operands of dV and dK. The barrier is split: between arriving and waiting lie the products of a
// warp's own queries. With kOneBarrier part two of a step runs beside part one of the next: the
// products of one warp cover the exponentials of another.

#include "ptx/atomic.h"
#include "ptx/math.h"
#include "ptx/special.h"
#include "sm80/backward/block.h"
#include "sm80/backward/operands.h"
#include "sm80/backward/turns.h"
#include "tile/dropped.h"
#include "tile/mutation.h"
#include "tile/probability.h"
#include "tile/score.h"

namespace flashlab::device {

/// The five products and the loop over the queries.
template <class Config>
struct BackwardKernel : BackwardBlock<Config> {
  using Base = BackwardBlock<Config>;
  using typename Base::Place, typename Base::Sizes, typename Base::Storage,
      typename Base::TileGradO, typename Base::TileKey, typename Base::TileQuery,
      typename Base::TileScores, typename Base::TileValue, typename Base::Visibility;
  using Base::kDim, Base::kDimV, Base::kElement, Base::kExchange, Base::kGradKN, Base::kGradVN,
      Base::kJudgesPairs, Base::kKSteps, Base::kLoadAfterReading, Base::kM, Base::kN, Base::kPassN,
      Base::kPasses, Base::kPieceQ, Base::kPieces, Base::kStages, Base::kThreads, Base::kTileK,
      Base::kTileQ, Base::kWarpKeys, Base::kWarpQueries, Base::load_keys, Base::load_queries,
      Base::work_of;

  /// Which of a lane's pairs count under a mask tensor or in chunks, one bit each. One element at a
  /// time: unrolled, the compiler reads the mask of all of them at once, and spills.
  static __device__ unsigned revealed_pairs(const float* lse2, const Visibility& visibility,
                                            const MaskRows<Config>& mask, int query0, int key0,
                                            int lane) {
    static_assert(kM * kN * 4 <= 32);
    unsigned bits = 0;
#pragma unroll 1
    for (int e = 0; e < kM * kN * 4; ++e) {
      const int column = e / 4 / kM * 8 + lane % 4 * 2 + e % 2;
      const int key = key0 + e / 4 % kM * 16 + lane / 4 + e / 2 % 2 * 8;
      bool counts = visibility.sees(query0 + column, key) && lse2[column] != kMinusInfinity;
      if constexpr (Config::kMask != MaskTensor::kNone) {
        float score = 0;
        if (counts) counts = mask.reveal_at(score, mask.index(query0 + column, key));
      }
      bits |= static_cast<unsigned>(counts) << e;
    }
    return bits;
  }

  /// Additive masks change scores before the exponential: only where `counts` is known. Softcap's
  /// derivative needs the value that the exponential replaces.
  static constexpr bool kLateExponentials =
      Config::kMask == MaskTensor::kAdditive || Config::kSoftcap;

  /// What changes a head's pairs.
  struct PairRules {
    const BackwardArguments& args;
    MaskRows<Config> mask;
    HeadSlope<Config> slope;  ///< in units of log2
    KeepMask<Config> keep;
    __device__ PairRules(const BackwardArguments& a, int batch, int head)
        : args(a),
          mask(a.mask, batch, head),
          slope(a.slopes, batch, head, kLog2E),
          keep(a.dropout, a.shape, batch, head) {}

    /// ALiBi's, of a lane's pair in the piece that begins at (query0, key0).
    __device__ float distance(int query0, int key0, int m, int n, int i, int lane) const {
      return HeadSlope<Config>::distance(args.shape, query0 + lane % 4 * 2, key0 + lane / 4) +
             static_cast<float>(m * 16 + i / 2 * 8 - n * 8 - i % 2);
    }
  };

  /// S^T -> P^T in place, of every pair: 2 to the `exponent` of (product, its row's lse2, m, n, i).
  template <class Exponent>
  static __device__ void exponentials(float (&s)[kM][kN][4], const float* lse2,
                                      const Exponent& exponent, int lane) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      const float2 row_lse = *reinterpret_cast<const float2*>(lse2 + n * 8 + lane % 4 * 2);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          s[m][n][i] =
              ptx::exp2_fast(exponent(s[m][n][i], i % 2 ? row_lse.y : row_lse.x, m, n, i));
        }
      }
    }
  }

  /// dP^T -> dS^T in place, with dropout (1 - p) times it; `s` holds P^T, or S^T with
  /// kLateExponentials, and then P^T. kSelect: pairs may be hidden or rows empty; both become
  /// exactly 0 there, whatever S and dP hold.
  template <bool kSelect>
  static __device__ void differentiate(float (&s)[kM][kN][4], float (&dp)[kM][kN][4],
                                       const float* lse2, const float* delta, float scale_log2,
                                       const Visibility& visibility, const PairRules& rules,
                                       int query0, int key0, int lane) {
    unsigned revealed = 0, addend = 0;
    LaneNumbers numbers;
    if constexpr (kSelect && kJudgesPairs) {
      revealed = revealed_pairs(lse2, visibility, rules.mask, query0, key0, lane);
    }
    if constexpr (Config::kDropout) {
      static_assert(kN <= 16, "pieces of 128 queries");
      const unsigned row_bytes = dropout_bytes(key0 + lane / 4) | LaneNumbers::kRow8;
      const DropoutColumns drawn(rules.keep.words, query0, key0, row_bytes, lane, PtxArithmetic{});
      numbers = drawn.numbers;
      addend = dropout_addend(rules.args.dropout.limit, drawn.phase);
    }
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      const int column = n * 8 + lane % 4 * 2;
      const float2 row_lse = *reinterpret_cast<const float2*>(lse2 + column);
      const float2 row_delta = *reinterpret_cast<const float2*>(delta + column);
      if (Config::kDropout && n == 8) numbers.change_columns();
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float l = i % 2 ? row_lse.y : row_lse.x, d = i % 2 ? row_delta.y : row_delta.x;
          bool counts = true;
          if constexpr (kSelect) {
            const int query = query0 + column + i % 2, key = key0 + m * 16 + lane / 4 + i / 2 * 8;
            if constexpr (!kJudgesPairs) {
              counts = visibility.sees(query, key) && l != kMinusInfinity;
            } else {
              counts = revealed >> ((n * kM + m) * 4 + i) & 1;
            }
          }
          float p = s[m][n][i], slope = 1;
          if constexpr (kLateExponentials) {
            p = value_of<Config>(rules.args.score, p);
            slope = slope_of<Config>(p);
            // offset_of() is in l (prepare.cu).
            p = rules.slope.apply(fmaf(p, scale_log2, l),
                                  rules.distance(query0, key0, m, n, i, lane));
            if constexpr (Config::kMask != MaskTensor::kNone) {
              const int query = query0 + column + i % 2, key = key0 + m * 16 + lane / 4 + i / 2 * 8;
              if (counts) rules.mask.reveal_at(p, rules.mask.index(query, key));
            }
            p = ptx::exp2_fast(p);
          }
          float kept = p, ds = p * (dp[m][n][i] - d);
          if constexpr (Config::kDropout) {
            const unsigned word = numbers.word(m, i / 2, n % 8);
            kept = ptx::clear_if_negative(p, LaneNumbers::upper(word, i % 2), addend);
            ds = fmaf(kept, dp[m][n][i], -(p * d));
          }
          if constexpr (Config::kSoftcap) ds *= slope;
          s[m][n][i] = counts ? kept : 0.0f;
          dp[m][n][i] = counts ? ds : 0.0f;
        }
      }
    }
  }

  /// Accumulators [keys, queries] to left operands over the queries.
  static __device__ void pack_operand(unsigned (&out)[kM][kKSteps][4],
                                      const float (&x)[kM][kN][4]) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int step = 0; step < kKSteps; ++step) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* pair = &x[m][2 * step + i / 2][i % 2 * 2];
          out[m][step][i] = pack<kElement>(pair[0], pair[1]);
        }
      }
    }
  }

  /// A packed operand to its place in a tile of scores. Without bank conflicts: 8 rows of one chunk
  /// lie in 8 different places modulo 128 bytes.
  static __device__ void store_scores(unsigned char* tile, const unsigned (&x)[kM][kKSteps][4],
                                      int key, int query, int lane) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int step = 0; step < kKSteps; ++step) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = key + m * 16 + lane / 4 + i % 2 * 8;
          const int chunk = query / 8 + step * 2 + i / 2;
          *reinterpret_cast<unsigned*>(tile + TileScores::offset(row, chunk) + lane % 4 * 4) =
              x[m][step][i];
        }
      }
    }
  }

  /// The sums a warp keeps for its keys and its features.
  struct Gradients {
    float k[kM][kGradKN][4] = {};
    float v[kM][kGradVN][4] = {};
  };

  /// A warp's place and the tiles' shared addresses.
  struct Warp {
    int lane, wk, wq;
    unsigned k, v;
    __device__ explicit Warp(const Storage& shared)
        : lane(threadIdx.x % 32),
          wk(threadIdx.x / 32 / Sizes::kWarpsQ),
          wq(threadIdx.x / 32 % Sizes::kWarpsQ),
          k(ptx::shared_address(shared.k)),
          v(ptx::shared_address(shared.v)) {}
    __device__ int key() const { return wk * kWarpKeys; }
  };

  /// dV or dK from queries [query, query + kPieceQ) of a tile, the left operand given.
  template <class TileRight, int kFeatures, class Left>
  static __device__ void add_keys(float (&sum)[kM][kFeatures][4], const Left& left, unsigned right,
                                  int query, const Warp& warp) {
    accumulate<kElement, kKSteps, Config::kPrefetch>(
        sum, left, RightFromColumns<TileRight>(right, query, warp.wq * kFeatures, warp.lane));
  }

  /// The warp has stored P and dS of a step.
  static __device__ void announce(const Storage& shared) {
    if constexpr (Config::kOneBarrier) ptx::copy_async_wait<0>();
    shared.arrive_stored();
  }

  /// Part one of a step, for one piece of the warp's queries.
  static __device__ void part_one(Gradients& sum, Storage& shared, const Warp& warp, int stage,
                                  int buffer, int piece, bool select, int tile_query, int tile_key,
                                  float scale_log2, const Visibility& visibility,
                                  const PairRules& rules) {
    const unsigned q = ptx::shared_address(shared.q[stage]);
    const unsigned d_o = ptx::shared_address(shared.d_o[stage]);
    unsigned p[kM][kKSteps][4], d_s[kM][kKSteps][4];
    const int query = warp.wq * kWarpQueries + piece * kPieceQ;
    const int query0 = tile_query + query, key0 = tile_key + warp.key();
    if (select && visibility.sees_none(query0, kPieceQ, key0, kWarpKeys)) {
      const unsigned zero[kM][kKSteps][4] = {};
      store_scores(shared.d_s(buffer), zero, warp.key(), query, warp.lane);
      if constexpr (kExchange) store_scores(shared.p(buffer), zero, warp.key(), query, warp.lane);
      if (piece + 1 == kPieces) announce(shared);
      return;
    }
    {
      float s[kM][kN][4] = {}, dp[kM][kN][4] = {};
      accumulate<kElement, kDim / 16, Config::kPrefetch>(
          s, LeftFromRows<TileKey>(warp.k, warp.key(), 0, warp.lane),
          RightFromRows<TileQuery>(q, query, 0, warp.lane));
      const float* lse2 = shared.lse2[stage] + query;
      const float* delta = shared.delta[stage] + query;
      // Beside the products of dP: nothing of either waits for the other.
      if constexpr (!kLateExponentials) {
        const auto exponent = [&](float product, float row_lse, int m, int n, int i) {
          const float x = fmaf(product, scale_log2, row_lse);
          if constexpr (!Config::kAlibi) return x;
          return rules.slope.apply(x, rules.distance(query0, key0, m, n, i, warp.lane));
        };
        exponentials(s, lse2, exponent, warp.lane);
      }
      accumulate<kElement, kDimV / 16, Config::kPrefetch>(
          dp, LeftFromRows<TileValue>(warp.v, warp.key(), 0, warp.lane),
          RightFromRows<TileGradO>(d_o, query, 0, warp.lane));
      if (select) {
        differentiate<true>(s, dp, lse2, delta, scale_log2, visibility, rules, query0, key0,
                            warp.lane);
      } else {
        differentiate<false>(s, dp, lse2, delta, scale_log2, visibility, rules, query0, key0,
                             warp.lane);
      }
      pack_operand(p, s);
      pack_operand(d_s, dp);
    }
    store_scores(shared.d_s(buffer), d_s, warp.key(), query, warp.lane);
    if constexpr (kExchange) store_scores(shared.p(buffer), p, warp.key(), query, warp.lane);
    if (piece + 1 == kPieces) announce(shared);
    add_keys<TileGradO>(sum.v, LeftFromRegisters<kM, kKSteps>{p}, d_o, query, warp);
    add_keys<TileQuery>(sum.k, LeftFromRegisters<kM, kKSteps>{d_s}, q, query, warp);
  }

  /// Fragments [begin, end) of a pass of dQ to the accumulator.
  static __device__ void reduce(const float (&acc)[Sizes::kGradQM][kPassN][4],
                                float* accumulator, int begin, int end) {
#pragma unroll
    for (int i = 0; i < Sizes::kGradQM * kPassN; ++i) {
      if (i < begin || i >= end) continue;
      const float(&x)[4] = acc[i / kPassN][i % kPassN];
      float* const fragment =
          accumulator + Sizes::fragment(i / kPassN, i % kPassN) * kFragmentFloats;
      if constexpr (Config::kVectorReduction) {
        ptx::add_global_4(fragment, x[0], x[1], x[2], x[3]);
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) ptx::add_global(fragment + j * 32, x[j]);
      }
    }
  }

  /// Item `item` of what part two owes dV and dK: the queries of another warp, dV and dK by turns.
  static __device__ void add_other(Gradients& sum, Storage& shared, const Warp& warp, int stage,
                                   int buffer, int item) {
    const int other = item / 2 / kPieces + 1, piece = item / 2 % kPieces;
    const int query = (warp.wq ^ other) * kWarpQueries + piece * kPieceQ;
    if (item % 2 == 0) {
      const unsigned p = ptx::shared_address(shared.p(buffer));
      add_keys<TileGradO>(sum.v, LeftFromRows<TileScores>(p, warp.key(), query / 8, warp.lane),
                          ptx::shared_address(shared.d_o[stage]), query, warp);
    } else {
      const unsigned d_s = ptx::shared_address(shared.d_s(buffer));
      add_keys<TileQuery>(sum.k, LeftFromRows<TileScores>(d_s, warp.key(), query / 8, warp.lane),
                          ptx::shared_address(shared.q[stage]), query, warp);
    }
  }

  /// Part two of a step: dQ, and dV and dK of the other warps' queries. dQ comes in passes, and the
  /// reductions lie between the products: in one burst they fill the queue to L2, and loads from
  /// shared memory wait behind them (d 256, H200, 2026-11-21: four passes 3 % faster than one).
  static __device__ void part_two(Gradients& sum, Storage& shared, const Warp& warp, int stage,
                                  int buffer, const GradQTarget& target) {
    constexpr int kItems = 2 * (Sizes::kWarpsQ - 1) * kPieces;
    constexpr int kFragments = Sizes::kGradQM * kPassN;
    const unsigned d_s = ptx::shared_address(shared.d_s(buffer));
    const int part = threadIdx.x / 32;
    const int query = part / Sizes::kFeatureParts * (Sizes::kGradQM * 16);
    const int chunk = part % Sizes::kFeatureParts * Sizes::kGradQN;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      float acc[Sizes::kGradQM][kPassN][4] = {};
      accumulate<kElement, kTileK / 16, Config::kPrefetch>(
          acc, LeftFromColumns<TileScores>(d_s, 0, query / 8, warp.lane),
          RightFromColumns<TileKey>(warp.k, 0, chunk + pass * kPassN, warp.lane));
      const int first = kItems * pass / kPasses, end = kItems * (pass + 1) / kPasses;
      float* const at = target.at + pass * (kFragments * kFragmentFloats);
      if constexpr (Config::kDeterministic) {
        if (pass == 0 && target.waits) wait_for_turn<Config>(target);
      }
      const bool at_once = Config::kDeterministic || first == end;
      if (at_once) reduce(acc, at, 0, kFragments);
#pragma unroll
      for (int item = first; item < end; ++item) {
        const int place = item - first, places = end - first;
        if (!at_once) {
          reduce(acc, at, kFragments * place / places, kFragments * (place + 1) / places);
        }
        add_other(sum, shared, warp, stage, buffer, item);
      }
    }
    if constexpr (Config::kDeterministic) pass_turn<Config>(target);
  }

  /// Tiles of keys add in descending order, from the last that the tile of queries sees.
  static __device__ GradQTarget grad_q_target(const BackwardArguments& args, const Work& w,
                                              const Place& place, const Cursor& at) {
    const Int64 tile = place.tile(Place::head_index(args.shape, w.batch, at.head), at.tile);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    GradQTarget target{};
    target.at = static_cast<float*>(args.regions[kRegionGradQ]) +
                accumulator_tile<Sizes>(tile) +
                warp * (Sizes::kGradQM * Sizes::kGradQN * kFragmentFloats) +
                lane * (Config::kVectorReduction ? 4 : 1);
    if constexpr (Config::kDeterministic) {
      target.turn =
          static_cast<unsigned*>(args.regions[kRegionTurns]) + 1 + tile;
      int last = w.tiles_k - 1;
      if constexpr (Config::kBoundedRight) {
        const Int64 bound = (Int64(at.tile) + 1) * kTileQ - 1 + args.shape.right;
        last = clamp_to(bound / kTileK, last);
      }
      if constexpr (has_chunks<Config>()) {
        last = tiles_seen_by<Config>(args.shape, at.tile).end - 1;
      }
      target.rank = last - w.tile;
      if constexpr (Config::kRagged) target.waits = place.follows;
    }
    return target;
  }

  /// Empty rows give nothing, even if their Q or dO are not finite: they are cleared in shared
  /// memory. Every thread sees the same rows, so all agree. Returns whether the tile has one.
  static __device__ bool clear_empty_rows(Storage& shared, int stage) {
    const int lane = threadIdx.x % 32;
    bool empty = false;
#pragma unroll
    for (int r = 0; r < kTileQ; r += 32) {
      empty |= r + lane < kTileQ && shared.lse2[stage][r + lane] == kMinusInfinity;
    }
    if (!__any_sync(ptx::kFullMask, empty)) return false;
    const auto clear = [&](unsigned char* tile, int pitch_bytes) {
      for (int i = threadIdx.x; i < kTileQ * pitch_bytes / 16; i += kThreads) {
        if (shared.lse2[stage][i * 16 / pitch_bytes] != kMinusInfinity) continue;
        reinterpret_cast<uint4*>(tile)[i] = make_uint4(0, 0, 0, 0);
      }
    };
    clear(shared.q[stage], TileQuery::kPitchBytes);
    clear(shared.d_o[stage], TileGradO::kPitchBytes);
    __syncthreads();
    return true;
  }

  /// The main loop: all query tiles that see the block's keys.
  static __device__ void walk(Gradients& sum, Storage& shared, const BackwardArguments& args,
                              const Work& w, const Place& place) {
    const Shape& shape = args.shape;
    const Warp warp(shared);
    const Visibility visibility(shape);
    Cursor at(w, shape), ahead = at;
    shared.init();  // the first step begins behind a block barrier
    load_keys(shared, args, w);
    const auto load_next = [&](int stage) {
      if (ahead.left > 0) {
        load_queries(shared, args, w, place, ahead, stage);
        ahead.next(w);
      }
      ptx::copy_async_commit();
    };
    load_next(0);
    int stage = 0, buffer = 0;
    unsigned parity = 0;  // of the step: of the phases of both barriers
    if constexpr (Config::kOneBarrier) {
      load_next(1);
      ptx::copy_async_wait<1>();
      __syncthreads();
    }
    for (; at.left > 0; at.next(w)) {
      const int next = stage + 1 == kStages ? 0 : stage + 1;
      if constexpr (!Config::kOneBarrier) {
        ptx::copy_async_wait<0>();
        __syncthreads();
        if constexpr (kStages > 1) load_next(next);
      }
      const int query0 = at.tile * kTileQ;
      const bool empty_rows = clear_empty_rows(shared, stage);
      const bool select = Config::kMask != MaskTensor::kNone || empty_rows ||
                          !visibility.sees_all(query0, kTileQ, w.key0, kTileK);
      const PairRules rules(args, w.batch, at.head);
#pragma unroll 1
      for (int piece = 0; piece < kPieces; ++piece) {
        part_one(sum, shared, warp, stage, buffer, piece, select, query0, w.key0,
                 unit_of<Config>(args.score, shape), visibility, rules);
      }
      if constexpr (kLoadAfterReading) shared.arrive_read();
      shared.wait_stored(parity);
      // Free now: the stage that part two of the step before read.
      if constexpr (Config::kOneBarrier && kExchange) load_next(next + 1 == kStages ? 0 : next + 1);
      part_two(sum, shared, warp, stage, buffer, grad_q_target(args, w, place, at));
      if constexpr (kLoadAfterReading) {
        shared.wait_read(parity);
        load_next(stage);
      }
      if constexpr (kStages == 1) {
        __syncthreads();
        load_next(0);
      }
      stage = next;
      parity ^= 1;
      if constexpr (Config::kOneBarrier) buffer ^= 1;
    }
    ptx::copy_async_wait<0>();
  }

  /// Blocks are numbered as they start, so that one waits only for blocks that run already.
  static __device__ unsigned take_ticket(Storage& shared, const BackwardArguments& args) {
    auto* ticket = reinterpret_cast<unsigned*>(shared.lse2);
    if (threadIdx.x == 0)
      *ticket = atomicAdd(static_cast<unsigned*>(args.regions[kRegionTurns]), 1u);
    __syncthreads();
    const unsigned index = *ticket;
    __syncthreads();
    return index;
  }

  /// The kernel.
  static __device__ void run(const BackwardArguments& args) {
    extern __shared__ __align__(128) unsigned char memory[];
    auto& shared = *reinterpret_cast<Storage*>(memory);
    unsigned index = blockIdx.x;
    if constexpr (Config::kDeterministic) index = take_ticket(shared, args);
    Gradients sum;
    const Work work = work_of(args.shape, index);
    walk(sum, shared, args, work, Place(work.tiles_q));
    // Found again: the main loop has no register to keep it.
    if constexpr (!Config::kDeterministic) index = flashlab::ptx::block_index_again();
    write(sum, shared, args, work_of(args.shape, index));
  }

  /// Blocks are slots of tiles of keys (tile/sequence.h), then key heads. In a fixed order of
  /// additions a sequence's last tile goes first, as in tile_of_keys.
  static __device__ void run(const RaggedBackwardArguments& ragged) {
    extern __shared__ __align__(128) unsigned char memory[];
    auto& shared = *reinterpret_cast<Storage*>(memory);
    const Sequences& list = ragged.sequences;
    int slot = blockIdx.x, head_k = blockIdx.y;
    if constexpr (Config::kDeterministic) {
      const unsigned index = take_ticket(shared, ragged.call);
      slot = index % gridDim.x, head_k = index / gridDim.x;
    }
    Gradients sum;
    {
      const SequenceTile at = tile_of_slot<kTileK, true, Config::kDeterministic>(list, slot);
      const BackwardArguments args = of_sequence<Config>(ragged, at);
      const bool wrong = at.q.too_long || at.k.too_long;
      const UnusedRows unused = unused_rows<kTileK>(at.k, at.tile, wrong);
      if ((wrong || !Config::kAccumulate) && unused.begin < unused.end) {
        const float value = wrong ? kNaN : 0.0f;
        fill_rows<Config::kGradK, Config::kHeadDim>(args.dk, at.sequence, head_k, unused, value);
        fill_rows<Config::kGradV, Config::kHeadDimV>(args.dv, at.sequence, head_k, unused, value);
      }
      if (wrong || at.tile >= divide_up(at.k.length, kTileK)) return;
      const int first_slot = static_cast<int>(device::first_slot<kTileQ>(list.q, at.sequence));
      const Work work = tile_of_sequence<Config>(args.shape, at.sequence, head_k, at.tile);
      Place place(list, at.sequence, first_slot);
      if constexpr (Config::kDeterministic) {
        place.follows = at.tile + 1 < work.tiles_k &&
                        sequence_of_slot<kTileK>(list.k, list.count, slot - 1) == at.sequence;
      }
      walk(sum, shared, args, work, place);
    }
    // Found again: the main loop has no register to keep it.
    if constexpr (!Config::kDeterministic) {
      slot = static_cast<int>(flashlab::ptx::block_index_again()), head_k = blockIdx.y;
    }
    const SequenceTile at = tile_of_slot<kTileK, true, Config::kDeterministic>(list, slot);
    const BackwardArguments args = of_sequence<Config>(ragged, at);
    write(sum, shared, args,
          tile_of_sequence<Config>(args.shape, at.sequence, head_k, at.tile));
  }

  /// The block's dK and dV.
  static __device__ void write(Gradients& sum, Storage& shared, const BackwardArguments& args,
                               const Work& w) {
    using WriterK =
        GradientWriter<Config::kGradK, Config::kHeadDim, Config::kAlignGradK, Config::kAccumulate>;
    using WriterV =
        GradientWriter<Config::kGradV, Config::kHeadDimV, Config::kAlignGradV, Config::kAccumulate>;
    const Warp warp(shared);
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      const int key0 = w.key0 + warp.key() + m * 16;
      const auto row_of = [&](const Rows& rows, int bytes, int r) -> unsigned char* {
        if (key0 + r >= args.shape.seqlen_k) return nullptr;
        return static_cast<unsigned char*>(rows.data) +
               (w.batch * rows.batch_stride + w.head_k * rows.head_stride +
                (key0 + r) * rows.row_stride) *
                   bytes;
      };
      WriterK::write(
          sum.k[m], args.shape.scale * args.dropout.scale, warp.wq * kGradKN * 8, warp.lane,
          [&](int r) { return row_of(args.dk, Config::kGradK == Element::kFp32 ? 4 : 2, r); });
      WriterV::write(
          sum.v[m], keep_scale<Config>(args.dropout), warp.wq * kGradVN * 8, warp.lane,
          [&](int r) { return row_of(args.dv, Config::kGradV == Element::kFp32 ? 4 : 2, r); });
    }
  }
};

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(32 * Config::kWarpsQ * Config::kWarpsK,
                                             Config::kMinBlocks)
    flash_bwd_sm80(const __grid_constant__ flashlab::device::BackwardCall<Config> args) {
  flashlab::device::BackwardKernel<Config>::run(args);
}
