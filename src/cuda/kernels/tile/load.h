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
    const unsigned low = 2 * i < count ? global[2 * i] : 0;
    const unsigned high = 2 * i + 1 < count ? global[2 * i + 1] : 0;
    words[i] = low | high << 16;
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

/// One chunk: `bytes` of it exist (0..16), the rest becomes zeros.
template <int kAlign>
__device__ inline void load_chunk(unsigned char* shared, const unsigned char* global, int bytes) {
  if constexpr (kAlign >= 16) {
    ptx::copy_async_16(ptx::shared_address(shared), global, bytes);
  } else if constexpr (kAlign >= 4) {
#pragma unroll
    for (int at = 0; at < 16; at += kAlign) {
      const int left = bytes - at;
      const int valid = left < 0 ? 0 : (left > kAlign ? kAlign : left);
      ptx::copy_async_small<kAlign>(ptx::shared_address(shared) + at,
                                    global + (valid > 0 ? at : 0), valid);
    }
  } else {
    *reinterpret_cast<uint4*>(shared) =
        gather_chunk(reinterpret_cast<const unsigned short*>(global), bytes / 2);
  }
}

/// Loads a tile of `Layout` from rows of kDim elements of kElementBytes. A row source answers
/// exists(r) and row(r), the latter with a mapped address for every r. kPart of kParts: a tile may
/// be loaded in several calls, so that copies do not queue up before other work.
template <class Layout, int kDim, int kElementBytes, int kAlign, int kThreads, int kPart = 0,
          int kParts = 1, class RowSource>
__device__ inline void load_tile(unsigned char* shared, const RowSource& source, int thread) {
  constexpr int kRowBytes = kDim * kElementBytes;
  using Plan = CopyPlan<Layout, kThreads>;
#pragma unroll
  for (int pass = Plan::kPasses * kPart / kParts; pass < Plan::kPasses * (kPart + 1) / kParts;
       ++pass) {
    if (!Plan::active(thread, pass)) break;
    const int row = Plan::row(thread, pass), chunk = Plan::chunk(thread, pass);
    int bytes = kChunkBytes, column = chunk * kChunkBytes;
    if constexpr (kRowBytes != Layout::kChunks * kChunkBytes) {
      const int left = kRowBytes - column;
      bytes = left < 0 ? 0 : (left > kChunkBytes ? kChunkBytes : left);
      column = left > 0 ? column : 0;
    }
    bytes = source.exists(row) ? bytes : 0;
    load_chunk<kAlign>(shared + Layout::offset(row, chunk), source.row(row) + column, bytes);
  }
}

}  // namespace flashlab::device
