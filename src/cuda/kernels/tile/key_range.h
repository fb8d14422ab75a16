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

/// The keys of the chunk that a query position's own key lies in: n chunk up to (n + 1) chunk.
/// Where that key lies before the first one, so does its chunk.
constexpr KeyRange keys_of_chunk(const Shape& shape, int position) {
  const int at = position + (shape.chunk < 0 ? shape.seqlen_k - shape.seqlen_q : 0);
  if (at < 0) return {0, 0};
  const unsigned size = static_cast<unsigned>(shape.chunk < 0 ? -shape.chunk : shape.chunk);
  const int begin = at - static_cast<int>(static_cast<unsigned>(at) % size);
  const int left = shape.seqlen_k - begin;  // keys from there on
  if (left <= 0) return {shape.seqlen_k, shape.seqlen_k};
  return {begin,
          static_cast<unsigned>(left) < size ? shape.seqlen_k : begin + static_cast<int>(size)};
}

/// What a query position sees. The bounds are at most 2^61, so the sums do not overflow.
template <class Config>
constexpr KeyRange visible_keys(const Shape& shape, int position) {
  KeyRange range{0, mutation::keys<Config>(shape.seqlen_k)};
  if constexpr (Config::kBoundedRight) {
    range.end = clamp_key(position + mutation::right<Config>(shape.right) + 1, shape.seqlen_k);
  }
  if constexpr (Config::kBoundedLeft)
    range.begin = clamp_key(position - mutation::left<Config>(shape.left), shape.seqlen_k);
  if constexpr (requires { Config::kChunk; }) {
    const KeyRange chunk = keys_of_chunk(shape, position);
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
