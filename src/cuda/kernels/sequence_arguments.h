#pragma once

// What kernels of ragged calls are launched with: the same text on host and device.

#include "arguments.h"

namespace flashlab::device {

/// Integers of a call, read when it runs; null where it has none.
struct Indices {
  const void* data;
  int wide;  ///< int64, else int32
};

/// Queries or keys of all sequences.
struct SequenceSide {
  Indices offsets;  ///< [count + 1]; null: each entry of the batch is a sequence
  Indices used;     ///< [count]: rows of each; null: all up to the next one
  Int64 rows;       ///< of the tensor, or of an entry
  int most;         ///< rows that a sequence may have: extent of a mask that lies at its positions
};

/// The list of sequences. Bounds are those around a sequence's own diagonal.
struct Sequences {
  SequenceSide q, k;
  Int64 slots_q, slots_k;  ///< tiles of all sequences at most (tile/sequence.h)
  int count;
  int bottom_right;  ///< the diagonal ends in a sequence's last key
  Int64 left, right;
};

/// Where a sequence's keys lie in k and v.
struct KeyCache {
  Indices entries;     ///< [count]: cache_batch_idx; null: entry b
  Indices padding;     ///< [count]: leftpad_k; null: none
  const int* table;    ///< [count, pages of a sequence]; null: no pages
  Int64 table_stride;  ///< between two sequences
  Int64 entry_count;   ///< of k and v, where there are no pages
  Int64 pages;         ///< of k and v; one where there are none
  int page_size;       ///< rows
};

/// An entry of the list of tiles in the order of work (tile/schedule.h).
struct alignas(16) ScheduledTile {
  int sequence;         ///< -1 and count: rows of none
  int first;            ///< tile of its run
  unsigned count : 31;  ///< tiles of the run
  unsigned ranked : 1;  ///< it is worked off rank by rank, not head by head
  int place;            ///< in the run
};

/// The list: of `capacity` entries, which no lengths exceed.
struct TileSchedule {
  ScheduledTile* tiles;
  int* header;  ///< entries, and a counter of tiles that are taken
  int capacity;
};

struct ScheduleArguments {
  Sequences sequences;
  TileSchedule schedule;
  int tile_rows;
  int round;    ///< entries of the list that all multiprocessors work on at a time
  int unequal;  ///< tiles of a sequence differ in their keys: the last ones have most
};

/// Packed tensors [total, heads, dim] have a batch stride of 0.
struct RaggedForwardArguments {
  ForwardArguments call;
  Sequences sequences;
  TileSchedule schedule;
  KeyCache cache;  ///< of a Config with kCached
};

struct RaggedBackwardArguments {
  BackwardArguments call;
  Sequences sequences;
};

}  // namespace flashlab::device
