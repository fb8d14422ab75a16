#pragma once

// Keys of a cache for the forward kernels of both types: which pages a sequence's queries see, and
// a tile of rows of any of them.

#include "sequence_arguments.h"
#include "tile/key_range.h"
#include "tile/load.h"
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

/// A tile of 16-bit keys of a head: `valid` rows from `first` on. Pages that no query sees may lie
/// outside of the cache: they have no rows.
struct CachedTile {
  const CachedPlace& place;
  const Rows& rows;
  int head, first, valid;

  __device__ const unsigned char* row(int r) const {
    return r < valid ? reinterpret_cast<const unsigned char*>(
                           place.row<unsigned short>(rows, head, first + r))
                     : nullptr;
  }
};

/// Passes kFirst to kEnd - 1 of CopyPlan of such a tile, by whole warps. A lane looks up one of the
/// rows that its warp copies, and hands the address on: for each chunk of 16 bytes the table, the
/// division by a page's rows and three products would take longer than a step of the main loop.
template <class Layout, int kRowBytes, int kAlign, int kThreads, int kFirst, int kEnd>
__device__ inline void load_cached_passes(unsigned char* shared, const CachedTile& tile,
                                          int thread) {
  using Plan = CopyPlan<Layout, kThreads>;
  // Rows of a warp in a pass; where rows do not divide warps, it has parts of two more.
  constexpr int kWhole = 32 / Layout::kChunks;
  constexpr int kRows = 32 % Layout::kChunks == 0 ? kWhole : kWhole + 2;
  if constexpr ((kEnd - kFirst) * kRows > 32) {
    constexpr int kMiddle = (kFirst + kEnd) / 2;
    load_cached_passes<Layout, kRowBytes, kAlign, kThreads, kFirst, kMiddle>(shared, tile, thread);
    load_cached_passes<Layout, kRowBytes, kAlign, kThreads, kMiddle, kEnd>(shared, tile, thread);
    return;
  }
  const int lane = thread % 32, chunk = Plan::chunk(thread);
  const int first_row = (thread - lane) / Layout::kChunks;
  const unsigned char* own =
      tile.row(first_row + lane % kRows + (kFirst + lane / kRows) * Plan::kRowsPerPass);
  constexpr int kUnrolled = kUnrolledPasses<kAlign, kThreads, kEnd - kFirst>;
#pragma unroll(kUnrolled)
  for (int pass = kFirst; pass < kEnd; ++pass) {
    const int from_lane = (pass - kFirst) * kRows + thread / Layout::kChunks - first_row;
    const auto address =
        __shfl_sync(ptx::kFullMask, reinterpret_cast<unsigned long long>(own), from_lane);
    const auto* row = reinterpret_cast<const unsigned char*>(address);
    const bool active = Plan::active(thread, pass), exists = row != nullptr;
    const int bytes = exists ? chunk_bytes<Layout, kRowBytes>(chunk) : 0;
    unsigned char* to = shared + Layout::offset(Plan::row(thread, pass), chunk);
    const unsigned char* from = exists ? row + chunk_column<Layout, kRowBytes>(chunk)
                                       : static_cast<const unsigned char*>(tile.rows.data);
    if constexpr (kAlign < 4) {
      load_elements(to, from, bytes, active);
    } else if (active) {
      load_chunk<kAlign>(to, from, bytes);
    }
  }
}

}  // namespace flashlab::device
