#pragma once

// Small kernels over what blocks see: keys of a query, queries of a tile of keys.

#include "cuda_primitives.h"

namespace flashlab::testing {

/// What hides keys of a Config; chunks have both bounds, as the planner's.
enum class Hidden { kNothing, kRight, kBoth, kChunks };
constexpr Hidden kHidden[] = {Hidden::kNothing, Hidden::kRight, Hidden::kBoth, Hidden::kChunks};

/// "key_range_right".
inline std::string bounds_name(const char* what, Hidden hidden) {
  constexpr const char* kNames[] = {"unbounded", "right", "both", "chunks"};
  return fmt::format("{}_{}", what, kNames[static_cast<int>(hidden)]);
}
inline std::string bounds_config(Hidden hidden) {
  return fmt::format(
      "struct Config {{\n  static constexpr bool kBoundedRight = {}, kBoundedLeft = {};\n"
      "  static constexpr int kTileQ = 8, kTileK = 16;\n{}"
      "  static constexpr bool kDeterministic = false;\n}};\n",
      hidden >= Hidden::kRight, hidden >= Hidden::kBoth,
      hidden == Hidden::kChunks ? "  static constexpr bool kChunk = true;\n" : "");
}

/// What positions 0 to 63 see, and tiles of 4 positions: six numbers each. `in`: the Shape.
inline Primitive key_range_kernel(Hidden hidden) {
  return primitive(bounds_name("key_range", hidden), bounds_config(hidden), {"tile/key_range.h"},
                   "const Shape* in, int* out", R"(
  const KeyRange one = visible_keys<Config>(*in, t);
  const KeyRange any = keys_seen_by_any<Config>(*in, t, t + 3);
  const KeyRange all = keys_seen_by_all<Config>(*in, t, t + 3);
  int* mine = out + 6 * t;
  mine[0] = one.begin, mine[1] = one.end, mine[2] = any.begin, mine[3] = any.end;
  mine[4] = all.begin, mine[5] = all.end;
)");
}

/// How many numbers a thread of query_walk_kernel leaves.
constexpr int kWalkNumbers = 10;

/// The work of block t: its tile, the first and the last tile of queries on its way, and how the
/// first tile of queries sees it. `in`: the Shape.
inline Primitive query_walk_kernel(Hidden hidden) {
  return primitive(bounds_name("query_walk", hidden), bounds_config(hidden), {"tile/query_walk.h"},
                   "const Shape* in, int* out",
                   fmt::format("  int* mine = out + {} * t;\n", kWalkNumbers) + R"(
  const Work work = tile_of_keys<Config>(*in, t);
  Cursor at(work, *in);
  const PairVisibility<Config> visibility(*in);
  mine[0] = work.batch, mine[1] = work.head_k, mine[2] = work.key0;
  mine[3] = tile_of_sequence<Config>(*in, work.batch, work.head_k, work.tile).per_head();
  mine[4] = at.head, mine[5] = at.tile;
  for (; at.left > 1;) at.next(work);
  mine[6] = at.head, mine[7] = at.tile;
  const int query = work.first_tile * Config::kTileQ;
  mine[8] = visibility.sees(query, work.key0);
  mine[9] = visibility.sees_all(query, Config::kTileQ, work.key0, Config::kTileK) +
            2 * visibility.sees_none(query, Config::kTileQ, work.key0, Config::kTileK) +
            4 * (visibility.clamp_bound(in->right) == clamp_to(in->right, 0x7fffffff));
)");
}

/// Slots of tiles of 8 rows that sequence_kernel looks at, and how many numbers each leaves.
constexpr int kSequenceSlots = 11, kSequenceNumbers = 17;

/// What slots of a ragged batch are. `in`: count, rows, offsets, used rows, all int64. Behind the
/// slots' numbers two filled tensors: 8 scalars, and 8 rows of 3; then the rows of all keys,
/// four numbers of each sequence in each of two caches, and what tiles have there.
inline Primitive sequence_kernel() {
  return primitive("sequence_slots", "struct Config {};", {"tile/sequence.h"},
                   "const Int64* in, int* out",
                   fmt::format("  constexpr int kSlots = {}, kNumbers = {};\n", kSequenceSlots,
                               kSequenceNumbers) +
                       R"(
  const int count = static_cast<int>(in[0]);
  const Sequences list{{{in + 2, 1}, {in + 3 + count, 1}, in[1], 20},
                       {{nullptr, 0}, {nullptr, 0}, 9, 5}, kSlots, 0, count, 1, 7, 3};
  int visits[kSlots] = {};
  for_each_query_slot<8>(list, 2, [&](const SequenceTile& at, int slot, int head) {
    visits[slot] += 10 * head + at.tile + 1;
  });
  for (int slot = 0; slot < kSlots; ++slot) {
    const SequenceTile at = tile_of_slot<8, false, false>(list, slot);
    const SequenceTile last_first = tile_of_slot<8, false, true>(list, slot);
    const UnusedRows unused = unused_rows<8>(at.q, at.tile, false);
    Shape shape{};
    shape_of_sequence(shape, list, at);
    RowScalars scalars{out, 0, 0, 2};
    Rows rows{out, 0, 3, 0};
    shift_rows(scalars, list.q, at.q);
    shift_rows<Element::kFp16>(rows, list.q, at.q);
    const int numbers[kNumbers] = {
        at.sequence, at.tile, last_first.tile, at.q.first, at.q.room, at.q.length,
        at.q.too_long + 2 * at.k.too_long, unused.begin, unused.end, shape.seqlen_q,
        shape.seqlen_k, static_cast<int>(shape.left), static_cast<int>(shape.right),
        static_cast<int>(static_cast<int*>(scalars.data) - out),
        static_cast<int>(static_cast<unsigned char*>(rows.data) -
                         reinterpret_cast<unsigned char*>(out)),
        static_cast<int>(next_slot_with_rows<8>(list.q, count, kSlots, at.sequence)),
        visits[slot]};
    for (int i = t; i < kNumbers; i += 32) out[slot * kNumbers + i] = numbers[i];
  }
  int* const filled = out + kSlots * kNumbers;
  fill_rows(RowScalars{filled, 0, 0, 1}, 1, 1, {2, 5}, 1.0f);
  fill_rows<Element::kFp32, 3>(Rows{filled + 8, 0, 3, 0}, 1, 1, {3, 8}, 2.0f);
  if (t > 0) return;
  int* of_caches = out + kSlots * kNumbers + 32;
  *of_caches++ = static_cast<int>(rows_of_all(list.k, count));
  const SequenceSide side{{nullptr, 0}, list.q.used, 20, 0};
  const KeyCache padded{list.q.offsets, list.q.offsets, nullptr, 0, 5, 1, 1};
  const KeyCache whole{{}, {}, nullptr, 0, 3, 1, 1};
  for (int n = 0; n < 2 * count; ++n) {
    const CachedRows rows = cached_rows(side, n < count ? padded : whole, n % count);
    *of_caches++ = static_cast<int>(rows.entry);
    *of_caches++ = rows.padding;
    *of_caches++ = rows.length;
    *of_caches++ = rows.wrong;
  }
  Sequences cached = list;
  cached.k = side;
  cached.k.most = 8;
  for (int n = -1; n <= count; ++n) {
    const SequenceRows keys = cached_keys(cached, whole, n);
    *of_caches++ = keys.length + 100 * keys.too_long;
    if (n < 0 || n == count) continue;
    const CachedPlace place = cached_place(cached, padded, n);
    *of_caches++ = static_cast<int>(place.entry) + 100 * place.padding + 1000 * place.page_size;
  }
)");
}

}  // namespace flashlab::testing
