#pragma once

// Of the decode kernel (kernel.cu): sizes and shared memory.

#include "decode/schedule.h"
#include "decode/tiles.h"
#include "ptx/memory.h"
#include "tile/load.h"
#include "tile/output.h"
#include "tile/swizzle.h"

namespace flashlab::device {

/// Sizes that follow from a Config.
template <class Config>
struct DecodeTiles {
  static constexpr int kTeamThreads = 32 * Config::kRowWarps;
  static constexpr int kThreads = Config::kTeams * kTeamThreads;
  static constexpr int kBlocks = Config::kWarpRows / 16;  ///< of 16 rows, of a warp
  static constexpr int kDimSteps = divide_up(Config::kHeadDim, 16);
  /// The first k16 steps of Q stay in registers; the others are read again for every step of keys.
  static constexpr int kSharedSteps = larger(kDimSteps - Config::kQuerySteps, 0);
  static constexpr int kQuerySteps = kDimSteps - kSharedSteps;
  static constexpr int kDimBlocks = 2 * divide_up(Config::kHeadDimV, 16);  ///< of 8 features of V
  static constexpr int kStepBlocks = Config::kStepKeys / 8;
  static constexpr int kUnitKeys = DecodeSequence<Config>::kUnitKeys;
  using LayoutK = HalfTile<Config::kStepKeys, Config::kHeadDim>;
  using LayoutV = HalfTile<Config::kStepKeys, Config::kHeadDimV>;
  static constexpr int kStageBytes = LayoutK::kBytes + LayoutV::kBytes;
  static constexpr int kPitch = decode_pitch(Config::kHeadDimV);  ///< of a row of sums, in floats
  static_assert(Config::kStepKeys % 16 == 0 && Config::kStepKeys <= 32 && Config::kStages >= 2);
  static_assert(Config::kRows == Config::kRowWarps * Config::kWarpRows);
};

/// Reference, in units of log2, and sum of a row.
struct RowSum {
  float reference, sum;
};

/// Where the block stands, and the segment there: in shared memory, so that the main loop has their
/// registers.
template <class Config>
struct DecodeBlock {
  DecodeWalk<Config> walk;
  DecodeSegment<Config> segment;
  int is_last;
};

template <class Config>
struct alignas(16) DecodeStorage {
  using Tiles = DecodeTiles<Config>;
  unsigned char ring[Config::kTeams][Config::kStages][Tiles::kStageBytes];  ///< K, then V
  float o[Config::kRows][Tiles::kPitch];                                    ///< sums of all teams
  /// Operands of Q that have no register: [row warp, step, block, lane].
  uint4 q[larger(Config::kRowWarps * Tiles::kSharedSteps * Tiles::kBlocks * 32, 1)];
  RowSum of_team[Config::kTeams][Config::kRows];
  RowSum rows[Config::kRows];
  alignas(16) unsigned char block[kDecodeBlockBytes];

  __device__ DecodeBlock<Config>& own_block() {
    static_assert(sizeof(DecodeBlock<Config>) <= kDecodeBlockBytes);
    return *reinterpret_cast<DecodeBlock<Config>*>(block);
  }
};

}  // namespace flashlab::device
