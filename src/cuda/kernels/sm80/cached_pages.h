#pragma once

// Keys of a cache for the forward kernels of both types: which pages a sequence's queries see, and
// a tile of rows of any of them.

#include "sequence_arguments.h"
#include "tile/key_range.h"
#include "tile/sequence.h"

namespace flashlab::device {

/// Whether this thread finds a page of keys that some query of the sequence sees, and that lies
/// outside of the cache. The threads of a block look at all of them.
template <class Config>
__device__ inline bool finds_wrong_page(Shape shape, const Sequences& list, const KeyCache& cache,
                                        const SequenceTile& at) {
  if (at.q.length == 0 || at.k.length == 0) return false;
  shape_of_sequence(shape, list, at);
  const KeyRange seen = keys_seen_by_any<Config>(shape, 0, shape.seqlen_q - 1);
  if (seen.begin >= seen.end) return false;
  const CachedPlace place = cached_place(list, cache, at.sequence);
  const int last = (place.padding + seen.end - 1) / cache.page_size;
  bool wrong = false;
  for (int n = (place.padding + seen.begin) / cache.page_size + static_cast<int>(threadIdx.x);
       n <= last; n += static_cast<int>(blockDim.x)) {
    wrong |= place.table[n] < 0 || place.table[n] >= cache.pages;
  }
  return wrong;
}

/// A sequence's keys; of one that no cache holds too many. Called by all threads of the block.
template <class Config>
__device__ inline SequenceRows keys_in_cache(const Shape& shape, const Sequences& list,
                                             const KeyCache& cache, const SequenceTile& at) {
  SequenceRows keys = cached_keys(list, cache, at.sequence);
  const bool paged = cache.table != nullptr && !at.q.too_long && !keys.too_long;
  SequenceTile with_keys = at;
  with_keys.k = keys;
  if (paged && __syncthreads_or(finds_wrong_page<Config>(shape, list, cache, with_keys)) != 0) {
    keys.too_long = true;
  }
  return keys;
}

/// Rows of a tile of keys for tile/load.h, of 16-bit elements. Pages that no query sees may lie
/// outside of the cache: they have no rows.
struct CachedTile {
  const CachedPlace& place;
  const Rows& rows;
  int head, first, valid;

  __device__ const unsigned char* found(int r) const {
    return r < valid ? reinterpret_cast<const unsigned char*>(
                           place.row<unsigned short>(rows, head, first + r))
                     : nullptr;
  }
  __device__ bool exists(int r) const { return found(r) != nullptr; }
  __device__ const unsigned char* row(int r) const {
    const unsigned char* at = found(r);
    return at != nullptr ? at : static_cast<const unsigned char*>(rows.data);
  }
};

}  // namespace flashlab::device
