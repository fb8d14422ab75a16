#pragma once

// What a block of the main backward kernel works on: its sizes, shared memory and loads. For
// kernel.cu alone: it reads the global Config.

#include "sm80/backward/operands.h"
#include "tile/pipeline.h"
#include "tile/query_walk.h"

namespace flashlab::device {

/// The barrier of a step, between storing P and dS and using those of other warps; threads arrive
/// at it and go on with what they have. Every thread arrives for itself: one lane for its warp,
/// after __syncwarp(), is as fast, but of what the other 31 stored racecheck then reports hazards
/// (compute-sanitizer of CUDA 13.0, H200, 2026-11-21). Without exchange and with two barriers per
/// step it is a block barrier: nothing lies between, and on sm_80 two blocks leave no byte for
/// another.
template <bool kSplit, int kArrivals>
struct StepBarriers {
  PhaseBarrier stored;  ///< every warp has stored its P and dS; its copies have landed
  PhaseBarrier read;    ///< kLoadAfterReading: every warp has read the step's Q and dO

  /// Before the first use of a barrier, and before a block barrier.
  __device__ void init() {
    if (threadIdx.x != 0) return;
    stored.init(kArrivals);
    read.init(kArrivals);
  }
  __device__ void arrive_stored() const { stored.arrive(); }
  __device__ void wait_stored(unsigned parity) const { stored.wait_parity(parity); }
  __device__ void arrive_read() const { read.arrive(); }
  __device__ void wait_read(unsigned parity) const { read.wait_parity(parity); }
};

template <int kArrivals>
struct StepBarriers<false, kArrivals> {
  __device__ void init() {}
  __device__ void arrive_stored() const {}
  __device__ void wait_stored(unsigned) const { __syncthreads(); }
  __device__ void arrive_read() const {}
  __device__ void wait_read(unsigned) const {}
};

/// The arguments of a sequence's dense call, but for the workspace and what
/// the other steps touch.
template <class Config>
__device__ inline BackwardArguments of_sequence(const RaggedBackwardArguments& ragged,
                                                const SequenceTile& at) {
  const Sequences& list = ragged.sequences;
  BackwardArguments args = ragged.call;
  shift_rows<Config::kElement>(args.q, list.q, at.q);
  shift_rows<Config::kElement>(args.k, list.k, at.k);
  shift_rows<Config::kElement>(args.v, list.k, at.k);
  shift_rows<Config::kGradO>(args.d_o, list.q, at.q);
  shift_rows<Config::kGradK>(args.dk, list.k, at.k);
  shift_rows<Config::kGradV>(args.dv, list.k, at.k);
  shape_of_sequence(args.shape, list, at);
  return args;
}

/// Sizes, memory and loads of a block.
template <class Config>
struct BackwardBlock {
  using Sizes = BackwardSizes<Config>;
  using Place = QueryPlace<Config>;
  static constexpr Element kElement = Config::kElement;
  static constexpr int kTileQ = Sizes::kTileQ, kTileK = Config::kTileK;
  static constexpr int kThreads = 32 * Sizes::kWarps;
  static constexpr int kDim = Sizes::kDim, kDimV = padded_dim_v<Config>();
  static constexpr int kWarpKeys = kTileK / Sizes::kWarpsK;
  static constexpr int kWarpQueries = kTileQ / Sizes::kWarpsQ;
  /// Queries of S^T in registers at a time; fewer where an additive mask, or more than one of
  /// softcap, ALiBi and dropout, needs registers too.
  static constexpr bool kFewPairs = Config::kMask == MaskTensor::kAdditive ||
                                    Config::kSoftcap + Config::kAlibi + Config::kDropout > 1;
  static constexpr int kPieceQ = smaller(kFewPairs ? 16 : 32, kWarpQueries);
  static constexpr int kPieces = kWarpQueries / kPieceQ;
  static constexpr int kM = kWarpKeys / 16;
  static constexpr int kN = kPieceQ / 8;
  static constexpr int kKSteps = kPieceQ / 16;
  static constexpr int kGradKN = kDim / Sizes::kWarpsQ / 8;
  static constexpr int kGradVN = kDimV / Sizes::kWarpsQ / 8;
  static constexpr int kPasses = Config::kGradQPasses;  ///< in which a warp computes its part of dQ
  static constexpr int kPassN = Sizes::kGradQN / kPasses;
  static_assert(Sizes::kGradQN % kPasses == 0);
  /// Whether pairs are judged one at a time, before the products' rules.
  static constexpr bool kJudgesPairs = Config::kMask != MaskTensor::kNone || has_chunks<Config>();
  static constexpr bool kExchange = Sizes::kWarpsQ > 1;  ///< P and dS^T of other warps are needed
  // Stages of Q and dO. With one barrier a tile is loaded while its predecessor is in part one and
  // the one before that may still be in part two, which reads Q and dO only when warps exchange; if
  // they do not, a tile takes the place of its second predecessor once every warp has read that.
  static constexpr int kStages = Config::kStages;
  static constexpr int kBuffers = Config::kOneBarrier ? 2 : 1;
  static constexpr bool kLoadAfterReading = Config::kOneBarrier && !kExchange;
  static_assert(!Config::kOneBarrier || kStages >= (kExchange ? 3 : 2));
  static_assert(kWarpKeys % 16 == 0 && kPieceQ % 16 == 0 && kWarpQueries % kPieceQ == 0);
  using TileKey = OperandTile<kTileK, kDim>;
  using TileValue = OperandTile<kTileK, kDimV>;
  using TileQuery = OperandTile<kTileQ, kDim>;
  using TileGradO = OperandTile<kTileQ, kDimV>;
  using TileScores = OperandTile<kTileK, kTileQ>;  ///< P^T or dS^T: a row per key

  struct StorageTiles {
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

  struct Storage : StorageTiles, StepBarriers<kExchange || Config::kOneBarrier, kThreads> {};

  static_assert(sizeof(Storage) == Config::kSharedBytes &&
                Config::kSharedBytes ==
                    shared_bytes(BackwardTiling{kTileQ, kTileK, Sizes::kWarpsQ, Sizes::kWarpsK,
                                                kStages, Config::kOneBarrier, Config::kMinBlocks},
                                 Config::kHeadDim, Config::kHeadDimV, Config::kDimUnit));

  static __device__ Work work_of(const Shape& shape, unsigned index) {
    return tile_of_keys<Config>(shape, index);
  }

  static __device__ void load_keys(Storage& shared, const BackwardArguments& args, const Work& w) {
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

  /// A tile of query rows. Whole tiles go without comparisons: d 256, H200, 2026-11-21: 4 % of the
  /// main kernel.
  template <class Tile, int kWidth, int kAlign>
  static __device__ void load_rows(unsigned char* to, const unsigned char* base, Int64 row_bytes,
                                   int valid) {
    if (valid >= kTileQ) {
      load_tile<Tile, kWidth, 2, kAlign, kThreads>(to, FullRows{base, row_bytes}, threadIdx.x);
    } else {
      load_tile<Tile, kWidth, 2, kAlign, kThreads>(to, DenseRows{base, row_bytes, valid},
                                                   threadIdx.x);
    }
  }

  /// A sequence's arguments are in registers, which have no index.
  static __device__ const void* region_of_rows(const BackwardArguments& args, bool delta) {
    if constexpr (Config::kRagged)
      return delta ? args.regions[kRegionDelta] : args.regions[kRegionLse];
    return args.regions[delta ? kRegionDelta : kRegionLse];
  }

  static __device__ void load_queries(Storage& shared, const BackwardArguments& args, const Work& w,
                                      const Place& place, const Cursor& at, int stage) {
    const Shape& shape = args.shape;
    const int row0 = at.tile * kTileQ, valid = smaller(kTileQ, shape.seqlen_q - row0);
    const Int64 head_index = Place::head_index(shape, w.batch, at.head);
    load_rows<TileQuery, Config::kHeadDim, Config::kAlignQ>(
        shared.q[stage], row_address<kElement>(args.q, w.batch, at.head, row0),
        args.q.row_stride * 2, valid);
    if constexpr (Config::kCopyGradO) {
      const auto* copy = static_cast<const unsigned char*>(args.regions[kRegionGradO]) +
                         place.row(shape, head_index, row0) * kDimV * 2;
      // The copy ends with the last whole chunk of the head dim; the padding is zeros.
      load_rows<TileGradO, round_up(Config::kHeadDimV, 8), 16>(shared.d_o[stage], copy, kDimV * 2,
                                                               valid);
    } else {
      load_rows<TileGradO, Config::kHeadDimV, Config::kAlignGradO>(
          shared.d_o[stage], row_address<kElement>(args.d_o, w.batch, at.head, row0),
          args.d_o.row_stride * 2, valid);
    }
    constexpr int kChunks = kTileQ / 4;
    if (threadIdx.x < 2 * kChunks) {
      const int chunk = threadIdx.x % kChunks * 4;
      const bool second = threadIdx.x >= kChunks;
      const auto* from = static_cast<const float*>(region_of_rows(args, second)) +
                         place.tile(head_index, at.tile) * kTileQ + chunk;
      float* to = second ? shared.delta[stage] : shared.lse2[stage];
      ptx::copy_async_16(ptx::shared_address(to + chunk), from);
    }
  }

  using Visibility = PairVisibility<Config>;
};

}  // namespace flashlab::device
