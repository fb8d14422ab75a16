#pragma once

// How keys are shared out over blocks, whatever the lengths.
//
// A tile is the rows of a group's heads of one sequence. Its keys are cut into units of kUnitKeys,
// and these into grains, which are never cut: one unit, or, with `deterministic`, kFixedPartKeys.
// All grains of all tiles, one behind the other, are one row, of which every block has an equal
// range: a block computes its own, and which blocks have parts of a tile, from two numbers.
//
// Heads lie side by side in a token's row of memory, and memory is read fastest a page at a time.
// So as many blocks as there are key heads have the same range, each of a head of its own, and read
// the same tokens at about the same time. With more heads than multiprocessors, or a number that
// would leave many of these idle, a block has every `spread`-th head in turn.
//
// A tile without a key has a grain all the same, so that somebody writes its results.

#include "decode/launch_arguments.h"
#include "decode/tiles.h"
#include "ptx/warp.h"
#include "tile/key_range.h"
#include "tile/sequence.h"

namespace flashlab::device {

/// A sequence: its queries, and where its keys lie.
template <class Config>
struct DecodeSequence {
  static constexpr int kUnitKeys = Config::kTeams * Config::kStepKeys;
  Shape shape;    ///< of its dense call
  KeyRange seen;  ///< keys that any of its queries sees
  int first_q;    ///< its first row of q, o and lse
  int padding;    ///< rows of its cache before its first key
  Int64 entry;    ///< of k and v, without pages
  bool wrong;     ///< a length or an entry outside of the cache

  __device__ DecodeSequence(const DecodeArguments& args, int sequence) : shape(args.call.shape) {
    const SequenceRows q = rows_of(args.sequences.q, sequence, args.sequences.count);
    const CachedRows keys = cached_rows(args.sequences.k, args.cache, sequence);
    wrong = keys.wrong;
    entry = keys.entry;
    padding = keys.padding;
    first_q = q.first;
    shape.seqlen_q = q.length;
    shape.seqlen_k = keys.length;
    const Int64 shift = args.sequences.bottom_right != 0 ? shape.seqlen_k - shape.seqlen_q : 0;
    shape.left = args.sequences.left - shift;
    shape.right = args.sequences.right + shift;
    seen = keys_seen_by_any<Config>(shape, 0, shape.seqlen_q - 1);
  }

  __device__ int rows() const { return shape.seqlen_q * shape.group; }
  __device__ int tiles_of_head() const { return divide_up(rows(), Config::kRows); }
  /// Of a block's heads.
  __device__ int tiles(const DecodeParts& parts) const { return parts.heads * tiles_of_head(); }
  __device__ int first_grain(const DecodeParts& parts) const {
    return seen.begin / kUnitKeys >> parts.grain_log2;
  }
  /// Of each tile.
  __device__ int grains(const DecodeParts& parts) const {
    const int end = divide_up(seen.end, kUnitKeys) + (1 << parts.grain_log2) - 1;
    return larger((end >> parts.grain_log2) - first_grain(parts), 1);
  }
};

/// Whether lengths, and so grains, differ.
__device__ inline bool has_lengths(const DecodeArguments& args) {
  const Sequences& list = args.sequences;
  return list.k.used.data != nullptr || list.q.used.data != nullptr ||
         list.q.offsets.data != nullptr || args.cache.padding.data != nullptr ||
         args.cache.entries.data != nullptr;
}

/// Where a block stands in the row of all grains.
template <class Config>
struct DecodeWalk {
  EqualRanges shares;  ///< of all grains; `spread` blocks have one
  int at, end;         ///< the next grain, and the first behind the block's range
  int sequence;        ///< of the next grain
  int tile;            ///< of the sequence's, of the block's heads
  int grain;           ///< of the tile

  /// All lanes of a warp make it together, each with the lengths of every 32nd sequence. First all
  /// grains are added up, then the range's first is sought. The text of what a sequence has stands
  /// here once: a block waits for its code, too.
  __device__ explicit DecodeWalk(const DecodeArguments& args) {
    const int count = args.sequences.count, lane = static_cast<int>(threadIdx.x) % 32;
    const bool lengths = has_lengths(args);
    at = end = sequence = tile = grain = 0;
    int all = 0;  // grains, once they are known
    Grains own{1, 0};
#pragma unroll 1
    for (int pass = 0; pass < 2; ++pass) {
      int sum = 0;  // of the sequences before `base`
#pragma unroll 1
      for (int base = 0; base < count; base += 32) {
        const int n = base + lane;
        if (pass == 0 || count > 32) {
          own = {1, 0};
          if (n < count) own = Grains(args, n);
        }
        if (!lengths) {
          own = {__shfl_sync(ptx::kFullMask, own.of_tile, 0),
                 __shfl_sync(ptx::kFullMask, own.tiles, 0)};
          sum = own.all() * count;
          break;
        }
        int before = own.all();  // of the page's sequences up to this one
#pragma unroll
        for (int lanes = 1; lanes < 32; lanes *= 2) {
          const int other = __shfl_sync(ptx::kFullMask, before, (lane - lanes) & 31);
          if (lane >= lanes) before += other;
        }
        const unsigned behind = __ballot_sync(ptx::kFullMask, sum + before > at);
        if (pass == 1 && behind != 0) {
          const int found = __ffs(static_cast<int>(behind)) - 1;
          sequence = base + found;
          own = {__shfl_sync(ptx::kFullMask, own.of_tile, found),
                 __shfl_sync(ptx::kFullMask, own.tiles, found)};
          sum += __shfl_sync(ptx::kFullMask, before, found) - own.all();
          break;
        }
        sum += __shfl_sync(ptx::kFullMask, before, 31);
      }
      if (pass == 0) {
        all = sum;
        const int ranges = smaller(static_cast<int>(gridDim.x) / args.parts.spread, all);
        const int range = static_cast<int>(blockIdx.x) / args.parts.spread;
        if (range >= ranges) return;
        shares = EqualRanges(ranges, all);
        at = shares.begin(range);
        end = shares.begin(range + 1);
      } else {
        if (!lengths) {
          sequence = at / own.all();
          sum = sequence * own.all();
        }
        tile = (at - sum) / own.of_tile;
        grain = at - sum - tile * own.of_tile;
      }
    }
  }

  __device__ bool done() const {
    return at >= end;
  }

  /// How many grains of the tile are worked off at once; of a sequence without tiles unused.
  __device__ int taken(const DecodeParts& parts, const DecodeSequence<Config>& own) const {
    return parts.fixed != 0 ? 1 : smaller(own.grains(parts) - grain, end - at);
  }
  /// To what comes behind them, in this sequence or in the next one.
  __device__ void advance(const DecodeParts& parts, const DecodeSequence<Config>& own) {
    if (own.tiles(parts) > 0) {
      const int count = taken(parts, own);
      at += count;
      grain += count;
      if (grain < own.grains(parts)) return;
      grain = 0;
      if (++tile < own.tiles(parts)) return;
      tile = 0;
    }
    ++sequence;
  }

 private:
  /// Of a sequence.
  struct Grains {
    int of_tile, tiles;
    __device__ Grains(int of_tile_, int tiles_) : of_tile(of_tile_), tiles(tiles_) {}
    __device__ Grains(const DecodeArguments& args, int sequence) {
      const DecodeSequence<Config> own(args, sequence);
      of_tile = own.grains(args.parts);
      tiles = own.tiles(args.parts);
    }
    __device__ int all() const { return of_tile * tiles; }
  };
};

/// What a block does at once: grains of one tile.
template <class Config>
struct DecodeSegment {
  DecodeSequence<Config> of;  ///< whose tile it is
  int sequence;
  int first_unit, units;        ///< of keys
  int head_k, first_row, rows;  ///< of the tile: rows of the group's heads before and in it
  int parts, part, slot;        ///< of the tile; which one this is; where its sums go
  int first_slot, count;        ///< of part 0; which count is the tile's

  Divisor group;

  __device__ DecodeSegment(const DecodeArguments& args, const DecodeWalk<Config>& walk,
                           const DecodeSequence<Config>& own)
      : of(own), sequence(walk.sequence), group(args.parts.group) {
    const DecodeParts& all = args.parts;
    const int grains = of.grains(all);
    const int first = of.first_grain(all) + walk.grain;
    const int end = smaller((first + walk.taken(all, own)) << all.grain_log2,
                            divide_up(of.seen.end, DecodeSequence<Config>::kUnitKeys));
    // What a grain has before the first visible key is left out.
    first_unit = larger(first << all.grain_log2, of.seen.begin / DecodeSequence<Config>::kUnitKeys);
    units =
        of.seen.begin < of.seen.end ? mutation::last_tile<Config>(larger(end - first_unit, 0)) : 0;
    const int head = static_cast<int>(blockIdx.x) % all.spread;  // the block's first
    const int tiles = of.tiles_of_head(), of_head = tiles == 1 ? walk.tile : walk.tile / tiles;
    head_k = head + of_head * all.spread;
    first_row = (walk.tile - of_head * tiles) * Config::kRows;
    rows = smaller(of.rows() - first_row, Config::kRows);
    const int begin = walk.at - walk.grain;
    if (all.fixed != 0) {
      parts = grains;
      part = walk.grain;
      first_slot = count = begin * all.spread + head;
    } else {
      const int range = walk.shares.of(begin);
      parts = walk.shares.of(begin + grains - 1) - range + 1;
      part = static_cast<int>(blockIdx.x) / all.spread - range;
      // A block has at most one tile that begins before its range and one that ends behind it.
      count = range * all.spread + head;
      first_slot = 2 * count + 1;
    }
    slot = slot_of(args, part);
  }

  /// Of a row of the tile.
  __device__ int position(int row) const { return group.divide(first_row + row).quotient; }
  __device__ int head(int row) const {
    return head_k * group.value + group.divide(first_row + row).rest;
  }
  /// Keys that every row of the tile sees.
  __device__ KeyRange seen_by_all() const {
    return keys_seen_by_all<Config>(of.shape, position(0), position(rows - 1));
  }

  /// Where part n's sums are.
  __device__ int slot_of(const DecodeArguments& args, int n) const {
    if (args.parts.fixed != 0) return first_slot + n * args.parts.spread;
    return n == 0 ? first_slot : first_slot - 1 + 2 * n * args.parts.spread;
  }
};

}  // namespace flashlab::device
