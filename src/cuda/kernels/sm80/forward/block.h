#pragma once

// Of the portable forward kernel (kernel.cu): sizes, shared memory, a block's task, and the copies
// of Q, K and V.

#include "arguments.h"
#include "ptx/memory.h"
#include "sm80/cached_pages.h"
#include "sm80/forward/tiles.h"
#include "tile/key_range.h"
#include "tile/load.h"
#include "tile/mutation.h"
#include "tile/output.h"
#include "tile/pipeline.h"
#include "tile/swizzle.h"

namespace flashlab::device {

/// Sizes that follow from a Config.
template <class Config>
struct ForwardTiles {
  static constexpr int kThreads = 32 * Config::kWarps;
  static constexpr int kTileQ = Config::kWarps * Config::kWarpRows;
  static constexpr int kBlocks = Config::kWarpRows / 16;  ///< of 16 query rows, per warp
  static constexpr int kDimSteps = divide_up(Config::kHeadDim, 16);
  /// The first kQuerySteps k16 steps of Q stay in registers, the others are read again per piece.
  static constexpr int kSharedSteps = larger(kDimSteps - Config::kQuerySteps, 0);
  static constexpr int kQuerySteps = kDimSteps - kSharedSteps;
  /// Of the steps read from shared memory. Unrolled whole, the compiler reads the operands of many
  /// steps ahead and other values lose their registers: masks at head dim 256 spilled 200 bytes.
  static constexpr int kUnrolledSteps = kSharedSteps > 6 ? 4 : larger(kSharedSteps, 1);
  static constexpr int kDimBlocks = 2 * divide_up(Config::kHeadDimV, 16);  ///< of 8 features of V
  static constexpr int kPieceBlocks = Config::kPieceK / 8;
  static constexpr int kPieces = Config::kTileK / Config::kPieceK;  ///< of a tile of keys
  using LayoutQ = HalfTile<kTileQ, Config::kHeadDim>;
  using LayoutK = HalfTile<Config::kTileK, Config::kHeadDim>;
  using LayoutV = HalfTile<Config::kTileK, Config::kHeadDimV>;
  using LayoutO =
      HalfTile<Config::kWarpRows, Config::kHeadDimV>;  ///< one warp's rows, on the way out
  static constexpr int kStagesV = Config::kStages + 1;
  using StageK = StageOf<Config::kStages>;
  using StageV = StageOf<kStagesV>;
  /// How many tiles copying is ahead of reading. With three stages or more one is left over: a warp
  /// may run ahead of the slowest one by a tile before it finds no place to copy to.
  static constexpr int kAhead = larger(Config::kStages - 2, 1);
  /// Q passes through shared memory before V's later stages are filled for the first time.
  static constexpr int kOffsetQ = kAhead * LayoutV::kBytes;
  /// At the end every warp's O passes through.
  static constexpr int kBytesO = Config::kWarps * LayoutO::kBytes;
  static constexpr int kBytesV =
      larger(kBytesO, larger(kStagesV* LayoutV::kBytes, kOffsetQ + LayoutQ::kBytes));
  static_assert(Config::kStages >= 2 && Config::kTileK % Config::kPieceK == 0);
  static_assert(Config::kPieceK % 16 == 0 && Config::kWarpRows % 16 == 0);
};

template <class Config>
struct ForwardStorage {
  using Tiles = ForwardTiles<Config>;
  unsigned char k[Config::kStages * Tiles::LayoutK::kBytes];
  unsigned char v[Tiles::kBytesV];  ///< V's stages; before them Q
  /// Operands of Q that have no register: [warp, step, block, lane].
  uint4 q[larger(Config::kWarps * Tiles::kSharedSteps * Tiles::kBlocks * 32, 1)];
  PhaseBarrier landed[Tiles::kStagesV];    ///< a tile of keys is complete; all threads arrive
  PhaseBarrier released[Config::kStages];  ///< every warp is done with a tile; one lane arrives

  /// Before the first use of a barrier, and before a block barrier.
  __device__ void init_barriers() {
    if (threadIdx.x != 0) return;
#pragma unroll
    for (PhaseBarrier& barrier : landed) barrier.init(Tiles::kThreads);
#pragma unroll
    for (PhaseBarrier& barrier : released) barrier.init(Config::kWarps);
  }
};

/// Whether a kernel's keys lie in a cache.
template <class Config>
constexpr bool has_cached_keys() {
  return requires {
    Config::kCached;
  };
}

/// Where the keys of a task lie in such a kernel: in shared memory, for registers are few.
struct PlaceInCache {
  const CachedPlace* place;
};
struct NoCache {};

/// What of the problem a block does. Rows are positions of one query head or, packed, of all the
/// heads that share a key head: row = position * group + member.
template <class Config>
struct ForwardTask : Either<has_cached_keys<Config>(), PlaceInCache, NoCache>::Type {
  int batch, head_k, head_q;  ///< head_q: of the first member
  int group;                  ///< query heads that share a tile: 1 unless packed
  int first_row, rows;        ///< of the tile; all rows
  int first_tile, tiles;      ///< of keys

  __device__ int position(int row) const { return Config::kPackGroup ? row / group : row; }
  __device__ int head(int row) const { return Config::kPackGroup ? head_q + row % group : head_q; }
  /// Keys that some row, and that every row of [from, from + count) sees.
  __device__ KeyRange seen_by_any(const Shape& shape, int from, int count) const {
    return keys_seen_by_any<Config>(shape, position(from),
                                    position(smaller(from + count, rows) - 1));
  }
  __device__ KeyRange seen_by_all(const Shape& shape, int from, int count) const {
    return keys_seen_by_all<Config>(shape, position(from),
                                    position(smaller(from + count, rows) - 1));
  }

  /// `parts`: of the keys, one per blockIdx.y.
  __device__ ForwardTask(const Shape& shape, int parts) {
    constexpr int kTileQ = ForwardTiles<Config>::kTileQ;
    // As plan.cpp decides: few queries per head share tiles with their group's.
    group = Config::kPackGroup && shape.seqlen_q <= Config::kPackedQueries ? shape.group : 1;
    rows = shape.seqlen_q * group;
    const int heads = shape.heads_q / group;
    const unsigned tiles_q = (rows + kTileQ - 1u) / kTileQ;
    const unsigned index = blockIdx.x / tiles_q;
    unsigned tile_q = blockIdx.x % tiles_q;
    // Causal: the tiles with most keys first, so that the last ones to start are short.
    if constexpr (Config::kBoundedRight) tile_q = tiles_q - 1 - tile_q;
    first_row = tile_q * kTileQ;
    batch = index / heads;
    head_q = index % heads * group;
    head_k = head_q / shape.group;
    find_keys(shape, parts, blockIdx.y);
  }

  /// One tile of a sequence, whole.
  __device__ ForwardTask(const Shape& shape, int sequence, int head, int tile_q)
      : batch(sequence), head_k(head / shape.group), head_q(head), group(1) {
    rows = shape.seqlen_q;
    first_row = tile_q * ForwardTiles<Config>::kTileQ;
    find_keys(shape, 1, 0);
  }

 private:
  __device__ void find_keys(const Shape& shape, int parts, int part) {
    constexpr int kTileQ = ForwardTiles<Config>::kTileQ;
    const KeyRange seen = seen_by_any(shape, first_row, kTileQ);
    first_tile = seen.begin / Config::kTileK;
    int end_tile = mutation::last_tile<Config>(divide_up(seen.end, Config::kTileK));
    if constexpr (Config::kSplit) {
      // The first parts have one tile more where the tiles do not divide.
      const int all = larger(end_tile - first_tile, 0);
      const int each = all / parts, more = all % parts;
      first_tile += part * each + smaller(part, more);
      end_tile = first_tile + each + (part < more ? 1 : 0);
    }
    tiles = larger(end_tile - first_tile, 0);
  }
};

/// Rows of Q for tile/load.h.
template <class Config>
struct QueryRows {
  const Rows& q;
  const ForwardTask<Config>& task;
  __device__ bool exists(int r) const { return task.first_row + r < task.rows; }
  __device__ const unsigned char* row(int r) const {
    const int row = smaller(task.first_row + r, task.rows - 1);
    return row_address<Config::kElement>(q, task.batch, task.head(row), task.position(row));
  }
};

/// Copies K and V tile by tile, in order, into their rings; a tile in as many parts as it has
/// pieces, because a burst of copies would hold up the matrix loads behind it.
template <class Config>
struct KeyValueLoader {
  using Tiles = ForwardTiles<Config>;
  static constexpr int kBytesK = 2 * Config::kHeadDim, kBytesV = 2 * Config::kHeadDimV;
  using CopyK = ThreadCopy<typename Tiles::LayoutK, kBytesK, Config::kAlignK, Tiles::kThreads>;
  using CopyV = ThreadCopy<typename Tiles::LayoutV, kBytesV, Config::kAlignV, Tiles::kThreads>;

  const ForwardArguments& args;
  const ForwardTask<Config>& task;
  ForwardStorage<Config>& shared;
  CopyK copy_k;
  CopyV copy_v;

  __device__ KeyValueLoader(const ForwardArguments& args_, const ForwardTask<Config>& task_,
                            ForwardStorage<Config>& shared_)
      : args(args_),
        task(task_),
        shared(shared_),
        copy_k(first_row(args_.k, task_.first_tile * Config::kTileK), args_.k.row_stride * 2,
               threadIdx.x),
        copy_v(first_row(args_.v, task_.first_tile * Config::kTileK), args_.v.row_stride * 2,
               threadIdx.x) {}

  __device__ const unsigned char* first_row(const Rows& rows, int key) const {
    return row_address<Config::kElement>(rows, task.batch, task.head_k, key);
  }

  template <int kPart, bool kWhole, class Copy>
  __device__ void load(Copy& copy, unsigned char* to, const Rows& rows, int first_key) {
    constexpr int kFirst = Copy::Plan::kPasses * kPart / Tiles::kPieces;
    constexpr int kEnd = Copy::Plan::kPasses * (kPart + 1) / Tiles::kPieces;
    const int valid = args.shape.seqlen_k - first_key;
    if constexpr (has_cached_keys<Config>()) {
      load_cached_passes<typename Copy::TileLayout, Copy::kRowWidth, Copy::kAlignment,
                         Tiles::kThreads, kFirst, kEnd>(
          to, CachedTile{*task.place, rows, task.head_k, first_key, valid}, copy.thread);
    } else if (kWhole || valid >= Config::kTileK) {
      copy.template passes<kFirst, kEnd>(to, rows.row_stride * 2);
    } else {
      copy.template last_passes<kFirst, kEnd>(
          to, DenseRows{first_row(rows, first_key), rows.row_stride * 2, valid});
    }
  }

  /// Starts one part of a tile, if it exists; tiles come in order. K takes the place of the tile
  /// kStages before it, V that of the one before that, which was read one piece longer. kWhole: the
  /// tile exists, with all its keys.
  template <int kPart, bool kWhole = false>
  __device__ void part(unsigned tile) {
    if (!kWhole && tile >= static_cast<unsigned>(task.tiles)) return;
    // The first kStages tiles do not wait: no tile was in their places before.
    if (kPart == 0) {
      shared.released[Tiles::StageK::stage(tile)].wait(Tiles::StageK::phase_before(tile));
    }
    const int first_key = (task.first_tile + static_cast<int>(tile)) * Config::kTileK;
    load<kPart, kWhole>(copy_k, shared.k + Tiles::StageK::stage(tile) * Tiles::LayoutK::kBytes,
                        args.k, first_key);
    // StageV::stage(tile), written out: through the function NVRTC 13.0 orders this loop
    // differently.
    load<kPart, kWhole>(copy_v, shared.v + tile % Tiles::kStagesV * Tiles::LayoutV::kBytes, args.v,
                        first_key);
    if constexpr (kPart + 1 == Tiles::kPieces) {
      const PhaseBarrier& landed = shared.landed[Tiles::StageV::stage(tile)];
      if constexpr (Config::kAlignK >= 4 && Config::kAlignV >= 4) {
        landed.arrive_after_copies();
      } else {
        ptx::copy_async_wait_all();
        landed.arrive();
      }
    }
  }

  __device__ void wait_for(unsigned tile) const {
    shared.landed[Tiles::StageV::stage(tile)].wait(Tiles::StageV::phase(tile));
  }

  /// This warp needs the tile's keys and the previous tile's values no more. One lane arrives for
  /// all: arrivals of each cost this kernel registers (d 128 and 256 spill 24 to 68 bytes, sm_90a,
  /// NVRTC 13.0, 2026-11-21).
  __device__ void release(unsigned tile) const {
    __syncwarp();
    const PhaseBarrier& released = shared.released[Tiles::StageK::stage(tile)];
    if (threadIdx.x % 32 == 0) released.arrive();
  }

  /// The parts from `first` on.
  template <int kPart = 0>
  __device__ void rest(unsigned tile, int first) {
    if (kPart >= first) part<kPart>(tile);
    if constexpr (kPart + 1 < Tiles::kPieces) rest<kPart + 1>(tile, first);
  }
};

}  // namespace flashlab::device
