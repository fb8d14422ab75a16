#pragma once

// Of the Hopper backward kernel (kernel.cu): sizes and shared memory.

#include "sm80/backward/operands.h"
#include "sm90/backward/cursor.h"
#include "sm90/backward/launch_arguments.h"
#include "sm90/backward/tiles.h"
#include "tile/dropped.h"
#include "tile/pipeline.h"
#include "tile/slab.h"
#include "tile/warpgroup.h"

namespace flashlab::device {

/// Sizes that follow from a Config. The order of the dQ accumulator is that of the sm80 kernels,
/// which fill it with zeros and read it in the end: BackwardSizes.
template <class Config>
struct Sm90BackwardTiles {
  using Sizes = BackwardSizes<Config>;
  static constexpr int kDim = Config::kDimUnit, kTileQ = Config::kTileQ, kTileK = Config::kTileK;
  static constexpr int kConsumers = kTileK / kWarpgroupRows;  ///< warpgroups with 64 keys each
  static constexpr int kThreads = (kConsumers + 1) * kWarpgroupThreads;
  static constexpr int kSlabs = kDim / kSlabColumns;
  /// Of the products over features: those beyond the head dims are zeros.
  static constexpr int kDimSteps = round_up(Config::kHeadDim, 16) / 16,
                       kDimStepsV = round_up(Config::kHeadDimV, 16) / 16;
  static constexpr int kQuerySteps = kTileQ / 16, kKeySteps = kTileK / 16;
  static constexpr int kPairs = kTileQ / 2;  ///< a thread's share of S^T or dP^T
  using TileKey = SlabTile<kTileK, kDim>;
  using TileQuery = SlabTile<kTileQ, kDim>;
  using TileScores = SlabTile<kTileK, kTileQ>;  ///< dS^T: a row per key
  /// Consumers share out dQ [kTileQ, kDim] in parts of 64 x 64: of the queries, or of the features.
  static constexpr bool kSplitQueries = kTileQ > kWarpgroupRows;
  static constexpr Sm90BackwardTiling kTiling{
      .key_stages = Config::kKeyStages, .dropout = Config::kDropout, .ragged = Config::kRagged};
  /// Whether blocks take tile of keys after tile of keys.
  static constexpr bool kStays = kTiling.stays();
  /// Places of what is known of tiles of keys, and whether K and V have fewer.
  static constexpr int kPlaces = kTiling.places();
  static constexpr bool kOwnPlaces = kPlaces != Config::kKeyStages;
  /// Whether a warp finds the sequence of each tile of keys; where blocks do not stay, the block.
  static constexpr bool kFinds = Config::kRagged && kStays;
  /// Whether this kernel writes the zeros that dQ is added to, head by head or as its blocks come
  /// to them; else `prepare` does.
  static constexpr bool kWritesZeros = !Config::kRagged && !Config::kAbreast,
                        kClaimsZeros = Config::kAbreast && !Config::kParts;
  /// Whether the heads are counted whose dQ is complete.
  static constexpr bool kCountsDone = !Config::kRagged && !Config::kParts;
  static_assert(!kFinds || !Config::kDropout);
  static_assert(!Config::kParts || (Config::kAbreast && !kStays));
  static_assert(kTileK == 128 && kTileQ * kDim == 128 * 64 && Sizes::kDim == kDim &&
                padded_dim_v<Config>() == kDim);

  /// Where the fragment of rows 16 `row` and columns 8 `column` lies in a tile of the accumulator;
  /// linear in `column` from a multiple of 4 on.
  static constexpr int fragment(int row, int column) {
    const int part = row / Sizes::kGradQM * Sizes::kFeatureParts + column / Sizes::kGradQN;
    return part * (Sizes::kGradQM * Sizes::kGradQN) +
           Sizes::fragment(row % Sizes::kGradQM, column % Sizes::kGradQN);
  }

  /// Registers per thread: what the block is launched with, divided anew (ptx::take_registers).
  static constexpr int kConsumerRegisters = 240, kProducerRegisters = 24;
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static_assert(kConsumers * kConsumerRegisters + kProducerRegisters <=
                (kConsumers + 1) * kLaunchRegisters);
};

/// Which tile of keys a block begins with.
template <class Config>
constexpr int tile_of_block(const KeyOrder& order, int block) {
  return order.tile_at(Config::kParts ? block / order.parts.most : block);
}

/// Behind the regions of every backward: dK and dV of the parts of tiles of keys, in fp32, a place
/// for each block. Sums of a consumer's 64 keys, then of the other's; of each dK, then dV; of each
/// columns by eights, each as threads hold it, four floats a thread.
inline constexpr int kRegionParts = kRegionTurns + 1;

template <class Config>
struct PartSums {
  static constexpr int kColumns = 8, kFloats = 4 * kWarpgroupThreads;
  static constexpr int kUnit = 32;  ///< columns are read by as many: there are whole ones
  static constexpr int kTensorFloats = Config::kDimUnit / kColumns * kFloats;
  static constexpr int kConsumerFloats = 2 * kTensorFloats;
  static constexpr int kPartFloats = Config::kTileK / kWarpgroupRows * kConsumerFloats;
};
template <class Config>
__device__ inline float* part_sums(const BackwardArguments& args, int part) {
  return static_cast<float*>(args.regions[kRegionParts]) +
         Int64(part) * PartSums<Config>::kPartFloats;
}

/// Where blocks stay, what a block hands on of its next tile of keys: the index (tile_of_keys) and
/// whether its tiles of queries come from the last one back.
template <class Config>
struct PlacedTile {
  static constexpr int kBack = 1 << 30;
  int word;
  constexpr PlacedTile(int index, bool back)
      : word(index | (Config::kAbreast && back ? kBack : 0)) {}
  constexpr explicit PlacedTile(int word_) : word(word_) {}
  constexpr unsigned index() const {
    return static_cast<unsigned>(Config::kAbreast ? word & ~kBack : word);
  }
  constexpr bool back() const { return Config::kAbreast && (word & kBack) != 0; }
};

/// The warps of the warpgroup that does not multiply, by what they do; the first and the last are
/// one thread.
enum ProducerWarp { kCopies, kDraws, kZeros, kCounts, kSearches = kZeros };
/// Barriers of the consumers that hardware knows by number; 0 is the block's. A consumer has its
/// turn's at kFirstTurn and its number.
enum NamedBarrier { kRowsCleared = 1, kFirstTurn };

inline constexpr int kScoreStages = 2;  ///< tiles of dS^T: consumers may be a step apart

/// What dropout drops, of the tiles of queries in the ring.
template <class Config, bool kDropout>
struct Sm90DrawnTiles {
  DropoutTile of[Config::kStages];
  DropoutWords words;  ///< of the head that is drawn
};
template <class Config>
struct Sm90DrawnTiles<Config, false> {};

/// Where a sequence of a ragged call begins.
struct SequenceBegins {
  int q, k, v, d_o;  ///< row of the tensor map
  int d_k;           ///< row of dk and dv, within an entry of a batch
  int slot;          ///< of its tiles of queries in the workspace
  int slots;         ///< of these, of a head
};
/// What a block of a ragged call works on.
struct alignas(16) Sm90Sequence {
  Shape shape;  ///< of the sequence's dense call
  Work work;
  SequenceBegins begins;
};
template <bool kRagged, int kPlaces>
struct Sm90SequencePlaces {
  Sm90Sequence sequences[kPlaces];  ///< of each tile of keys
};
template <int kPlaces>
struct Sm90SequencePlaces<false, kPlaces> {};

/// Between the warp that finds tiles of keys and the one that copies: a tile is found when it is
/// asked for.
template <bool kFinds>
struct Sm90FoundTile {
  PhaseBarrier found, wanted;
};
template <>
struct Sm90FoundTile<false> {};

/// Steps that the producer has begun, where the warp that claims zeros keeps ahead of it.
template <bool kCounted>
struct Sm90StepCount {
  volatile int steps_begun;
};
template <>
struct Sm90StepCount<false> {};

template <class Config>
struct Sm90StorageParts : Sm90DrawnTiles<Config, Config::kDropout>,
                          Sm90SequencePlaces<Config::kRagged, Sm90BackwardTiles<Config>::kPlaces>,
                          Sm90FoundTile<Sm90BackwardTiles<Config>::kFinds>,
                          Sm90StepCount<Sm90BackwardTiles<Config>::kClaimsZeros> {};

template <class Config>
struct alignas(kSlabAlignment) Sm90BackwardStorage {
  using Tiles = Sm90BackwardTiles<Config>;
  unsigned char k[Config::kKeyStages][Tiles::TileKey::kBytes],
      v[Config::kKeyStages][Tiles::TileKey::kBytes];
  unsigned char q[Config::kStages][Tiles::TileQuery::kBytes];
  unsigned char d_o[Config::kStages][Tiles::TileQuery::kBytes];
  unsigned char d_s[kScoreStages][Tiles::TileScores::kBytes];
  alignas(128) float lse2[Config::kStages][Tiles::kTileQ];
  alignas(128) float delta[Config::kStages][Tiles::kTileQ];
  RingBarriers<Config::kKeyStages> ring_keys;  ///< K and V of a tile of keys, and `work`
  RingBarriers<Config::kStages> ring_queries;  ///< Q, dO, lse2, delta and draws of a tile
  RingBarriers<kScoreStages> ring_scores;      ///< full: every consumer has stored its dS^T
  alignas(16) Sm90StorageParts<Config> parts;
  int work[Tiles::kPlaces];  ///< of the tile of keys: PlacedTile, -1: no more

  /// Bytes of a tile of queries.
  static constexpr int kQueryBytes = 2 * Tiles::TileQuery::kBytes + 2 * 4 * Tiles::kTileQ;

  /// Lengths and bounds of the tile of keys at a place.
  __device__ const Shape& shape(const BackwardArguments& args, int place) const {
    if constexpr (Config::kRagged) {
      return parts.sequences[place].shape;
    } else {
      return args.shape;
    }
  }

  __device__ SequenceBegins begins(int place) const {
    if constexpr (Config::kRagged) {
      return parts.sequences[place].begins;
    } else {
      return {};
    }
  }

  /// By one thread, before the block's first barrier.
  __device__ void init_barriers() {
    constexpr int kConsumerWarps = Tiles::kConsumers * kWarpgroupThreads / 32;
    constexpr int kDrawingWarps = Config::kDropout;
    constexpr int kZeroingWarps = Tiles::kWritesZeros || Tiles::kClaimsZeros,
                  kCountingThreads = Tiles::kCountsDone;
    // Who looks at tile after tile gives them back, too.
    constexpr int kOthers = Tiles::kStays ? kDrawingWarps + kZeroingWarps + kCountingThreads : 0;
    ring_keys.init(1, kConsumerWarps + kOthers);
    ring_queries.init(1 + 32 * kDrawingWarps, kConsumerWarps * (Config::kDropout ? 32 : 1));
    ring_scores.init(kConsumerWarps, kConsumerWarps);
    if constexpr (Tiles::kClaimsZeros) parts.steps_begun = 0;
    if constexpr (Tiles::kFinds) {
      parts.found.init(1);
      parts.wanted.init(1);
    }
    ptx::barrier_init_fence();
  }
};

}  // namespace flashlab::device
