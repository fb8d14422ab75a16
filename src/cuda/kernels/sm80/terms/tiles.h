#pragma once

// Tiles of terms and the bytes of their regions (terms.h says what they hold): the same text on
// host and device. Nothing is included, so that both can read it.

namespace flashlab::device {

inline constexpr int kSplitRows = 64;

/// What is known of one tile of 64 rows.
struct SplitTile {
  float unscale;     ///< 1 / s: x = (hi + lo) unscale, a power of two from 2^-126 to 2^46
  float largest;     ///< largest magnitude; Inf or NaN if an element is
  unsigned guarded;  ///< 0, or a sum of kGuardWide and kGuardHuge
  unsigned unused;
};

constexpr int split_padded_dim(int dim) {
  return (dim + 15) / 16 * 16;
}
constexpr long long split_tile_count(long long seqlen) {
  return (seqlen + kSplitRows - 1) / kSplitRows;
}
/// fp16 elements of one tile, all terms.
constexpr int split_tile_elements(int dim, int terms) {
  return terms * kSplitRows * split_padded_dim(dim);
}
/// Bytes of a region for `tiles` tiles in all heads and batches.
constexpr long long split_region_bytes(long long tiles, int dim, int terms) {
  return tiles * (split_tile_elements(dim, terms) * 2 + static_cast<long long>(sizeof(SplitTile)));
}

}  // namespace flashlab::device
