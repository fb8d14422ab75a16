#pragma once

// Of the backward kernels whose blocks keep a tile of keys: which one a block has, which tiles of
// queries come by, and which of their pairs count: pure arithmetic, proved on the host
// (tests/cuda_tile_test.cpp).

#include "arguments.h"
#include "tile/key_range.h"
#include "tile/mutation.h"
#include "tile/swizzle.h"

namespace flashlab::device {

/// What a block works on: a tile of keys of one key head.
struct Work {
  int batch, head_k, tile, key0;
  int first_tile, end_tile;  ///< tiles of queries that see a key of the tile
  int tiles_q, tiles_k;
  constexpr int per_head() const { return larger(end_tile - first_tile, 0); }
};

/// Into [0, limit].
constexpr int clamp_to(Int64 value, int limit) {
  return value < 0 ? 0 : (value > limit ? limit : static_cast<int>(value));
}

/// The stream of query tiles: of every head of the group, in order.
struct Cursor {
  int head, tile, left;
  constexpr Cursor(const Work& w, const Shape& shape)
      : head(w.head_k * shape.group), tile(w.first_tile), left(w.per_head() * shape.group) {}
  constexpr void next(const Work& w) {
    --left;
    if (++tile == w.end_tile) tile = w.first_tile, ++head;
  }
};

/// How many tiles of keys there are, of all heads.
template <class Config>
constexpr unsigned tiles_of_keys(const Shape& shape) {
  const int tiles = (shape.seqlen_k + Config::kTileK - 1) / Config::kTileK;
  return static_cast<unsigned>(shape.batch * shape.heads_k * tiles);
}

/// What is done with a tile of a key head.
template <class Config>
constexpr void find_queries(Work& w, const Shape& shape) {
  constexpr int kTileQ = Config::kTileQ, kTileK = Config::kTileK;
  w.key0 = w.tile * kTileK;
  w.first_tile = 0, w.end_tile = mutation::last_tile<Config>(w.tiles_q);
  if constexpr (Config::kBoundedRight) {
    const Int64 first = w.key0 - shape.right;
    w.first_tile = clamp_to(first > 0 ? first / kTileQ : 0, w.tiles_q);
  }
  if constexpr (Config::kBoundedLeft) {
    const Int64 end = Int64(w.key0) + kTileK + shape.left;
    w.end_tile = (clamp_to(end, shape.seqlen_q) + kTileQ - 1) / kTileQ;
  }
  if constexpr (has_chunks<Config>()) {
    const Chunks chunks(shape);
    const Int64 first = chunks.first_position(w.key0);
    const Int64 end = chunks.end_position(w.key0 + kTileK);
    w.first_tile = larger(w.first_tile, clamp_to(first > 0 ? first / kTileQ : 0, w.tiles_q));
    w.end_tile = smaller(w.end_tile, (clamp_to(end, shape.seqlen_q) + kTileQ - 1) / kTileQ);
  }
}

/// The work of the block with this index.
template <class Config>
constexpr Work tile_of_keys(const Shape& shape, unsigned index) {
  constexpr int kTileQ = Config::kTileQ, kTileK = Config::kTileK;
  Work w;
  w.tiles_q = (shape.seqlen_q + kTileQ - 1) / kTileQ;
  w.tiles_k = (shape.seqlen_k + kTileK - 1) / kTileK;
  // Ascending tiles are longest first when the mask is causal. In a fixed order of additions the
  // last tile goes first: it is the first contributor of the queries it begins with.
  w.tile = index % w.tiles_k;
  if constexpr (Config::kDeterministic) w.tile = w.tiles_k - 1 - w.tile;
  const int head_index = index / w.tiles_k;
  w.batch = head_index / shape.heads_k, w.head_k = head_index % shape.heads_k;
  find_queries<Config>(w, shape);
  return w;
}

/// The work of a tile of keys of a sequence, whose dense call has this shape.
template <class Config>
constexpr Work tile_of_sequence(const Shape& shape, int sequence, int head_k, int tile) {
  Work w;
  w.batch = sequence, w.head_k = head_k, w.tile = tile;
  w.tiles_q = (shape.seqlen_q + Config::kTileQ - 1) / Config::kTileQ;
  w.tiles_k = (shape.seqlen_k + Config::kTileK - 1) / Config::kTileK;
  find_queries<Config>(w, shape);
  return w;
}

/// The tiles of keys whose stream has a tile of queries: tile_of_keys seen from the other side.
template <class Config>
constexpr KeyRange tiles_seen_by(const Shape& shape, int tile_q) {
  constexpr int kTileQ = Config::kTileQ, kTileK = Config::kTileK;
  const int tiles = (shape.seqlen_k + kTileK - 1) / kTileK, query0 = tile_q * kTileQ;
  KeyRange seen{0, query0 < shape.seqlen_q ? tiles : 0};
  if constexpr (Config::kBoundedRight) {
    const Int64 last = query0 + kTileQ - 1 + shape.right;
    seen.end = last < 0 ? 0 : clamp_to(last / kTileK + 1, seen.end);
  }
  if constexpr (Config::kBoundedLeft) {
    const Int64 first = query0 - shape.left;
    seen.begin = first > 0 ? clamp_to(first / kTileK, tiles) : 0;
  }
  if constexpr (has_chunks<Config>()) {
    const Chunks chunks(shape);
    const int begin = chunks.keys_of(query0).begin;
    const int end = chunks.keys_of(query0 + kTileQ - 1).end;
    seen.begin = larger(seen.begin, begin < shape.seqlen_k ? begin / kTileK : tiles);
    seen.end = smaller(seen.end, (end + kTileK - 1) / kTileK);
  }
  return seen;
}

/// A head among some, and one of its tiles.
struct HeadTile {
  int head, tile;
};

/// The block with this index: sections of heads, in a section tile after tile of every head, so
/// that what begins first with a causal mask, the longest, comes first.
constexpr HeadTile in_sections(int index, int heads, int tiles, int section) {
  const int before = index / (section * tiles) * section;
  const int here = smaller(section, heads - before), rest = index - before * tiles;
  return {before + rest % here, rest / here};
}

/// Chunks, where a kernel has them.
template <bool kThere>
struct ChunksIf : Chunks {
  using Chunks::Chunks;
};
template <>
struct ChunksIf<false> {
  constexpr explicit ChunksIf(const Shape&) {}
};

/// Which pairs of a tile count.
template <class Config>
struct PairVisibility : ChunksIf<has_chunks<Config>()> {
  int right, left, seqlen_k;
  constexpr explicit PairVisibility(const Shape& shape)
      : ChunksIf<has_chunks<Config>()>(shape),
        right(static_cast<int>(clamp_bound(mutation::right<Config>(shape.right)))),
        left(static_cast<int>(clamp_bound(mutation::left<Config>(shape.left)))),
        seqlen_k(shape.seqlen_k) {}
  static constexpr Int64 clamp_bound(Int64 bound) {
    constexpr Int64 kFar = 0x7fffffff;
    return bound > kFar ? kFar : (bound < -kFar ? -kFar : bound);
  }
  constexpr bool sees(int query, int key) const {
    bool yes = key < seqlen_k;
    if constexpr (Config::kBoundedRight) yes &= key - query <= right;
    if constexpr (Config::kBoundedLeft) yes &= query - key <= left;
    if constexpr (has_chunks<Config>()) yes &= this->keys_of(query).contains(key);
    return yes;
  }
  /// Which of so many queries from `query` on see a key, counted from `query`.
  constexpr KeyRange queries_of(int query, int queries, int key) const {
    static_assert(!has_chunks<Config>(), "of chunks by sees()");
    KeyRange seen{0, key < seqlen_k ? queries : 0};
    if constexpr (Config::kBoundedRight) {
      seen.begin = clamp_to(Int64(key) - right - query, queries);
    }
    if constexpr (Config::kBoundedLeft) {
      seen.end = smaller(seen.end, clamp_to(Int64(key) + left - query + 1, queries));
    }
    return seen;
  }
  /// Every pair of these queries and keys.
  constexpr bool sees_all(int query, int queries, int key, int keys) const {
    bool yes = key + keys <= seqlen_k;
    if constexpr (Config::kBoundedRight) yes &= key + keys - 1 - query <= right;
    if constexpr (Config::kBoundedLeft) yes &= query + queries - 1 - key <= left;
    if constexpr (has_chunks<Config>()) {
      yes &= this->keys_of(query + queries - 1).begin <= key;
      yes &= this->keys_of(query).end >= key + keys;
    }
    return yes;
  }
  /// No pair of them.
  constexpr bool sees_none(int query, int queries, int key, int keys) const {
    bool none = key >= seqlen_k;
    if constexpr (Config::kBoundedRight) none |= key - (query + queries - 1) > right;
    if constexpr (Config::kBoundedLeft) none |= query - (key + keys - 1) > left;
    if constexpr (has_chunks<Config>()) {
      none |= this->keys_of(query).begin >= key + keys;
      none |= this->keys_of(query + queries - 1).end <= key;
    }
    return none;
  }
};

}  // namespace flashlab::device
