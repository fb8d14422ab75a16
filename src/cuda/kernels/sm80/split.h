#pragma once

// fp32 tensors as sums of scaled 16-bit terms: what the pre-pass (split_tiles.h) leaves in the
// workspace and how kernels find it.
//
// A tensor [batch, seqlen, heads, dim] is cut into tiles of 64 rows of one (batch, head). With s
// the power of two that brings the tile's largest magnitude into [2^14, 2^15),
//     x s = hi + lo,   hi = fp16(x s),  lo = fp16(x s - hi)
// holds to 22 bits for elements down to 2^-17 of the largest, then to about 2^-40 of the largest.
// A region of the workspace holds, for one tensor,
//     planes  [batch, heads, tile, term, 64, padded dim] fp16   (terms: hi, lo; one term: hi only)
//     tiles   [batch, heads, tile] SplitTile
// Rows past seqlen and columns past dim are zeros, so readers copy whole tiles without a bound.

#include "arguments.h"
#include "ptx/convert.h"

namespace flashlab::device {

inline constexpr int kSplitRows = 64;

/// What is known of one tile of 64 rows.
struct SplitTile {
  float unscale;     ///< 1 / s: x = (hi + lo) unscale, a power of two from 2^-126 to 2^46
  float largest;     ///< largest magnitude; Inf or NaN if an element is
  unsigned guarded;  ///< not 0: fp16 terms would not keep fp32's accuracy; use three bf16 terms
  unsigned unused;
};

__host__ __device__ constexpr int split_padded_dim(int dim) {
  return (dim + 15) / 16 * 16;
}
__host__ __device__ constexpr Int64 split_tile_count(Int64 seqlen) {
  return (seqlen + kSplitRows - 1) / kSplitRows;
}
/// fp16 elements of one tile, all terms.
__host__ __device__ constexpr int split_tile_elements(int dim, int terms) {
  return terms * kSplitRows * split_padded_dim(dim);
}
/// Bytes of a region for `tiles` tiles in all heads and batches.
__host__ __device__ constexpr Int64 split_region_bytes(Int64 tiles, int dim, int terms) {
  return tiles * (split_tile_elements(dim, terms) * 2 + Int64(sizeof(SplitTile)));
}

/// The tiles of one tensor in its region.
struct SplitTensor {
  unsigned short* planes;
  SplitTile* tiles;
};
__device__ inline SplitTensor split_tensor(void* region, Int64 tiles, int dim, int terms) {
  auto* planes = static_cast<unsigned short*>(region);
  return {planes, reinterpret_cast<SplitTile*>(planes + tiles * split_tile_elements(dim, terms))};
}

/// hi and lo of two scaled values, packed.
__device__ inline void split_pair(float x, float y, unsigned& hi, unsigned& lo) {
  hi = ptx::pack_fp16(x, y);
  lo = ptx::pack_fp16(x - ptx::float_of_fp16(static_cast<unsigned short>(hi)),
                      y - ptx::float_of_fp16(static_cast<unsigned short>(hi >> 16)));
}

}  // namespace flashlab::device
