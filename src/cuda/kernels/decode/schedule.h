#pragma once

// How keys are shared out over blocks, whatever the lengths.
//
// A tile is the rows of a group's heads of one sequence. Its keys are cut into units of kUnitKeys,
// and these into grains, which are never cut: one unit, or, with `deterministic`, kFixedPartKeys.
// All grains of all tiles, one behind the other, are one row, of which every block has an equal
// range: with n grains and r ranges range i begins at floor(i n / r). So a block computes its own
// range, and which blocks have parts of a tile, from two numbers.
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
  __device__ int tiles(int spread) const { return shape.heads_k / spread * tiles_of_head(); }
  __device__ int first_grain(int units_of_grain) const {
    return seen.begin / (kUnitKeys * units_of_grain);
  }
  /// Of each tile.
  __device__ int grains(int units_of_grain) const {
    const int end = divide_up(seen.end, kUnitKeys * units_of_grain);
    return larger(end - first_grain(units_of_grain), 1);
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
  int all;       ///< grains
  int ranges;    ///< of them; `spread` blocks have one
  int at, end;   ///< the next grain, and the first behind the block's range
  int sequence;  ///< of the next grain
  int tile;      ///< of the sequence's, of the block's heads
  int grain;     ///< of the tile

  /// All lanes of a warp make it together.
  __device__ explicit DecodeWalk(const DecodeArguments& args) {
    const int count = args.sequences.count;
    const bool lengths = has_lengths(args);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    Grains each{0, 0};
    if (lengths) {
      all = 0;
#pragma unroll 4
      for (int n = lane; n < count; n += 32) all += Grains(args, n).all();
      for (int lanes = 16; lanes > 0; lanes /= 2) {
        all += __shfl_xor_sync(ptx::kFullMask, all, lanes);
      }
    } else {
      each = Grains(args, 0);
      all = each.all() * count;
    }
    ranges = smaller(static_cast<int>(gridDim.x) / args.parts.spread, all);
    const int range = static_cast<int>(blockIdx.x) / args.parts.spread;
    at = end = sequence = tile = grain = 0;
    if (range >= ranges) return;
    at = begin_of_range(range, ranges, all);
    end = begin_of_range(range + 1, ranges, all);
    int rest = at;
    if (lengths) {
      find(args, lane, rest, each);
    } else {
      sequence = rest / each.all();
      rest -= sequence * each.all();
    }
    tile = rest / each.of_tile;
    grain = rest % each.of_tile;
  }

  __device__ bool done() const {
    return at >= end;
  }

  /// `taken` grains further.
  __device__ void advance(const DecodeArguments& args, const DecodeSequence<Config>& own,
                          int taken) {
    at += taken;
    grain += taken;
    if (grain < own.grains(args.parts.units_of_grain)) return;
    grain = 0;
    if (++tile < own.tiles(args.parts.spread)) return;
    tile = 0;
    do {
      ++sequence;
    } while (!done() && has_lengths(args) && Grains(args, sequence).tiles == 0);
  }

 private:
  /// Of a sequence.
  struct Grains {
    int of_tile, tiles;
    __device__ Grains(int of_tile_, int tiles_) : of_tile(of_tile_), tiles(tiles_) {}
    __device__ Grains(const DecodeArguments& args, int sequence) {
      const DecodeSequence<Config> own(args, sequence);
      of_tile = own.grains(args.parts.units_of_grain);
      tiles = own.tiles(args.parts.spread);
    }
    __device__ int all() const { return of_tile * tiles; }
  };

  /// The sequence of the grain that is `rest` from the first; `rest` becomes its number there.
  __device__ void find(const DecodeArguments& args, int lane, int& rest, Grains& of_sequence) {
    for (int base = 0; base < args.sequences.count; base += 32) {
      const int n = base + lane;
      const Grains own = n < args.sequences.count ? Grains(args, n) : Grains(1, 0);
      int before = own.all();  // of the sequences up to this one
#pragma unroll
      for (int lanes = 1; lanes < 32; lanes *= 2) {
        const int other = __shfl_sync(ptx::kFullMask, before, (lane - lanes) & 31);
        if (lane >= lanes) before += other;
      }
      const unsigned behind = __ballot_sync(ptx::kFullMask, before > rest);
      if (behind != 0) {
        const int found = __ffs(static_cast<int>(behind)) - 1;
        sequence = base + found;
        of_sequence = {__shfl_sync(ptx::kFullMask, own.of_tile, found),
                       __shfl_sync(ptx::kFullMask, own.tiles, found)};
        rest -= __shfl_sync(ptx::kFullMask, before, found) - of_sequence.all();
        return;
      }
      rest -= __shfl_sync(ptx::kFullMask, before, 31);
    }
  }
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

  __device__ DecodeSegment(const DecodeArguments& args, const DecodeWalk<Config>& walk)
      : of(args, walk.sequence), sequence(walk.sequence) {
    const DecodeParts& own = args.parts;
    const int grains = of.grains(own.units_of_grain), taken = take(args, walk, grains);
    const int first = (of.first_grain(own.units_of_grain) + walk.grain) * own.units_of_grain;
    const int end = smaller(first + taken * own.units_of_grain,
                            divide_up(of.seen.end, DecodeSequence<Config>::kUnitKeys));
    // What a grain has before the first visible key is left out.
    first_unit = larger(first, of.seen.begin / DecodeSequence<Config>::kUnitKeys);
    units =
        of.seen.begin < of.seen.end ? mutation::last_tile<Config>(larger(end - first_unit, 0)) : 0;
    const int head = static_cast<int>(blockIdx.x) % own.spread;  // the block's first
    head_k = head + walk.tile / of.tiles_of_head() * own.spread;
    first_row = walk.tile % of.tiles_of_head() * Config::kRows;
    rows = smaller(of.rows() - first_row, Config::kRows);
    const int begin = walk.at - walk.grain;
    if (own.fixed != 0) {
      parts = grains;
      part = walk.grain;
      first_slot = count = begin * own.spread + head;
    } else {
      const int range = range_of_grain(begin, walk.ranges, walk.all);
      parts = range_of_grain(begin + grains - 1, walk.ranges, walk.all) - range + 1;
      part = static_cast<int>(blockIdx.x) / own.spread - range;
      // A block has at most one tile that begins before its range and one that ends behind it.
      count = range * own.spread + head;
      first_slot = 2 * count + 1;
    }
    slot = slot_of(args, part);
  }

  /// Of a row of the tile.
  __device__ int position(int row) const { return (first_row + row) / of.shape.group; }
  __device__ int head(int row) const {
    return head_k * of.shape.group + (first_row + row) % of.shape.group;
  }
  /// Keys that every row of the tile sees.
  __device__ KeyRange seen_by_all() const {
    return keys_seen_by_all<Config>(of.shape, position(0), position(rows - 1));
  }

  /// How many grains of the tile a segment has.
  static __device__ int take(const DecodeArguments& args, const DecodeWalk<Config>& walk,
                             int grains) {
    return args.parts.fixed != 0 ? 1 : smaller(grains - walk.grain, walk.end - walk.at);
  }
  /// Where part n's sums are.
  __device__ int slot_of(const DecodeArguments& args, int n) const {
    if (args.parts.fixed != 0) return first_slot + n * args.parts.spread;
    return n == 0 ? first_slot : first_slot - 1 + 2 * n * args.parts.spread;
  }

  /// To the segment behind the one at `walk`.
  __device__ void pass(const DecodeArguments& args, DecodeWalk<Config>& walk) const {
    walk.advance(args, of, take(args, walk, of.grains(args.parts.units_of_grain)));
  }
};

}  // namespace flashlab::device
