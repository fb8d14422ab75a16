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
};

/// Rows without padding, chunks exchanged within groups: chunk c of row r lies at c xor f(r). For
/// kernels whose shared memory is full. The chunk count is a power of two below 8, or a multiple
/// of 8.
template <int kRows_, int kChunks_>
struct SwizzledLayout {
  static constexpr int kRows = kRows_;
  static constexpr int kChunks = kChunks_;
  static_assert(kChunks % 8 == 0 || kChunks == 1 || kChunks == 2 || kChunks == 4);
  static constexpr int kPitchBytes = kChunks_ * kChunkBytes;
  static constexpr int kBytes = kRows_ * kPitchBytes;
  /// How many neighbouring rows share 128 bytes: they need no exchange among themselves.
  static constexpr int kRowsPerLine = kChunks >= 8 ? 1 : 8 / kChunks;
  static constexpr int kGroup = kChunks >= 8 ? 8 : kChunks;
  static constexpr int offset(int row, int chunk) {
    return row * kPitchBytes + (chunk ^ ((row / kRowsPerLine) % kGroup)) * kChunkBytes;
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
