#pragma once

// Of Hopper's backward for head dims above 128: sizes, which blocks have what, shared memory.

#include "sm80/backward/operands.h"
#include "sm90/backward_wide/launch_arguments.h"
#include "sm90/backward_wide/tiles.h"
#include "tile/pipeline.h"
#include "tile/query_walk.h"
#include "tile/slab.h"
#include "tile/warpgroup.h"

namespace flashlab::device {

/// The workspace regions behind those of BackwardRegion that the first step fills: dQ in fp32 (only
/// where tiles of keys are worked off in several parts) and dS.
enum WideRegion { kRegionPartialQ = kRegionGradQ, kRegionScores };

/// Barriers that hardware knows by number, each of the one consumer that sums over that tile: its
/// empty rows are zeros. 0 is the block's.
enum NamedBarrier { kGradOCleared = 1, kQCleared };

template <class Config>
struct WideTiles {
  static constexpr int kTileQ = Config::kTileQ, kTileK = Config::kTileK;
  static_assert(kTileQ == kWarpgroupRows && kTileK == kWarpgroupRows);
  /// Features of a tile: those beyond the head dims are zeros.
  static constexpr int kDim = round_up(Config::kHeadDim, kSlabColumns),
                       kDimV = round_up(Config::kHeadDimV, kSlabColumns);
  static constexpr int kSteps = 64 / 16;  ///< of a product over a tile's queries or keys
  using TileKey = SlabTile<kTileK, kDim>;
  using TileValue = SlabTile<kTileK, kDimV>;
  using TileQuery = SlabTile<kTileQ, kDim>;
  using TileGradO = SlabTile<kTileQ, kDimV>;
  using TileScores = SlabTile<kTileK, kTileQ>;  ///< dS^T: a row per key
  static constexpr int kPairs = kTileQ / 2;     ///< a thread's share of S^T or dP^T

  /// Registers per thread: what a block is launched with, divided anew (ptx::take_registers).
  static constexpr int kConsumerRegisters = 240, kProducerRegisters = 24;
  static constexpr int kThreads = 3 * kWarpgroupThreads;
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static_assert(2 * kConsumerRegisters + kProducerRegisters <= 3 * kLaunchRegisters);
};

/// The work of a block of the kernel of dK and dV.
template <class Config>
constexpr Work work_of(const Shape& shape, const WidePart& part, int block) {
  const int tiles = (shape.seqlen_k + Config::kTileK - 1) / Config::kTileK;
  const HeadTile at = in_sections(block, part.heads, part.tiles, part.section);
  const int index = (part.first_head + at.head) * tiles + part.first_tile + at.tile;
  return tile_of_keys<Config>(shape, static_cast<unsigned>(index));
}

/// Where a tile of dS^T lies among those of a part: tiles of queries of one tile of keys are
/// neighbours. `head`: of queries, `tile_k`: both counted in the part.
constexpr int score_tile(const WidePart& part, int tiles_q, int head, int tile_k, int tile_q) {
  return (head * part.tiles + tile_k) * tiles_q + tile_q;
}

inline constexpr int kProbabilityStages = 2;  ///< tiles of P^T that one consumer may be ahead

template <class Config>
struct alignas(kSlabAlignment) WideStorage {
  using Tiles = WideTiles<Config>;
  static constexpr int kStages = Config::kStages;
  unsigned char k[Tiles::TileKey::kBytes], v[Tiles::TileValue::kBytes];
  unsigned char q[kStages][Tiles::TileQuery::kBytes], d_o[kStages][Tiles::TileGradO::kBytes];
  unsigned char d_s[Tiles::TileScores::kBytes];  ///< a warp's rows are its own
  /// P^T as its threads hold it: what thread t of one consumer writes thread t of the other reads.
  uint4 p[kProbabilityStages][Tiles::kSteps][kWarpgroupThreads];
  alignas(128) float lse2[kStages][Tiles::kTileQ];
  alignas(128) float delta[kStages][Tiles::kTileQ];
  PhaseBarrier k_full, v_full;
  RingBarriers<kStages> ring_q;    ///< Q and lse2 of a tile
  RingBarriers<kStages> ring_d_o;  ///< dO and delta
  RingBarriers<kProbabilityStages> ring_p;

  /// By one thread, before the block's first barrier.
  __device__ void init_barriers() {
    constexpr int kWarps = kWarpgroupThreads / 32;  // of a consumer
    k_full.init(1);
    v_full.init(1);
    ring_q.init(1, 2 * kWarps);
    ring_d_o.init(1, 2 * kWarps);
    ring_p.init(kWarpgroupThreads, kWarps);
    ptx::barrier_init_fence();
  }
};

}  // namespace flashlab::device
