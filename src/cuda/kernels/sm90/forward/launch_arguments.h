#pragma once

// What the Hopper forward kernel is launched with: the same text on host and device.

#include "arguments.h"
#include "encoded_tensor_map.h"
#include "sequence_arguments.h"

namespace flashlab::device {

/// In which order tiles of queries are worked off. A tile is rows of one (batch, head); its rank
/// among those of its head is 0 for the one with most keys. Tiles go head by head, so that those
/// under way share K and V in L2, and K and V come from memory all the time. What comes last goes
/// rank by rank, so that a call ends with its shortest tiles: of long calls where a row's last key
/// depends on its position the shortest quarter of all heads, whose keys fit L2, behind a run of
/// the quarter before; of others the last heads. Pure arithmetic, proved on the host
/// (tests/cuda_sm90_forward_test.cpp).
struct TileOrder {
  int tiles_q;  ///< per head
  int heads;    ///< batch * heads_q
  /// Empty rows, whole warpgroups, in front of a head where tiles differ. The first tile has the
  /// fewest keys. Idle warpgroups in the last tile would waste the longest loop.
  int rows_before;
  int long_tiles, long_ranks;  ///< of the first run, and of a head in it
  int middle_ranks;            ///< tiles of a head in the second run
  int ranked_heads;            ///< the last ones, whose other tiles go rank by rank,
  int first_ranked;            ///< from this rank on
  int tiles;                   ///< that one block works off whole: the first of tiles_q * heads
  int* counter;  ///< zero at launch: blocks take tiles as they come; null: in fixed turns

  struct Place {
    int head, rank;
  };
  constexpr Place place(int index) const {
    if (index < long_tiles) return in_run(index, long_ranks, 0);
    index -= long_tiles;
    if (index < heads * middle_ranks) return in_run(index, middle_ranks, long_ranks);
    index -= heads * middle_ranks;
    const int turn = index / ranked_heads;
    return {heads - ranked_heads + index - turn * ranked_heads, first_ranked + turn};
  }
  static constexpr Place in_run(int index, int ranks, int first_rank) {
    const int head = index / ranks;
    return {head, first_rank + index - head * ranks};
  }

  /// All tiles head by head.
  constexpr void go_by_head() {
    long_ranks = tiles_q;
    long_tiles = tiles_q * heads;
    middle_ranks = 0;
  }
  /// The same but for the last heads, whose tiles go rank by rank.
  constexpr void end_by_rank(int last_heads) {
    go_by_head();
    ranked_heads = last_heads;
    long_tiles -= tiles_q * last_heads;
    first_ranked = 0;
  }
  /// The longer half of all heads, the longer half of the rest, and what is left rank by rank.
  constexpr void go_in_runs() {
    long_ranks = tiles_q / 2;
    long_tiles = long_ranks * heads;
    middle_ranks = tiles_q / 4;
    ranked_heads = heads;
    first_ranked = long_ranks + middle_ranks;
  }
};

inline constexpr int kMaxStreamPeriod = 512;

/// The keys of the tiles behind the whole ones, as one row of blocks of keys of which every block
/// of threads takes a range. A tile that an end of a range cuts is computed in parts, each of which
/// has a slot for its O and LSE; flash_fwd_sm90_merge joins them. A tile without keys counts as one
/// block. Pure arithmetic, proved on the host (tests/cuda_sm90_forward_test.cpp).
struct KeyStream {
  int first_tile;  ///< in the order of tiles
  int tiles;       ///< 0: nothing is streamed
  int ranges;
  int each, more;                    ///< blocks of a range; the first `more` have one more
  int period;                        ///< tiles after which `begins` repeats
  float* o;                          ///< [slot, row of the tile, feature], normalised
  float* lse;                        ///< [slot, row of the tile], natural log
  int begins[kMaxStreamPeriod + 1];  ///< blocks before each tile of a period

  constexpr int begin_of_range(int range) const {
    return range * each + (range < more ? range : more);
  }
  constexpr int range_of(int block) const {
    const int in_larger = more * (each + 1);
    return block < in_larger ? block / (each + 1) : more + (block - in_larger) / each;
  }
  constexpr int begin_of_tile(int tile) const {
    return tile / period * begins[period] + begins[tile % period];
  }
  constexpr int tile_of(int block) const {
    const int turn = block / begins[period], rest = block - turn * begins[period];
    int low = 0, high = period;  // begins[low] <= rest < begins[high]
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (begins[middle] <= rest ? low : high) = middle;
    }
    return turn * period + low;
  }
  /// In how many parts a tile is computed, and the slot of the first. Another part's slot lies as
  /// far behind as its range: ranges and tiles both go up from one part to the next.
  constexpr int first_range(int tile) const { return range_of(begin_of_tile(tile)); }
  constexpr int parts(int tile) const {
    return range_of(begin_of_tile(tile + 1) - 1) - first_range(tile) + 1;
  }
  constexpr int slot(int range, int tile) const { return range + tile; }
  constexpr int slots() const { return ranges + tiles; }
};

/// q, k, v of `call` as tensors [batch, heads, seqlen, dim] for copies of boxes of 64 x 64.
struct Sm90ForwardArguments {
  EncodedTensorMap q, k, v;
  ForwardArguments call;
  TileOrder order;
  KeyStream stream;
};

/// A ragged call: `forward` has bounded maps (tile/bounded.h), no order of tiles and no stream.
struct Sm90RaggedForwardArguments {
  Sm90ForwardArguments forward;
  Sequences sequences;
  TileSchedule schedule;
  int between_q, between_k, between_v;  ///< rows from one entry of a batch to the next
};

/// The same with keys in a cache: k and v are its entries or pages. A step's keys come in parts,
/// each of one page; without pages a step is a part.
struct Sm90CachedForwardArguments {
  Sm90RaggedForwardArguments ragged;
  KeyCache cache;
  int part_log2;   ///< rows of a part: a box
  int parts_log2;  ///< of a step: 32 parts at most
};

}  // namespace flashlab::device
