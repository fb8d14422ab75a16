#pragma once

// Tiles of 16-bit elements as the copy engine writes and warpgroup products read them: slabs of 64
// columns, rows of 128 bytes, 16-byte chunk c of row r at c xor (r mod 8) (the 128-byte swizzle).
// Pure arithmetic, proved on the host (tests/cuda_tile_test.cpp).
//
// As an operand whose rows are its M or N and whose columns are K (Q, K of S = Q K^T) a tile is
// K-major: 8 rows are 1024 bytes, a k16 step is 32 bytes inside a slab. With rows as K (V of
// O = P V; dS^T and K of dQ = dS K) it is MN-major: a k16 step is 16 rows. HW: the swizzle acts on
// address bits 4 to 6 with bits 7 to 9, so tiles begin at multiples of 1024. PTX ISA, "Matrix
// Descriptor", "Strides".

#include "tile/swizzle.h"

namespace flashlab::device {

inline constexpr int kSlabColumns = 64, kSlabRowBytes = 128, kSlabAlignment = 1024;

/// kRows rows of kColumns elements, in whole slabs.
template <int kRows_, int kColumns>
struct SlabTile {
  static constexpr int kRows = kRows_;
  static constexpr int kSlabs = divide_up(kColumns, kSlabColumns);
  static constexpr int kSlabBytes = kRows * kSlabRowBytes;
  static constexpr int kBytes = kSlabs * kSlabBytes;
  static_assert(kRows % 8 == 0);

  /// Bytes from the tile's start to a chunk of 8 elements.
  static constexpr int offset(int row, int chunk) {
    return chunk / 8 * kSlabBytes + row * kSlabRowBytes + ((chunk % 8) ^ (row % 8)) * kChunkBytes;
  }
  /// From the address of (row, chunk), chunk 0 or 1, to that of (row + rows, chunk + chunks) in a
  /// tile that begins at a multiple of 128 bytes; `rows` is a multiple of 8, `chunks` even.
  static constexpr unsigned advance(unsigned address, int rows, int chunks) {
    return (address ^ (chunks % 8 * kChunkBytes)) + chunks / 8 * kSlabBytes + rows * kSlabRowBytes;
  }
  /// Bytes from the tile's start to the columns of k16 step `step`, K-major.
  static constexpr int step_offset(int step) {
    return step / 4 * kSlabBytes + step % 4 * 2 * kChunkBytes;
  }
  /// Bytes to rows [16 step, 16 step + 16) of slab `slab`, MN-major.
  static constexpr int step_offset_rows(int step, int slab) {
    return slab * kSlabBytes + 16 * step * kSlabRowBytes;
  }
};

/// The descriptor of an operand that begins `shared` bytes into shared memory: 128-byte swizzle,
/// 1024 bytes from 8 rows to the next 8, one slab wide. Addresses are 18 bits, in units of 16
/// bytes.
constexpr unsigned long long slab_descriptor(unsigned shared) {
  constexpr unsigned long long kSwizzle128 = 1ull << 62, kEightRows = (1024ull >> 4) << 32;
  constexpr unsigned long long kUnusedStride = 1ull << 16;
  return kSwizzle128 | kEightRows | kUnusedStride | ((shared & 0x3ffff) >> 4);
}

/// The same of an MN-major operand that is several slabs wide, each `slab_bytes` behind the last.
constexpr unsigned long long slabs_descriptor(unsigned shared, unsigned slab_bytes) {
  constexpr unsigned long long kStrideField = 0x3fffull << 16;
  return (slab_descriptor(shared) & ~kStrideField) |
         (static_cast<unsigned long long>(slab_bytes >> 4) << 16);
}

}  // namespace flashlab::device
