#pragma once

// Which tile of which sequence a block of a ragged call has.
//
// Lengths lie on the device, so the host launches as many blocks as any lengths could need: slots.
// With offsets c[0..n] of the sequences' rows, sequence b has the slots from
//
//     start(b) = c[b] / tile + b + 1
//
// on. Because floor(x + y) >= floor(x) + floor(y), and one is added, start(b + 1) - start(b) is at
// least the number of its tiles, and slots before start(0) and behind start(n) cover the rows that
// lie before the first sequence and behind the last. No kernel has to count tiles beforehand: a
// warp finds its sequence among n by 32-ary search. Offsets that decrease or leave the tensor are
// clamped: what such sequences get is unspecified, and nothing outside is read or written.

#include "config_types.h"
#include "ptx/warp.h"
#include "sequence_arguments.h"
#include "tile/mask.h"
#include "tile/output.h"

namespace flashlab::device {

template <bool kFirst, class First, class Second>
struct Either {
  using Type = First;
};
template <class First, class Second>
struct Either<false, First, Second> {
  using Type = Second;
};

/// What a kernel of a dense or a ragged call is launched with.
template <bool kRagged, class Dense, class Ragged>
using ArgumentsOf = typename Either<kRagged, Ragged, Dense>::Type;
template <class Config>
using ForwardCall = ArgumentsOf<Config::kRagged, ForwardArguments, RaggedForwardArguments>;
template <class Config>
using BackwardCall = ArgumentsOf<Config::kRagged, BackwardArguments, RaggedBackwardArguments>;

/// What a sequence gets that is longer than its mask.
inline constexpr float kNaN = __builtin_bit_cast(float, 0x7fc00000u);

constexpr Int64 clamp_index(Int64 value, Int64 low, Int64 high) {
  return value < low ? low : (value > high ? high : value);
}

__device__ inline Int64 index_at(const Indices& indices, int n) {
  return indices.wide != 0 ? static_cast<const Int64*>(indices.data)[n]
                           : static_cast<const int*>(indices.data)[n];
}

/// Where sequence n begins, counted over the whole batch; n == count: where the last one ends.
__device__ inline Int64 offset_of(const SequenceSide& side, int n) {
  if (side.offsets.data == nullptr) return n * side.rows;
  return clamp_index(index_at(side.offsets, n), 0, side.rows);
}

/// Rows of the whole batch.
__device__ inline Int64 rows_of_all(const SequenceSide& side, int count) {
  return side.offsets.data != nullptr ? side.rows : count * side.rows;
}

/// Rows of one sequence.
struct SequenceRows {
  int first;      ///< in its tensor, or in its entry of the batch
  int room;       ///< up to the next one
  int length;     ///< that it has
  bool too_long;  ///< for the mask
};

/// `sequence` -1 and count: what lies before the first and behind the last.
__device__ inline SequenceRows rows_of(const SequenceSide& side, int sequence, int count) {
  const bool packed = side.offsets.data != nullptr;
  if (sequence < 0 || sequence >= count) {
    if (!packed) return {0, 0, 0, false};
    const Int64 edge = offset_of(side, sequence < 0 ? 0 : count);
    return sequence < 0
               ? SequenceRows{0, static_cast<int>(edge), 0, false}
               : SequenceRows{static_cast<int>(edge), static_cast<int>(side.rows - edge), 0, false};
  }
  const Int64 begin = packed ? offset_of(side, sequence) : 0;
  const Int64 end = packed ? offset_of(side, sequence + 1) : side.rows;
  const int room = end > begin ? static_cast<int>(end - begin) : 0;
  int length = room;
  if (side.used.data != nullptr) {
    length = static_cast<int>(clamp_index(index_at(side.used, sequence), 0, room));
  }
  return {static_cast<int>(begin), room, length, length > side.most};
}

/// A sequence's keys in a cache. One whose length, padding or entry lies outside has none.
struct CachedRows {
  Int64 entry;  ///< of k and v; unused with pages
  int padding;  ///< rows before the first key
  int length;
  bool wrong;
};
__device__ inline CachedRows cached_rows(const SequenceSide& side, const KeyCache& cache,
                                         int sequence) {
  Int64 begin = 0, end = side.rows, entry = sequence;
  if (side.used.data != nullptr) end = index_at(side.used, sequence);
  if (cache.padding.data != nullptr) begin = index_at(cache.padding, sequence);
  if (cache.entries.data != nullptr) entry = index_at(cache.entries, sequence);
  const bool wrong = begin < 0 || begin > end || end > side.rows ||
                     (cache.table == nullptr && (entry < 0 || entry >= cache.entry_count));
  return {entry, wrong ? 0 : static_cast<int>(begin), wrong ? 0 : static_cast<int>(end - begin),
          wrong};
}

/// How many keys a sequence has in a cache, `sequence` -1 and count: none. Where its length,
/// padding or entry is wrong it is too long.
__device__ inline SequenceRows cached_keys(const Sequences& list, const KeyCache& cache,
                                           int sequence) {
  if (sequence < 0 || sequence >= list.count) return {0, 0, 0, false};
  const CachedRows keys = cached_rows(list.k, cache, sequence);
  return {0, 0, keys.length, keys.wrong || keys.length > list.k.most};
}

/// Where a sequence's keys lie, one by one.
struct CachedPlace {
  const int* table;  ///< the sequence's pages; null: none
  Int64 entry;       ///< of k and v, without pages
  Int64 pages;       ///< of k and v
  int padding, page_size;

  /// A key of a head; null where its page lies outside of the cache.
  template <class Number = float>
  __device__ const Number* row(const Rows& rows, Int64 head, int key) const {
    const int at = padding + key;
    const Int64 page = table != nullptr ? table[at / page_size] : entry;
    if (table != nullptr && (page < 0 || page >= pages)) return nullptr;
    const Int64 in_page = table != nullptr ? at % page_size : at;
    return static_cast<const Number*>(rows.data) + page * rows.batch_stride +
           head * rows.head_stride + in_page * rows.row_stride;
  }
};
__device__ inline CachedPlace cached_place(const Sequences& list, const KeyCache& cache,
                                           int sequence) {
  const CachedRows keys = cached_rows(list.k, cache, sequence);
  return {cache.table != nullptr ? cache.table + sequence * cache.table_stride : nullptr,
          keys.entry, cache.pages, keys.padding, cache.page_size};
}

/// The first slot of a sequence; of count: the first one behind the last sequence.
template <int kTile>
__device__ inline Int64 first_slot(const SequenceSide& side, int sequence) {
  return offset_of(side, sequence) / kTile + sequence + 1;
}

/// The last of -1 to count that begins at or before a slot. A whole warp calls it.
template <int kTile>
__device__ inline int sequence_of_slot(const SequenceSide& side, int count, int slot) {
  int low = -1, high = count + 1;  // low begins at or before the slot, high behind it
  while (high - low > 1) {
    const int step = divide_up(high - low, 33);
    const int probe = low + (static_cast<int>(threadIdx.x) % 32 + 1) * step;
    const bool before = probe < high && first_slot<kTile>(side, probe) <= slot;
    const int steps = __popc(__ballot_sync(ptx::kFullMask, before));
    high = smaller(high, low + (steps + 1) * step);
    low += steps * step;
  }
  return low;
}

/// Behind the slots of a sequence: the first slot that has rows, of a sequence or of none, or the
/// end of slots. A whole warp calls it.
template <int kTile>
__device__ inline Int64 next_slot_with_rows(const SequenceSide& side, int count, Int64 slots,
                                            int sequence) {
  if (sequence >= count) return slots;
  const Int64 begin = offset_of(side, sequence + 1);
  int low = sequence + 1, high = count + 1;  // low begins there, high behind it
  while (high - low > 1) {
    const int step = divide_up(high - low, 33);
    const int probe = low + (static_cast<int>(threadIdx.x) % 32 + 1) * step;
    const bool same = probe < high && offset_of(side, probe) <= begin;
    const int steps = __popc(__ballot_sync(ptx::kFullMask, same));
    high = smaller(high, low + (steps + 1) * step);
    low += steps * step;
  }
  const bool none = low == count && (side.offsets.data == nullptr || begin >= side.rows);
  return none ? slots : first_slot<kTile>(side, low);
}

/// The tile of a slot.
struct SequenceTile {
  int sequence;  ///< -1 and count: rows of none
  int slot;      ///< the sequence's first
  int tile;      ///< of the sequence
  SequenceRows q, k;
};

/// kLastFirst: a sequence's last tile has its first slot.
template <int kTile, bool kKeys, bool kLastFirst>
__device__ inline SequenceTile tile_of_slot(const Sequences& list, int slot) {
  const SequenceSide& side = kKeys ? list.k : list.q;
  SequenceTile at;
  at.sequence = sequence_of_slot<kTile>(side, list.count, slot);
  at.slot = at.sequence < 0 ? 0 : static_cast<int>(first_slot<kTile>(side, at.sequence));
  at.q = rows_of(list.q, at.sequence, list.count);
  at.k = rows_of(list.k, at.sequence, list.count);
  at.tile = slot - at.slot;
  if constexpr (kLastFirst) {
    const int tiles = divide_up((kKeys ? at.k : at.q).room, kTile);
    if (at.tile < tiles) at.tile = tiles - 1 - at.tile;
  }
  return at;
}

/// Calls `body` with the tile, its slot and the head, for all slots with rows of queries and all
/// heads, of which blocks take every gridDim.x-th: as many blocks as run at once do not search for
/// each slot without rows. All threads of a block get the same.
template <int kTile, class Body>
__device__ inline void for_each_query_slot(const Sequences& list, int heads, const Body& body) {
  const auto end = static_cast<unsigned>(list.slots_q * heads);
#pragma unroll 1
  for (unsigned place = blockIdx.x; place < end;) {
    const auto slot = static_cast<int>(place / static_cast<unsigned>(heads));
    const SequenceTile at = tile_of_slot<kTile, false, false>(list, slot);
    unsigned behind = place + 1;
    if (at.tile < divide_up(at.q.room, kTile)) {
      body(at, slot, static_cast<int>(place % static_cast<unsigned>(heads)));
    } else {
      const Int64 next =
          next_slot_with_rows<kTile>(list.q, list.count, list.slots_q, at.sequence) * heads;
      if (next > behind) behind = next < end ? static_cast<unsigned>(next) : end;
    }
    place += (behind - place + gridDim.x - 1) / gridDim.x * gridDim.x;
  }
}

/// The rows of a side that this tile has and its sequence does not use, counted from `rows.first`;
/// none where begin >= end. A sequence that is too long for its mask uses none.
struct UnusedRows {
  int begin, end;
};
template <int kTile>
__device__ inline UnusedRows unused_rows(const SequenceRows& rows, int tile, bool none) {
  return {larger(none ? 0 : rows.length, tile * kTile), smaller(rows.room, (tile + 1) * kTile)};
}

/// A tensor whose rows begin with a sequence's.
template <Element kElement>
__device__ inline void shift_rows(Rows& rows, const SequenceSide& side, const SequenceRows& of) {
  if (side.offsets.data == nullptr || rows.data == nullptr) return;
  rows.data = static_cast<unsigned char*>(rows.data) +
              of.first * rows.row_stride * (kElement == Element::kFp32 ? 4 : 2);
}
__device__ inline void shift_rows(RowScalars& rows, const SequenceSide& side,
                                  const SequenceRows& of) {
  if (side.offsets.data == nullptr || rows.data == nullptr) return;
  rows.data = static_cast<float*>(rows.data) + of.first * rows.row_stride;
}

/// The lengths and bounds of a sequence's dense call.
__device__ inline void shape_of_sequence(Shape& shape, const Sequences& list,
                                         const SequenceTile& at) {
  shape.seqlen_q = at.q.length;
  shape.seqlen_k = at.k.length;
  const Int64 shift = list.bottom_right != 0 ? at.k.length - at.q.length : 0;
  shape.left = list.left - shift;
  shape.right = list.right + shift;
}

/// Writes one value to rows [begin, end) of a head, by all threads of the block, or by as many as
/// are named, whose first has a multiple of that.
template <Element kElement, int kWidth, int kThreads = 0>
__device__ inline void fill_rows(const Rows& rows, int batch, int head, UnusedRows which,
                                 float value) {
  constexpr int kPairs = divide_up(kWidth, 2);
  const int count = (which.end - which.begin) * kPairs;
  const int thread = static_cast<int>(kThreads > 0 ? threadIdx.x % kThreads : threadIdx.x);
  const int step = kThreads > 0 ? kThreads : static_cast<int>(blockDim.x);
  for (int i = thread; i < count; i += step) {
    const int column = i % kPairs * 2;
    store_pair<kElement>(row_address<kElement>(rows, batch, head, which.begin + i / kPairs), column,
                         kWidth - column, value, value);
  }
}
template <int kThreads = 0>
__device__ inline void fill_rows(const RowScalars& rows, int batch, int head, UnusedRows which,
                                 float value) {
  if (rows.data == nullptr) return;
  const int thread = static_cast<int>(kThreads > 0 ? threadIdx.x % kThreads : threadIdx.x);
  const int step = kThreads > 0 ? kThreads : static_cast<int>(blockDim.x);
  for (int i = which.begin + thread; i < which.end; i += step) {
    static_cast<float*>(
        rows.data)[batch * rows.batch_stride + head * rows.head_stride + i * rows.row_stride] =
        value;
  }
}

}  // namespace flashlab::device
