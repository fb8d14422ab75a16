#pragma once

// Operands of warp-wide products (ptx/mma.h says which lane holds what) from tiles of 16-bit
// elements in PaddedLayout. An operand's address is lane_offset + Layout::offset(row, chunk): the
// first depends on the lane alone, the second is a constant of the unrolled loop.

#include "config_types.h"
#include "ptx/convert.h"
#include "ptx/memory.h"
#include "ptx/mma.h"
#include "tile/swizzle.h"

namespace flashlab::device {

/// Matrices in the order (rows 0-7, chunk 0) (rows 8-15, chunk 0) (rows 0-7, chunk 1) (rows 8-15,
/// chunk 1): a left operand [16, 16] from its rows, and with ptx::load_matrix_4_transposed two
/// right operands [16, 8] whose rows are the tile's rows (V: 16 keys, 2 x 8 features).
template <class Layout>
constexpr int lane_offset_rows_first(int lane) {
  return Layout::offset(lane % 16, lane / 16);
}

/// Matrices in the order (rows 0-7, chunk 0) (rows 0-7, chunk 1) (rows 8-15, chunk 0) (rows 8-15,
/// chunk 1): two right operands [16, 8] whose columns are the tile's rows (K: 2 x 8 keys, 16
/// features).
template <class Layout>
constexpr int lane_offset_chunks_first(int lane) {
  return Layout::offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
}

/// d += a b with the right operand as two registers.
template <Element kElement>
__device__ inline void multiply_add(float (&d)[4], const unsigned (&a)[4], unsigned b0,
                                    unsigned b1) {
  const unsigned b[2] = {b0, b1};
  if constexpr (kElement == Element::kBf16) {
    ptx::mma_bf16_16816(d, a, b);
  } else {
    ptx::mma_fp16_16816(d, a, b);
  }
}

/// Two floats rounded to packed elements, `low` in the low half.
template <Element kElement>
__device__ inline unsigned pack(float low, float high) {
  if constexpr (kElement == Element::kBf16) {
    return ptx::pack_bf16(low, high);
  } else {
    return ptx::pack_fp16(low, high);
  }
}

}  // namespace flashlab::device
