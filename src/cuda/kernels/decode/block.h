#pragma once

// Of the decode kernel (kernel.cu): sizes and shared memory.

#include "decode/schedule.h"
#include "decode/tiles.h"
#include "ptx/memory.h"
#include "ptx/warpgroup.h"
#include "tile/load.h"
#include "tile/output.h"
#include "tile/pipeline.h"
#include "tile/slab.h"
#include "tile/warpgroup.h"

namespace flashlab::device {

/// Rows as boxes of the copy engine, one behind the other, each of all columns: with pages a box
/// has rows of one page, and one copy brings it whole.
template <int kRows_, int kColumns, int kBoxRows>
struct BoxTile {
  using Box = SlabTile<kBoxRows, kColumns>;
  static constexpr int kRows = kRows_;
  static constexpr int kBytes = kRows / Box::kRows * Box::kBytes;
  static_assert(kRows % Box::kRows == 0);

  /// As SlabTile's.
  static constexpr int offset(int row, int chunk) {
    return row / Box::kRows * Box::kBytes + Box::offset(row % Box::kRows, chunk);
  }
  /// Likewise; both rows lie in one box, or `rows` is whole boxes.
  static constexpr unsigned advance(unsigned address, int rows, int chunks) {
    return Box::advance(address, rows % Box::kRows, chunks) + rows / Box::kRows * Box::kBytes;
  }
};

/// Sizes that follow from a Config.
template <class Config>
struct DecodeTiles {
  static constexpr int kTeamWarps = Config::kTeams * Config::kRowWarps;  ///< of all teams
  static constexpr int kTeamThreads = 32 * kTeamWarps;
  static constexpr bool kBoxes = Config::kBoxRows > 0;
  static constexpr int kCopyWarps = Config::kCopyWarps;
  static constexpr int kThreads = kTeamThreads + 32 * kCopyWarps;
  static constexpr int kBlocks = Config::kWarpRows / 16;  ///< of 16 rows, of a warp
  static constexpr int kDimSteps = divide_up(Config::kHeadDim, 16);
  /// The first k16 steps of Q stay in registers; the others are read again for every step of keys.
  static constexpr int kSharedSteps =
      Config::kWarpgroups ? 0 : larger(kDimSteps - Config::kQuerySteps, 0);
  static constexpr int kQuerySteps = Config::kWarpgroups ? 0 : kDimSteps - kSharedSteps;
  using TileQ = SlabTile<kWarpgroupRows, Config::kHeadDim>;  ///< of a warpgroup: all of Q
  static constexpr int kDimBlocks = 2 * divide_up(Config::kHeadDimV, 16);  ///< of 8 features of V
  static constexpr int kStepBlocks = Config::kStepKeys / 8;
  static constexpr int kUnitKeys = DecodeSequence<Config>::kUnitKeys;
  static constexpr int kBoxRows = kBoxes ? Config::kBoxRows : kUnitKeys;
  template <int kDim>
  using Layout =
      typename Either<kBoxes,
                      typename Either<Config::kSlabsAtOnce, BoxTile<kUnitKeys, kDim, kBoxRows>,
                                      SlabTile<kUnitKeys, kDim>>::Type,
                      HalfTile<kUnitKeys, kDim>>::Type;
  using LayoutK = Layout<Config::kHeadDim>;
  using LayoutV = Layout<Config::kHeadDimV>;
  static constexpr int kStageBytes = LayoutK::kBytes + LayoutV::kBytes;
  static constexpr int kSums = Config::kSums;
  static constexpr int kPitch = decode_pitch(Config::kHeadDimV);  ///< of a row of sums, in floats
  static_assert(Config::kStepKeys % 16 == 0 && Config::kStages >= 2);
  static_assert(!Config::kWarpgroups || (kBoxes && Config::kRows == kWarpgroupRows &&
                                         Config::kStepKeys == 64 && !Config::kSlabsAtOnce));
  static_assert(Config::kRows == Config::kRowWarps * Config::kWarpRows);
};

/// Reference, in units of log2, and sum of a row.
struct RowSum {
  float reference, sum;
};

/// Instead of a segment's units, when there is none.
inline constexpr int kNoSegment = -1;

template <class Config>
struct alignas(16) DecodeStorage {
  using Tiles = DecodeTiles<Config>;
  /// K, then V. Boxes begin at multiples of 1024 bytes.
  unsigned char ring[Config::kStages][Tiles::kStageBytes];
  /// Operands of Q that have no register: [row warp, step, block, lane], or a TileQ.
  uint4 q[Config::kWarpgroups
              ? Tiles::TileQ::kBytes / kChunkBytes
              : larger(Config::kRowWarps * Tiles::kSharedSteps * Tiles::kBlocks * 32, 1)];
  float o[Tiles::kSums][Config::kRows][Tiles::kPitch];  ///< sums of so many teams at once
  RowSum of_team[Config::kTeams][Config::kRows];
  RowSum rows[Config::kRows];
  RingBarriers<Config::kStages> ring_keys;
  RingBarriers<kDecodeSegments> ring_segments;
  alignas(16) unsigned char segments[kDecodeSegments][kDecodeSegmentBytes];
  alignas(16) int is_last;

  /// One of the segments that the block works off.
  __device__ DecodeSegment<Config>& segment(int place) {
    static_assert(sizeof(DecodeSegment<Config>) <= kDecodeSegmentBytes);
    return *reinterpret_cast<DecodeSegment<Config>*>(segments[place]);
  }
};

/// All teams meet; the warps that copy do not.
template <class Config>
__device__ inline void meet_teams() {
  ptx::meet(1, DecodeTiles<Config>::kTeamThreads);
}

}  // namespace flashlab::device
