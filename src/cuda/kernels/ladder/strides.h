#pragma once

// How far apart the rows of a tile lie in shared memory, so that what a warp reads at once lies in
// different banks. HW: 32 banks of 4 bytes; 16-byte reads go eight lanes (128 bytes) at a time.
// Pure arithmetic, no device code: proved on the host (tests/cuda_tile_test.cpp).

namespace flashlab::device {

/// Floats per row of a tile that is read four at a time by lanes on neighbouring rows: a multiple
/// of 4 that holds kDim, and an odd number of 16-byte units, so that eight rows start on the eight
/// different bank groups.
template <int kDim>
inline constexpr int kVectorStride = ((kDim + 3) / 4 | 1) * 4;

}  // namespace flashlab::device
