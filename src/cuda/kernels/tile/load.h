#pragma once

// Tiles from device memory into shared memory by all threads of a block.
//
// Rows come by a pointer rule (`RowSource`), so that dense rows, packed query heads and, later,
// pages are the same code. Rows and features outside the tensor become zeros: a NaN that lies
// behind the data is never read, and zeros are neutral in every product.
//
// The path is chosen at compile time by what every row's address is a multiple of:
//   16, 8, 4 bytes  cp.async of that size: the copy runs in the background; close it with
//                   ptx::copy_async_commit and wait for it before the barrier
//   2 bytes         element loads and a 16-byte store: done when the function returns

#include "arguments.h"
#include "ptx/memory.h"
#include "tile/swizzle.h"

namespace flashlab::device {

/// Rows a fixed number of bytes apart; only the first `valid` (at least one) of the tile exist.
struct DenseRows {
  const unsigned char* base;  ///< row 0 of the tile
  Int64 row_bytes;
  int valid;
  __device__ bool exists(int r) const { return r < valid; }
  /// Always an address that may be formed: that of an existing row.
  __device__ const unsigned char* row(int r) const {
    return base + (r < valid ? r : valid - 1) * row_bytes;
  }
};

/// Rows that all exist: no comparison in the copies.
struct FullRows {
  const unsigned char* base;
  Int64 row_bytes;
  __device__ bool exists(int) const { return true; }
  __device__ const unsigned char* row(int r) const { return base + r * row_bytes; }
};

/// 16-bit elements -> a 16-byte chunk, one by one.
__device__ inline uint4 gather_chunk(const unsigned short* global, int count) {
  unsigned words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    words[i] = ptx::load_half_if(2 * i < count, global + 2 * i) |
               ptx::load_half_if(2 * i + 1 < count, global + 2 * i + 1) << 16;
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

/// One chunk: `bytes` of it exist (0..16), the rest becomes zeros.
template <int kAlign>
__device__ inline void load_chunk(unsigned char* shared, const unsigned char* global, int bytes) {
  if constexpr (kAlign >= 16) {
    ptx::copy_async_16(ptx::shared_address(shared), global, bytes);
  } else {
#pragma unroll
    for (int at = 0; at < 16; at += kAlign) {
      const int left = bytes - at;
      const int valid = left < 0 ? 0 : (left > kAlign ? kAlign : left);
      ptx::copy_async_small<kAlign>(ptx::shared_address(shared) + at, global + (valid > 0 ? at : 0),
                                    valid);
    }
  }
}

/// The same by element, where `active`. Its reads have no branch around them, so that those of
/// several passes are under way together.
__device__ inline void load_elements(unsigned char* shared, const unsigned char* global, int bytes,
                                     bool active) {
  const uint4 chunk =
      gather_chunk(reinterpret_cast<const unsigned short*>(global), active ? bytes / 2 : 0);
  if (active) *reinterpret_cast<uint4*>(shared) = chunk;
}

/// Passes that are unrolled: all, but of elements, which pass through registers, only some. Exactly
/// all: with a count of 64 head dim 64 spilled on sm_100, with 4096 NVRTC 13.0 took 10 seconds
/// instead of half of one for sm_100 and sm_120. A single warp waits for memory longest: 0.22
/// instead of 0.30 ms for decoding at head dim 127 (H200, 2026-11-21).
template <int kAlign, int kThreads, int kPasses>
inline constexpr int kUnrolledPasses = kAlign >= 4 ? larger(kPasses, 1) : (kThreads == 32 ? 8 : 4);

/// Of a row of kRowBytes: how many bytes of a chunk exist, and where it begins (0 if none do).
template <class Layout, int kRowBytes>
__device__ inline int chunk_bytes(int chunk) {
  if constexpr (kRowBytes == Layout::kChunks * kChunkBytes) return kChunkBytes;
  const int left = kRowBytes - chunk * kChunkBytes;
  return left < 0 ? 0 : (left > kChunkBytes ? kChunkBytes : left);
}
template <class Layout, int kRowBytes>
__device__ inline int chunk_column(int chunk) {
  return chunk_bytes<Layout, kRowBytes>(chunk) > 0 ? chunk * kChunkBytes : 0;
}

/// Loads passes kFirst to kEnd - 1 of CopyPlan of a tile from rows of kRowBytes. A row source
/// answers exists(r) and row(r), the latter with a mapped address for every r.
template <class Layout, int kRowBytes, int kAlign, int kThreads, int kFirst, int kEnd,
          class RowSource>
__device__ inline void load_passes(unsigned char* shared, const RowSource& source, int thread) {
  using Plan = CopyPlan<Layout, kThreads>;
  const int chunk = Plan::chunk(thread);
  constexpr int kUnrolled = kUnrolledPasses<kAlign, kThreads, kEnd - kFirst>;
#pragma unroll(kUnrolled)
  for (int pass = kFirst; pass < kEnd; ++pass) {
    const bool active = Plan::active(thread, pass);
    if (kAlign >= 4 && !active) break;
    const int row = Plan::row(thread, pass);
    const int bytes = source.exists(row) ? chunk_bytes<Layout, kRowBytes>(chunk) : 0;
    unsigned char* to = shared + Layout::offset(row, chunk);
    const unsigned char* from = source.row(row) + chunk_column<Layout, kRowBytes>(chunk);
    if constexpr (kAlign >= 4) {
      load_chunk<kAlign>(to, from, bytes);
    } else {
      load_elements(to, from, bytes, active);
    }
  }
}

/// Loads a whole tile from rows of kDim elements of kElementBytes.
template <class Layout, int kDim, int kElementBytes, int kAlign, int kThreads, class RowSource>
__device__ inline void load_tile(unsigned char* shared, const RowSource& source, int thread) {
  load_passes<Layout, kDim * kElementBytes, kAlign, kThreads, 0,
              CopyPlan<Layout, kThreads>::kPasses>(shared, source, thread);
}

/// One thread's copies of a stream of tiles whose rows all exist, for main loops: an address that
/// only ever advances by a number that all threads share.
/// MEASURED: computing addresses anew per tile cost 20 % of a forward pass (H200, 2026-11-21).
/// Layout's rows lie at constant offsets (PaddedLayout).
template <class Layout, int kRowBytes, int kAlign, int kThreads>
struct ThreadCopy {
  using Plan = CopyPlan<Layout, kThreads>;
  using TileLayout = Layout;
  static constexpr int kRowWidth = kRowBytes, kAlignment = kAlign;
  const unsigned char* next;  ///< this thread's next chunk
  int thread;

  /// `first` is row 0 of the first tile.
  __device__ ThreadCopy(const unsigned char* first, Int64 row_bytes, int thread_)
      : next(first + Plan::row(thread_, 0) * row_bytes +
             chunk_column<Layout, kRowBytes>(Plan::chunk(thread_))),
        thread(thread_) {}

  /// Passes kFirst to kEnd - 1 of the next tile, into the tile at `shared`. The last of them
  /// leaves `next` at the tile after it.
  template <int kFirst, int kEnd>
  __device__ void passes(unsigned char* shared, Int64 row_bytes) {
    const int to = Layout::offset(Plan::row(thread, 0), Plan::chunk(thread));
    const int bytes = chunk_bytes<Layout, kRowBytes>(Plan::chunk(thread));
    constexpr int kUnrolled = kUnrolledPasses<kAlign, kThreads, kEnd - kFirst>;
#pragma unroll(kUnrolled)
    for (int pass = kFirst; pass < kEnd; ++pass) {
      unsigned char* chunk = shared + to + pass * (Plan::kRowsPerPass * Layout::kPitchBytes);
      const bool active = Plan::active(thread, pass);
      if constexpr (kAlign < 4) {
        load_elements(chunk, next, bytes, active);
      } else if (active) {
        load_chunk<kAlign>(chunk, next, bytes);
      }
      next += Plan::kRowsPerPass * row_bytes;
    }
    if constexpr (kEnd == Plan::kPasses) {
      next -= (Plan::kPasses * Plan::kRowsPerPass - Layout::kRows) * row_bytes;
    }
  }

  /// The same for a last tile with missing rows, from its row 0.
  template <int kFirst, int kEnd>
  __device__ void last_passes(unsigned char* shared, const DenseRows& rows) const {
    load_passes<Layout, kRowBytes, kAlign, kThreads, kFirst, kEnd>(shared, rows, thread);
  }
};

}  // namespace flashlab::device
