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
// would leave many of these idle, a block has every gridDim.x-th head in turn. Block (x, y) has
// range y of heads x, x + gridDim.x, ...
//
// A tile without a key has a grain all the same, so that somebody writes its results.

#include "decode/launch_arguments.h"
#include "decode/tiles.h"
#include "ptx/warp.h"
#include "tile/key_range.h"
#include "tile/sequence.h"

namespace flashlab::device {

/// A number of an index tensor, or the nearest int where it is none. Lengths, entries and padding
/// are compared with ints: words of 64 bits would take twice the code.
__device__ inline int near_index(const Indices& indices, int n) {
  const int* at = static_cast<const int*>(indices.data) + (static_cast<Int64>(n) << indices.wide);
  const int low = at[0];
  if (indices.wide == 0) return low;
  const int high = at[1], sign = low >> 31;
  return high == sign ? low : (high >> 31) ^ 0x7fffffff;
}
constexpr int clamp_between(int value, int low, int high) {
  return smaller(larger(value, low), high);
}

/// A sequence: its queries, and where its keys lie.
template <class Config>
struct DecodeSequence {
  static constexpr int kUnitKeys = Config::kTeams * Config::kStepKeys;
  int seqlen_q = 0, seqlen_k = 0;
  int first_q = 0;      ///< its first row of q, o and lse
  int padding = 0;      ///< rows of its cache before its first key
  int entry = 0;        ///< of k and v, without pages
  bool wrong = false;   ///< a length or an entry outside of the cache, or of the mask
  KeyRange seen{0, 0};  ///< keys that any of its queries sees

  DecodeSequence() = default;
  __device__ DecodeSequence(const DecodeArguments& args, int sequence) {
    const SequenceSide &q = args.sequences.q, &k = args.sequences.k;
    const KeyCache& cache = args.cache;
    const int rows_q = static_cast<int>(q.rows), rows_k = static_cast<int>(k.rows);
    seqlen_q = rows_q;
    if (q.offsets.data != nullptr) {
      first_q = clamp_between(near_index(q.offsets, sequence), 0, rows_q);
      seqlen_q = larger(clamp_between(near_index(q.offsets, sequence + 1), 0, rows_q) - first_q, 0);
    }
    if (q.used.data != nullptr) {
      seqlen_q = clamp_between(near_index(q.used, sequence), 0, seqlen_q);
    }
    int end = rows_k;
    entry = sequence;
    if (k.used.data != nullptr) end = near_index(k.used, sequence);
    if (cache.padding.data != nullptr) padding = near_index(cache.padding, sequence);
    if (cache.entries.data != nullptr) entry = near_index(cache.entries, sequence);
    wrong = padding < 0 || padding > end || end > rows_k ||
            (cache.table == nullptr &&
             static_cast<unsigned>(entry) >= static_cast<unsigned>(cache.entry_count));
    if constexpr (Config::kMask != MaskTensor::kNone) {  // it ends before the sequence does
      wrong = wrong || seqlen_q > q.most || end - padding > k.most;
    }
    if (wrong) padding = end = 0;
    seqlen_k = end - padding;
    seen = keys_seen_by_any<Config>(shape(args), 0, seqlen_q - 1);
  }

  /// Of its dense call.
  __device__ Shape shape(const DecodeArguments& args) const {
    Shape out = args.call.shape;
    const Int64 shift = args.sequences.bottom_right != 0 ? seqlen_k - seqlen_q : 0;
    out.seqlen_q = seqlen_q;
    out.seqlen_k = seqlen_k;
    out.left = args.sequences.left - shift;
    out.right = args.sequences.right + shift;
    return out;
  }
  /// What lane `lane` has.
  __device__ DecodeSequence of_lane(int lane) const {
    const auto of = [lane](int value) { return __shfl_sync(ptx::kFullMask, value, lane); };
    DecodeSequence out;
    out.seqlen_q = of(seqlen_q);
    out.seqlen_k = of(seqlen_k);
    out.first_q = of(first_q);
    out.padding = of(padding);
    out.entry = of(entry);
    out.wrong = of(wrong ? 1 : 0) != 0;
    out.seen = {of(seen.begin), of(seen.end)};
    return out;
  }

  __device__ int rows(const DecodeArguments& args) const {
    return seqlen_q * args.call.shape.group;
  }
  __device__ int tiles_of_head(const DecodeArguments& args) const {
    return divide_up(rows(args), Config::kRows);
  }
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
struct DecodePlace {
  EqualRanges shares;  ///< of all grains; gridDim.x blocks have one
  int range, at, end;  ///< the block's; its next grain; the first grain behind it
  int sequence;        ///< of the next grain
  int tile, grain;     ///< of the sequence's tiles, of the block's heads; of the tile's grains
};

/// What a block does at once: grains of one tile.
template <class Config>
struct DecodeSegment {
  DecodeSequence<Config> of;  ///< whose tile it is
  int sequence;
  int first_unit, units;        ///< of keys
  int head_k, first_row, rows;  ///< of the tile: rows of the group's heads before and in it
  int parts, part;              ///< of the tile; which one this is
  int first_slot, slot_step;    ///< where sums go: of part 0 one behind where others continue
  int first_behind;             ///< that one, or 0
  int count;                    ///< which count is the tile's
  Divisor group;

  /// Without its place among the parts of its tile. `taken`: grains of the tile, from the place on.
  __device__ DecodeSegment(const DecodeArguments& args, const DecodePlace& place,
                           const DecodeSequence<Config>& own, int taken)
      : of(own), sequence(place.sequence), group(args.parts.group) {
    constexpr int kUnitKeys = DecodeSequence<Config>::kUnitKeys;
    const DecodeParts& all = args.parts;
    const int first = of.first_grain(all) + place.grain;
    const int end = smaller((first + taken) << all.grain_log2, divide_up(of.seen.end, kUnitKeys));
    // What a grain has before the first visible key is left out.
    first_unit = larger(first << all.grain_log2, of.seen.begin / kUnitKeys);
    units = mutation::last_tile<Config>(larger(end - first_unit, 0));
    const int tiles = of.tiles_of_head(args);
    const int of_head = all.heads > 1 ? place.tile / tiles : 0;
    head_k = static_cast<int>(blockIdx.x + of_head * gridDim.x);
    first_row = (place.tile - of_head * tiles) * Config::kRows;
    rows = smaller(of.rows(args) - first_row, Config::kRows);
  }

  /// `grains`: of the tile.
  __device__ void find_parts(const DecodeParts& all, const DecodePlace& place, int grains) {
    const int head = static_cast<int>(blockIdx.x), spread = static_cast<int>(gridDim.x);
    const int begin = place.at - place.grain;
    if (all.fixed != 0) {
      parts = grains;
      part = place.grain;
      first_slot = count = begin * spread + head;
      slot_step = spread;
      first_behind = 0;
    } else {
      int ends[2];  // the ranges of the tile's first and last grain
#pragma unroll 1
      for (int i = 0; i < 2; ++i) {
        const int range = place.shares.of(i == 0 ? begin : begin + grains - 1);
        ends[0] = i == 0 ? range : ends[0];
        ends[1] = range;
      }
      parts = ends[1] - ends[0] + 1;
      part = place.range - ends[0];
      // A block has at most one tile that begins before its range and one that ends behind it.
      count = ends[0] * spread + head;
      first_slot = 2 * count;
      slot_step = 2 * spread;
      first_behind = 1;
    }
  }

  /// Of a row of the tile.
  __device__ int position(int row) const {
    return group.divide(first_row + row).quotient;
  }
  __device__ int head(int row) const {
    return head_k * group.value + group.divide(first_row + row).rest;
  }
  /// Keys that every row of the tile sees.
  __device__ KeyRange seen_by_all(const DecodeArguments& args) const {
    return keys_seen_by_all<Config>(of.shape(args), position(0), position(rows - 1));
  }

  /// Where part n's sums are.
  __device__ int slot_of(int n) const {
    return first_slot + n * slot_step + (n == 0 ? first_behind : 0);
  }
};

/// Hands the segments of a block's range to `work`, one after the other, with a function that finds
/// what the copies of their keys need not wait for. All lanes of a warp call
/// it together, each with every 32nd sequence: first all grains are added up, then the range's
/// first is sought. A block waits for its code, too, so the text of what a sequence has and of what
/// a segment is stands here once.
template <class Config, class Work>
__device__ inline void for_each_segment(const DecodeArguments& args, Work&& work) {
  const int count = args.sequences.count, lane = static_cast<int>(threadIdx.x) % 32;
  const bool lengths = has_lengths(args);
  DecodePlace place{};
  bool known = false;  // what the range is
  int base = 0;        // the first lane's sequence
  int sum = 0;         // grains of the sequences before it
#pragma unroll 1
  for (;;) {
    DecodeSequence<Config> own;
    int of_tile = 1, tiles = 0;
    if (base + lane < count) {
      own = DecodeSequence<Config>(args, base + lane);
      of_tile = own.grains(args.parts);
      tiles = args.parts.heads * own.tiles_of_head(args);
    }
    int before = of_tile * tiles;  // grains of the lanes' sequences up to this one
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) {
      const int other = __shfl_sync(ptx::kFullMask, before, (lane - lanes) & 31);
      if (lane >= lanes) before += other;
    }
    const int all_here = __shfl_sync(ptx::kFullMask, before, 31);
    if (!known) {
      const int each = lengths ? 0 : __shfl_sync(ptx::kFullMask, before, 0);
      sum += all_here;
      base += 32;
      // Only sequences that share queries have more, by offsets that decrease: nothing is done.
      if (static_cast<unsigned>(sum) > static_cast<unsigned>(args.parts.most)) return;
      if (lengths && base < count) continue;
      const int all = lengths ? sum : each * count;
      const int ranges = smaller(static_cast<int>(gridDim.y), all);
      place.range = static_cast<int>(blockIdx.y);
      if (place.range >= ranges) return;
      place.shares = EqualRanges(ranges, all);
      place.at = place.shares.begin(place.range);
      place.end = place.shares.begin(place.range + 1);
      known = true;
      base = sum = 0;
      if (count > 32) {
        if (!lengths) {
          base = place.at / each;
          sum = base * each;
        }
        continue;
      }
    }
#pragma unroll 1
    while (place.at < place.end && place.at - sum < all_here) {
      const int found =
          __ffs(static_cast<int>(__ballot_sync(ptx::kFullMask, sum + before > place.at))) - 1;
      const auto of = [found](int value) { return __shfl_sync(ptx::kFullMask, value, found); };
      const int grains = of(of_tile), all_tiles = of(tiles);
      const int at = place.at - sum - of(before) + grains * all_tiles;  // of the sequence's grains
      place.sequence = base + found;
      place.tile = all_tiles > 1 ? at / grains : 0;
      place.grain = at - place.tile * grains;
      const int taken =
          args.parts.fixed != 0 ? 1 : smaller(grains - place.grain, place.end - place.at);
      DecodeSegment<Config> segment(args, place, own.of_lane(found), taken);
      work(segment, [&] { segment.find_parts(args.parts, place, grains); });
      place.at += taken;
    }
    if (place.at >= place.end) return;
    sum += all_here;
    base += 32;
  }
}

}  // namespace flashlab::device
