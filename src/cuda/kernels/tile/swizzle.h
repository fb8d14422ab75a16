#pragma once

// Where a tile's elements lie in shared memory: pure arithmetic, no device code, so that the host
// proves it (tests/cuda_tile_test.cpp): every layout is injective, reading matrices is free of bank
// conflicts, and a copy touches every chunk once.
//
// Tiles are rows of 16-byte chunks (8 elements of 16 bits, 4 of 32). HW: shared memory has 32 banks
// of 4 bytes; ldmatrix reads 8 rows of one chunk at a time (128 bytes), so the 8 chunks must fall
// into different places modulo 128 bytes.

namespace flashlab::device {

constexpr int round_up(int value, int multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
constexpr int divide_up(int value, int divisor) {
  return (value + divisor - 1) / divisor;
}
constexpr int larger(int a, int b) {
  return a > b ? a : b;
}
constexpr int smaller(int a, int b) {
  return a < b ? a : b;
}

inline constexpr int kChunkBytes = 16;

/// Rows whose pitch is an odd number of chunks: 8 consecutive rows of one chunk are 8 different
/// places modulo 128 bytes. An address is linear in row and chunk, so that unrolled loops need one
/// base register and immediate offsets; the price is one chunk per row (6 % at 256-byte rows).
template <int kRows_, int kChunks_>
struct PaddedLayout {
  static constexpr int kRows = kRows_;
  static constexpr int kChunks = kChunks_;  ///< chunks of data per row
  static constexpr int kPitchBytes = (kChunks_ | 1) * kChunkBytes;
  static constexpr int kBytes = kRows_ * kPitchBytes;
  /// Bytes from the tile's start to a chunk.
  static constexpr int offset(int row, int chunk) {
    return row * kPitchBytes + chunk * kChunkBytes;
  }
  /// From the address of (row, chunk) to that of (row + rows, chunk + chunks).
  static constexpr unsigned advance(unsigned address, int rows, int chunks) {
    return address + offset(rows, chunks);
  }
};

/// Rows of kColumns 16-bit elements, free of bank conflicts for ldmatrix and for stores of
/// fragments. Powers of two are swizzled: chunk c of row r lies at c xor (r mod 8), and no byte is
/// lost; at head dims 128 and 256 the backward's tiles fill shared memory. The rest is padded.
template <int kRows_, int kColumns>
struct OperandTile {
  static constexpr int kRows = kRows_;
  static constexpr int kChunks = kColumns / 8;
  static_assert(kColumns % 8 == 0);
  static constexpr bool kSwizzled = kChunks >= 8 && (kChunks & (kChunks - 1)) == 0;
  static constexpr int kPitchBytes = (kSwizzled ? kChunks : kChunks | 1) * kChunkBytes;
  static constexpr int kBytes = kRows * kPitchBytes;

  static constexpr int offset(int row, int chunk) {
    return row * kPitchBytes + (kSwizzled ? chunk ^ (row % 8) : chunk) * kChunkBytes;
  }
  /// From the address of (row, chunk) to that of (row + rows, chunk + chunks) in a tile that begins
  /// at a multiple of 128 bytes: `rows` is a multiple of 8, and the chunks are counted from a
  /// multiple of the power of two above them, which makes adding the same as exclusive or. Both are
  /// constants of an unrolled loop.
  static constexpr unsigned advance(unsigned address, int rows, int chunks) {
    if constexpr (kSwizzled) {
      return (address ^ ((chunks % 8) * kChunkBytes)) + (chunks & ~7) * kChunkBytes +
             rows * kPitchBytes;
    } else {
      return address + chunks * kChunkBytes + rows * kPitchBytes;
    }
  }
};

/// Which chunks of a tile a thread copies: always the same chunk of a row, pass by pass some rows
/// further, so that its addresses advance by constants. Threads beyond whole rows have nothing.
template <class Layout, int kThreads>
struct CopyPlan {
  static_assert(Layout::kChunks <= kThreads);
  static constexpr int kRowsPerPass = kThreads / Layout::kChunks;
  static constexpr int kPasses = divide_up(Layout::kRows, kRowsPerPass);

  static constexpr int row(int thread, int pass) {
    return thread / Layout::kChunks + pass * kRowsPerPass;
  }
  static constexpr int chunk(int thread) { return thread % Layout::kChunks; }
  static constexpr bool active(int thread, int pass) {
    return (kThreads % Layout::kChunks == 0 || thread < kRowsPerPass * Layout::kChunks) &&
           (Layout::kRows % kRowsPerPass == 0 || row(thread, pass) < Layout::kRows);
  }
};

/// Rows of 16-bit elements, padded to whole k16 steps of a matrix product.
template <int kRows, int kDim>
using HalfTile = PaddedLayout<kRows, round_up(kDim, 16) / 8>;

}  // namespace flashlab::device
