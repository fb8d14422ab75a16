#pragma once

// Which keys the bounds let a query see: pure arithmetic, proved on the host
// (tests/cuda_tile_test.cpp).
//
// Query position i sees key j iff  -left <= j - i <= right  and  0 <= j < seqlen_k,  and with
// kChunk in the chunk of keys that its own lies in.  For a row that is one interval of keys, so a
// score costs two comparisons, and only in tiles that an edge crosses.

#include "arguments.h"
#include "tile/mutation.h"

namespace flashlab::device {

/// Keys [begin, end) of a row, or of all rows of a tile.
struct KeyRange {
  int begin, end;
  constexpr bool contains(int key) const { return key >= begin && key < end; }
};

constexpr int clamp_key(Int64 key, int seqlen_k) {
  return key < 0 ? 0 : (key > seqlen_k ? seqlen_k : static_cast<int>(key));
}

/// Whether a kernel's keys come in chunks.
template <class Config>
constexpr bool has_chunks() {
  return requires {
    Config::kChunk;
  };
}

/// Of such a kernel: which keys lie in a position's chunk, and whose chunk a key lies in.
struct Chunks {
  unsigned size;
  int shift;  ///< from a query's position to its own key
  int keys;   ///< how many there are
  constexpr explicit Chunks(const Shape& shape)
      : size(static_cast<unsigned>(shape.chunk < 0 ? -shape.chunk : shape.chunk)),
        shift(shape.chunk < 0 ? shape.seqlen_k - shape.seqlen_q : 0),
        keys(shape.seqlen_k) {}
  constexpr int begin_of(int key) const {
    return key - static_cast<int>(static_cast<unsigned>(key) % size);
  }
  /// The keys of the chunk that a query position's own key lies in: n size up to (n + 1) size.
  /// Where that key lies before the first one, so does its chunk.
  constexpr KeyRange keys_of(int position) const {
    const int at = position + shift;
    if (at < 0) return {0, 0};
    const int begin = begin_of(at), left = keys - begin;  // keys from there on
    if (left <= 0) return {keys, keys};
    return {begin, static_cast<unsigned>(left) < size ? keys : begin + static_cast<int>(size)};
  }
  /// The first position that may see one of the keys from `key` on, and behind the last one that
  /// may see one of those before `end_key`.
  constexpr Int64 first_position(int key) const { return Int64(begin_of(key)) - shift; }
  constexpr Int64 end_position(int end_key) const {
    const int last = (end_key < keys ? end_key : keys) - 1;
    return last < 0 ? 0 : Int64(begin_of(last)) + size - shift;
  }
  /// Whether some positions and some keys, `rows` and `count` from the first ones on, are all of
  /// one chunk.
  constexpr bool one_chunk(Int64 first, int rows, int key, int count) const {
    return first_position(key + count - 1) <= first && first + rows <= first_position(key) + size;
  }
  /// Whether a position is of the chunk whose first position is `first`.
  constexpr bool has(Int64 first, Int64 position) const {
    return position >= first && position < first + size;
  }
};

/// What a query position sees. The bounds are at most 2^61, so the sums do not overflow.
template <class Config>
constexpr KeyRange visible_keys(const Shape& shape, int position) {
  KeyRange range{0, mutation::keys<Config>(shape.seqlen_k)};
  if constexpr (Config::kBoundedRight) {
    range.end = clamp_key(position + mutation::right<Config>(shape.right) + 1, shape.seqlen_k);
  }
  if constexpr (Config::kBoundedLeft)
    range.begin = clamp_key(position - mutation::left<Config>(shape.left), shape.seqlen_k);
  if constexpr (has_chunks<Config>()) {
    const KeyRange chunk = Chunks(shape).keys_of(position);
    if (chunk.begin > range.begin) range.begin = chunk.begin;
    if (chunk.end < range.end) range.end = chunk.end;
  }
  return range;
}

/// Keys that at least one of the positions [first, last] sees.
template <class Config>
constexpr KeyRange keys_seen_by_any(const Shape& shape, int first, int last) {
  return {visible_keys<Config>(shape, first).begin, visible_keys<Config>(shape, last).end};
}

/// Keys that all of the positions [first, last] see: tiles inside need no masking.
template <class Config>
constexpr KeyRange keys_seen_by_all(const Shape& shape, int first, int last) {
  return {visible_keys<Config>(shape, last).begin, visible_keys<Config>(shape, first).end};
}

}  // namespace flashlab::device
