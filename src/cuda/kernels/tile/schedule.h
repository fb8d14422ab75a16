#pragma once

// In which order the tiles of a ragged call are worked off: those with most keys first, so that
// no long sequence is left for the end. A list of tiles lies in memory, made by schedule/kernel.cu
// from the lengths before each call. Pure arithmetic but for the reading of the list.
//
// Tiles of a sequence that stand beside each other in the list are a run. A run is worked off head
// by head, so that keys and values of a head are read from memory once: entry e of the list stands
// for as many tiles as there are heads, and where the run begins is said in the entry. Where tiles
// of a sequence differ in their keys, one of many keys has three runs, the longer half of its
// tiles, the longer half of the rest, and what is left, and all but the first go rank by rank:
// tiles that come late are short ones. So do those of the last round, whatever their run.

#include "sequence_arguments.h"

namespace flashlab::device {

inline constexpr int kScheduleBuckets = 64;
/// Runs of a sequence of more than kShortKeys keys, and the one of tiles that have no rows.
inline constexpr int kLongRuns = 3, kScheduleRuns = kLongRuns + 1, kRankedFrom = 1;
inline constexpr int kShortKeys = 2048;

/// Where tiles with so many keys stand: four steps of an octave of blocks of 64 keys, the most
/// first, tiles without any at the end.
constexpr int bucket_of(int keys) {
  constexpr int kLast = kScheduleBuckets - 1;
  const int blocks = keys / 64 + (keys % 64 > 0 ? 1 : 0);
  if (blocks <= 0) return kLast;
  int octave = 0;
  while (blocks >> (octave + 1) > 0) ++octave;
  const int quarter = static_cast<int>((static_cast<Int64>(blocks) << 2 >> octave) & 3);
  const int step = 4 * octave + quarter;
  return step < kLast ? kLast - 1 - step : 0;
}

struct TileRun {
  int first, count;
};
/// A run of a sequence with `all` tiles, of which the first `used` have rows, those in `runs` runs.
/// The last run is of tiles that have none.
constexpr TileRun run_of(int used, int all, int runs, int run) {
  if (run == kScheduleRuns - 1) return {used, all > used ? all - used : 0};
  if (run >= runs) return {0, 0};
  const int begin = run == runs - 1 ? 0 : used >> (run + 1);
  return {begin, (used >> run) - begin};
}

/// A tile of one head, in the order of work.
struct OrderedTile {
  int sequence, head, tile;

  /// kLastFirst: of a run the last tiles have most keys.
  template <bool kLastFirst>
  static constexpr OrderedTile of(const ScheduledTile& entry, Int64 index, int heads) {
    const Int64 begin = (index / heads - entry.place) * heads;
    const auto own = static_cast<unsigned>(index - begin);
    const unsigned inner = entry.ranked != 0 ? static_cast<unsigned>(heads) : entry.count;
    const int turn = static_cast<int>(own / inner), rest = static_cast<int>(own % inner);
    const int head = entry.ranked != 0 ? rest : turn, rank = entry.ranked != 0 ? turn : rest;
    const int count = static_cast<int>(entry.count);
    return {entry.sequence, head, entry.first + (kLastFirst ? count - 1 - rank : rank)};
  }
};

}  // namespace flashlab::device
