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
//   part one   S^T, dP^T, P, dS | own queries: dV, dK from registers | P, dS -> shared memory
//   barrier
//   part two   dV, dK of the other warps' queries from shared memory | dQ -> red
//
// S is computed transposed so that P^T and dS^T, as they leave the tensor cores, are the left
// operands of dV and dK. With kOneBarrier part two of a step runs beside part one of the next: the
// products of one warp cover the exponentials of another.

#include "ptx/atomic.h"
#include "ptx/math.h"
#include "sm80/backward_tiles.h"

namespace flashlab::device {

using Sizes = BackwardSizes<Config>;
constexpr Element kElement = Config::kElement;
constexpr int kTileQ = Sizes::kTileQ, kTileK = Sizes::kTileK;
constexpr int kThreads = 32 * Sizes::kWarps;
constexpr int kDim = Sizes::kDim, kDimV = Sizes::kDimV;

constexpr int kWarpKeys = kTileK / Sizes::kWarpsK;
constexpr int kWarpQueries = kTileQ / Sizes::kWarpsQ;
constexpr int kPieceQ = smaller(32, kWarpQueries);  ///< queries of S^T in registers at a time
constexpr int kPieces = kWarpQueries / kPieceQ;
constexpr int kM = kWarpKeys / 16;
constexpr int kN = kPieceQ / 8;
constexpr int kKSteps = kPieceQ / 16;
constexpr int kGradKN = kDim / Sizes::kWarpsQ / 8;
constexpr int kGradVN = kDimV / Sizes::kWarpsQ / 8;
constexpr bool kExchange = Sizes::kWarpsQ > 1;  ///< P and dS^T of other warps are needed

// Stages of Q and dO. With one barrier a tile is loaded while its predecessor is in part one and
// the one before that may still be in part two, which reads Q and dO only when warps exchange.
constexpr int kStages = Config::kStages;
constexpr int kBuffers = Config::kOneBarrier ? 2 : 1;
static_assert(!Config::kOneBarrier || kStages >= (kExchange ? 3 : 2));
static_assert(kWarpKeys % 16 == 0 && kPieceQ % 16 == 0 && kWarpQueries % kPieceQ == 0);

using TileKey = OperandTile<kTileK, kDim>;
using TileValue = OperandTile<kTileK, kDimV>;
using TileQuery = OperandTile<kTileQ, kDim>;
using TileGradO = OperandTile<kTileQ, kDimV>;
using TileScores = OperandTile<kTileK, kTileQ>;  ///< P^T or dS^T: a row per key

struct Storage {
  alignas(128) unsigned char k[TileKey::kBytes];
  alignas(128) unsigned char v[TileValue::kBytes];
  alignas(128) unsigned char q[kStages][TileQuery::kBytes];
  alignas(128) unsigned char d_o[kStages][TileGradO::kBytes];
  /// dS^T of each buffer, then P^T of each where warps exchange them.
  alignas(128) unsigned char scores[kExchange ? 2 * kBuffers : kBuffers][TileScores::kBytes];
  alignas(128) float lse2[kStages][kTileQ];
  alignas(128) float delta[kStages][kTileQ];

  __device__ unsigned char* d_s(int buffer) { return scores[buffer]; }
  __device__ unsigned char* p(int buffer) { return scores[kBuffers + buffer]; }
};
static_assert(sizeof(Storage) == Config::kSharedBytes);

/// What a block works on: a tile of keys of one key head.
struct Work {
  int batch, head_k, tile, key0;
  int first_tile, end_tile;  ///< tiles of queries that see a key of the tile
  int tiles_q, tiles_k;
  __device__ int per_head() const { return larger(end_tile - first_tile, 0); }
};

/// Into [0, limit].
__device__ inline int clamp_to(Int64 value, int limit) {
  return value < 0 ? 0 : (value > limit ? limit : static_cast<int>(value));
}

__device__ inline Work work_of(const Shape& shape, unsigned index) {
  Work w;
  w.tiles_q = (shape.seqlen_q + kTileQ - 1) / kTileQ;
  w.tiles_k = (shape.seqlen_k + kTileK - 1) / kTileK;
  // Ascending tiles are longest first when the mask is causal. In a fixed order of additions the
  // last tile goes first: it is the first contributor of the queries it begins with.
  w.tile = index % w.tiles_k;
  if constexpr (Config::kDeterministic) w.tile = w.tiles_k - 1 - w.tile;
  const int head_index = index / w.tiles_k;
  w.batch = head_index / shape.heads_k, w.head_k = head_index % shape.heads_k;
  w.key0 = w.tile * kTileK;
  w.first_tile = 0, w.end_tile = w.tiles_q;
  if constexpr (Config::kBoundedRight) {
    const Int64 first = w.key0 - shape.right;
    w.first_tile = clamp_to(first > 0 ? first / kTileQ : 0, w.tiles_q);
  }
  if constexpr (Config::kBoundedLeft) {
    const Int64 end = Int64(w.key0) + kTileK + shape.left;
    w.end_tile = (clamp_to(end, shape.seqlen_q) + kTileQ - 1) / kTileQ;
  }
  return w;
}

/// The stream of query tiles: of every head of the group, in order.
struct Cursor {
  int head, tile, left;
  __device__ Cursor(const Work& w, const Shape& shape)
      : head(w.head_k * shape.group), tile(w.first_tile), left(w.per_head() * shape.group) {}
  __device__ void next(const Work& w) {
    --left;
    if (++tile == w.end_tile) tile = w.first_tile, ++head;
  }
};

__device__ inline void load_keys(Storage& shared, const BackwardArguments& args, const Work& w) {
  const int valid = smaller(kTileK, args.shape.seqlen_k - w.key0);
  load_tile<TileKey, Config::kHeadDim, 2, Config::kAlignK, kThreads>(
      shared.k,
      DenseRows{row_address<kElement>(args.k, w.batch, w.head_k, w.key0), args.k.row_stride * 2,
                valid},
      threadIdx.x);
  load_tile<TileValue, Config::kHeadDimV, 2, Config::kAlignV, kThreads>(
      shared.v,
      DenseRows{row_address<kElement>(args.v, w.batch, w.head_k, w.key0), args.v.row_stride * 2,
                valid},
      threadIdx.x);
}

__device__ inline void load_queries(Storage& shared, const BackwardArguments& args, const Work& w,
                                    const Cursor& at, int stage) {
  const Shape& shape = args.shape;
  const int row0 = at.tile * kTileQ, valid = smaller(kTileQ, shape.seqlen_q - row0);
  const Int64 head_index = Int64(w.batch) * shape.heads_q + at.head;
  load_tile<TileQuery, Config::kHeadDim, 2, Config::kAlignQ, kThreads>(
      shared.q[stage],
      DenseRows{row_address<kElement>(args.q, w.batch, at.head, row0), args.q.row_stride * 2,
                valid},
      threadIdx.x);
  if constexpr (Config::kCopyGradO) {
    const auto* copy = static_cast<const unsigned char*>(args.regions[kRegionGradO]) +
                       (head_index * shape.seqlen_q + row0) * kDimV * 2;
    load_tile<TileGradO, kDimV, 2, 16, kThreads>(shared.d_o[stage],
                                                 DenseRows{copy, kDimV * 2, valid}, threadIdx.x);
  } else {
    load_tile<TileGradO, Config::kHeadDimV, 2, Config::kAlignGradO, kThreads>(
        shared.d_o[stage],
        DenseRows{row_address<kElement>(args.d_o, w.batch, at.head, row0), args.d_o.row_stride * 2,
                  valid},
        threadIdx.x);
  }
  constexpr int kChunks = kTileQ / 4;
  if (threadIdx.x < 2 * kChunks) {
    const int chunk = threadIdx.x % kChunks * 4;
    const bool second = threadIdx.x >= kChunks;
    const auto* from = static_cast<const float*>(args.regions[second ? kRegionDelta : kRegionLse]) +
                       (head_index * w.tiles_q + at.tile) * kTileQ + chunk;
    float* to = second ? shared.delta[stage] : shared.lse2[stage];
    ptx::copy_async_16(ptx::shared_address(to + chunk), from);
  }
}

/// Which pairs of a tile count.
struct Visibility {
  int right, left, seqlen_k;
  __device__ explicit Visibility(const Shape& shape)
      : right(static_cast<int>(clamp_bound(shape.right))),
        left(static_cast<int>(clamp_bound(shape.left))),
        seqlen_k(shape.seqlen_k) {}
  static __device__ Int64 clamp_bound(Int64 bound) {
    constexpr Int64 kFar = 0x7fffffff;
    return bound > kFar ? kFar : (bound < -kFar ? -kFar : bound);
  }
  __device__ bool sees(int query, int key) const {
    bool yes = key < seqlen_k;
    if constexpr (Config::kBoundedRight) yes &= key - query <= right;
    if constexpr (Config::kBoundedLeft) yes &= query - key <= left;
    return yes;
  }
  /// Every pair of these queries and keys.
  __device__ bool sees_all(int query, int queries, int key, int keys) const {
    bool yes = key + keys <= seqlen_k;
    if constexpr (Config::kBoundedRight) yes &= key + keys - 1 - query <= right;
    if constexpr (Config::kBoundedLeft) yes &= query + queries - 1 - key <= left;
    return yes;
  }
  /// No pair of them.
  __device__ bool sees_none(int query, int queries, int key, int keys) const {
    bool none = key >= seqlen_k;
    if constexpr (Config::kBoundedRight) none |= key - (query + queries - 1) > right;
    if constexpr (Config::kBoundedLeft) none |= query - (key + keys - 1) > left;
    return none;
  }
};

/// S^T -> P^T and dP^T -> dS^T in place. kSelect: pairs may be hidden or rows empty; both become
/// exactly 0 there, whatever S and dP hold.
template <bool kSelect>
__device__ inline void differentiate(float (&s)[kM][kN][4], float (&dp)[kM][kN][4],
                                     const float* lse2, const float* delta, float scale_log2,
                                     const Visibility& visibility, const MaskRows<Config>& mask,
                                     int query0, int key0, int lane) {
#pragma unroll
  for (int n = 0; n < kN; ++n) {
    const int column = n * 8 + lane % 4 * 2;
    const float2 rowLse = *reinterpret_cast<const float2*>(lse2 + column);
    const float2 rowDelta = *reinterpret_cast<const float2*>(delta + column);
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float l = i % 2 ? rowLse.y : rowLse.x, d = i % 2 ? rowDelta.y : rowDelta.x;
        bool counts = true;
        float x;
        if constexpr (kSelect) {
          const int query = query0 + column + i % 2, key = key0 + m * 16 + lane / 4 + i / 2 * 8;
          counts = visibility.sees(query, key) && l != kMinusInfinity;
          if constexpr (Config::kMask != MaskTensor::kNone) {
            const float masked =
                counts ? mask.apply(s[m][n][i] * scale_log2, query, key) : kMinusInfinity;
            counts = masked != kMinusInfinity;
            x = masked + l;
          } else {
            x = fmaf(s[m][n][i], scale_log2, l);
          }
        } else {
          x = fmaf(s[m][n][i], scale_log2, l);
        }
        const float p = ptx::exp2_fast(x);
        const float ds = p * (dp[m][n][i] - d);
        s[m][n][i] = counts ? p : 0.0f;
        dp[m][n][i] = counts ? ds : 0.0f;
      }
    }
  }
}

/// Accumulators [keys, queries] to left operands over the queries.
__device__ inline void pack_operand(unsigned (&out)[kM][kKSteps][4], const float (&x)[kM][kN][4]) {
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
__device__ inline void store_scores(unsigned char* tile, const unsigned (&x)[kM][kKSteps][4],
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

/// dV and dK from queries [query, query + kPieceQ) of the tile, the left operands given.
template <class LeftP, class LeftS>
__device__ inline void add_keys(Gradients& sum, const LeftP& p, const LeftS& d_s, unsigned q,
                                unsigned d_o, int query, const Warp& warp) {
  accumulate<kElement, kKSteps>(
      sum.v, p, RightFromColumns<TileGradO>(d_o, query, warp.wq * kGradVN, warp.lane));
  accumulate<kElement, kKSteps>(
      sum.k, d_s, RightFromColumns<TileQuery>(q, query, warp.wq * kGradKN, warp.lane));
}

/// Part one of a step, for one piece of the warp's queries.
__device__ inline void part_one(Gradients& sum, Storage& shared, const Warp& warp, int stage,
                                int buffer, int query, bool select, int tile_query, int tile_key,
                                float scale_log2, const Visibility& visibility,
                                const MaskRows<Config>& mask) {
  const unsigned q = ptx::shared_address(shared.q[stage]);
  const unsigned d_o = ptx::shared_address(shared.d_o[stage]);
  unsigned p[kM][kKSteps][4], d_s[kM][kKSteps][4];
  const int query0 = tile_query + query, key0 = tile_key + warp.key();
  if (select && visibility.sees_none(query0, kPieceQ, key0, kWarpKeys)) {
    const unsigned zero[kM][kKSteps][4] = {};
    store_scores(shared.d_s(buffer), zero, warp.key(), query, warp.lane);
    if constexpr (kExchange) store_scores(shared.p(buffer), zero, warp.key(), query, warp.lane);
    return;
  }
  {
    float s[kM][kN][4] = {}, dp[kM][kN][4] = {};
    accumulate<kElement, kDim / 16>(s, LeftFromRows<TileKey>(warp.k, warp.key(), 0, warp.lane),
                                    RightFromRows<TileQuery>(q, query, 0, warp.lane));
    accumulate<kElement, kDimV / 16>(dp, LeftFromRows<TileValue>(warp.v, warp.key(), 0, warp.lane),
                                     RightFromRows<TileGradO>(d_o, query, 0, warp.lane));
    const float* lse2 = shared.lse2[stage] + query;
    const float* delta = shared.delta[stage] + query;
    if (select) {
      differentiate<true>(s, dp, lse2, delta, scale_log2, visibility, mask, query0, key0,
                          warp.lane);
    } else {
      differentiate<false>(s, dp, lse2, delta, scale_log2, visibility, mask, query0, key0,
                           warp.lane);
    }
    pack_operand(p, s);
    pack_operand(d_s, dp);
  }
  store_scores(shared.d_s(buffer), d_s, warp.key(), query, warp.lane);
  if constexpr (kExchange) store_scores(shared.p(buffer), p, warp.key(), query, warp.lane);
  add_keys(sum, LeftFromRegisters<kM, kKSteps>{p}, LeftFromRegisters<kM, kKSteps>{d_s}, q, d_o,
           query, warp);
}

/// Adds a warp's part of dQ to the accumulator.
__device__ inline void reduce(const float (&acc)[Sizes::kGradQM][Sizes::kGradQN][4],
                              float* accumulator) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* at = accumulator + warp * (Sizes::kGradQM * Sizes::kGradQN * 128) +
              lane * (Config::kVectorReduction ? 4 : 1);
#pragma unroll
  for (int m = 0; m < Sizes::kGradQM; ++m) {
#pragma unroll
    for (int n = 0; n < Sizes::kGradQN; ++n) {
      float* const fragment = at + (m * Sizes::kGradQN + n) * 128;
      const float(&x)[4] = acc[m][n];
      if constexpr (Config::kVectorReduction) {
        ptx::add_global_4(fragment, x[0], x[1], x[2], x[3]);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) ptx::add_global(fragment + i * 32, x[i]);
      }
    }
  }
}

/// Part two of a step: the other warps' queries, then dQ.
__device__ inline void part_two(Gradients& sum, Storage& shared, const Warp& warp, int stage,
                                int buffer, float* accumulator, unsigned* turn, unsigned rank) {
  const unsigned d_s = ptx::shared_address(shared.d_s(buffer));
  if constexpr (kExchange) {
    const unsigned q = ptx::shared_address(shared.q[stage]);
    const unsigned d_o = ptx::shared_address(shared.d_o[stage]);
    const unsigned p = ptx::shared_address(shared.p(buffer));
#pragma unroll
    for (int other = 1; other < Sizes::kWarpsQ; ++other) {
      const int query = (warp.wq ^ other) * kWarpQueries;
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        const int at = query + piece * kPieceQ;
        add_keys(sum, LeftFromRows<TileScores>(p, warp.key(), at / 8, warp.lane),
                 LeftFromRows<TileScores>(d_s, warp.key(), at / 8, warp.lane), q, d_o, at, warp);
      }
    }
  }
  float acc[Sizes::kGradQM][Sizes::kGradQN][4] = {};
  const int index = threadIdx.x / 32;
  const int query = index / Sizes::kFeatureParts * (Sizes::kGradQM * 16);
  const int chunk = index % Sizes::kFeatureParts * Sizes::kGradQN;
  accumulate<kElement, kTileK / 16>(acc, LeftFromColumns<TileScores>(d_s, 0, query / 8, warp.lane),
                                    RightFromColumns<TileKey>(warp.k, 0, chunk, warp.lane));
  if constexpr (Config::kDeterministic) {
    if (threadIdx.x == 0) {
      while (ptx::load_acquire(turn) != rank) {
      }
    }
    __syncthreads();
    reduce(acc, accumulator);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) ptx::store_release(turn, rank + 1);
  } else {
    reduce(acc, accumulator);
  }
}

/// Empty rows give nothing, even if their Q or dO are not finite: they are cleared in shared
/// memory. Every thread sees the same rows, so all agree. Returns whether the tile has one.
__device__ inline bool clear_empty_rows(Storage& shared, int stage) {
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
__device__ inline void walk(Gradients& sum, Storage& shared, const BackwardArguments& args,
                            const Work& w) {
  const Shape& shape = args.shape;
  const Warp warp(shared);
  const Visibility visibility(shape);
  Cursor at(w, shape), ahead = at;
  load_keys(shared, args, w);
  const auto load_next = [&](int stage) {
    if (ahead.left > 0) {
      load_queries(shared, args, w, ahead, stage);
      ahead.next(w);
    }
    ptx::copy_async_commit();
  };
  load_next(0);
  int stage = 0, buffer = 0;
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
    const MaskRows<Config> mask(args.mask, w.batch, at.head);
#pragma unroll 1
    for (int piece = 0; piece < kPieces; ++piece) {
      part_one(sum, shared, warp, stage, buffer, warp.wq * kWarpQueries + piece * kPieceQ, select,
               query0, w.key0, shape.scale_log2, visibility, mask);
    }
    if constexpr (Config::kOneBarrier) ptx::copy_async_wait<0>();
    __syncthreads();
    if constexpr (Config::kOneBarrier) {
      // Free now: the stage that part two of the step before read (exchange), or this step's.
      load_next(kStages == 2 ? stage : (next + 1 == kStages ? 0 : next + 1));
    }
    const Int64 head_index = Int64(w.batch) * shape.heads_q + at.head;
    float* accumulator = static_cast<float*>(args.regions[kRegionGradQ]) +
                         accumulator_tile<Sizes>(head_index, w.tiles_q, at.tile);
    unsigned* turn = nullptr;
    unsigned rank = 0;
    if constexpr (Config::kDeterministic) {
      turn =
          static_cast<unsigned*>(args.regions[kRegionTurns]) + 1 + head_index * w.tiles_q + at.tile;
      // Tiles of keys add in descending order, from the last that this tile of queries sees.
      int last = w.tiles_k - 1;
      if constexpr (Config::kBoundedRight) {
        const Int64 bound = (Int64(at.tile) + 1) * kTileQ - 1 + shape.right;
        last = clamp_to(bound / kTileK, last);
      }
      rank = last - w.tile;
    }
    part_two(sum, shared, warp, stage, buffer, accumulator, turn, rank);
    if constexpr (kStages == 1) {
      __syncthreads();
      load_next(0);
    }
    stage = next;
    if constexpr (Config::kOneBarrier) buffer ^= 1;
  }
  ptx::copy_async_wait<0>();
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(32 * Config::kWarpsQ * Config::kWarpsK,
                                             Config::kMinBlocks)
    flash_bwd_sm80(const __grid_constant__ flashlab::device::BackwardArguments args) {
  using namespace flashlab::device;
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<Storage*>(memory);
  unsigned index = blockIdx.x;
  if constexpr (Config::kDeterministic) {
    // Blocks are numbered as they start, so that one waits only for blocks that run already.
    auto* ticket = reinterpret_cast<unsigned*>(shared.lse2);
    if (threadIdx.x == 0)
      *ticket = atomicAdd(static_cast<unsigned*>(args.regions[kRegionTurns]), 1u);
    __syncthreads();
    index = *ticket;
    __syncthreads();
  }
  const Work w = work_of(args.shape, index);
  Gradients sum;
  walk(sum, shared, args, w);

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
    WriterK::write(sum.k[m], args.shape.scale, warp.wq * kGradKN * 8, warp.lane, [&](int r) {
      return row_of(args.dk, Config::kGradK == Element::kFp32 ? 4 : 2, r);
    });
    WriterV::write(sum.v[m], 1.0f, warp.wq * kGradVN * 8, warp.lane, [&](int r) {
      return row_of(args.dv, Config::kGradV == Element::kFp32 ? 4 : 2, r);
    });
  }
}
