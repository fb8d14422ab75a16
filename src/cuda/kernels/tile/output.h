#pragma once

// Results of warp-wide products to device memory.

#include "arguments.h"
#include "config_types.h"
#include "ptx/convert.h"
#include "tile/fragments.h"
#include "tile/swizzle.h"

namespace flashlab::device {

/// Two neighbouring features of a row, `left` of which (0, 1 or more) exist.
template <Element kElement>
__device__ inline void store_pair(void* row, int column, int left, float x, float y) {
  if constexpr (kElement == Element::kFp32) {
    auto* at = static_cast<float*>(row) + column;
    if (left > 0) at[0] = x;
    if (left > 1) at[1] = y;
  } else {
    auto* at = static_cast<unsigned short*>(row) + column;
    const unsigned both = pack<kElement>(x, y);
    if (left > 0) at[0] = static_cast<unsigned short>(both);
    if (left > 1) at[1] = static_cast<unsigned short>(both >> 16);
  }
}

/// The address of a row of a tensor of kElement.
template <Element kElement>
__device__ inline unsigned char* row_address(const Rows& rows, int batch, int head, int position) {
  constexpr int kElementBytes = kElement == Element::kFp32 ? 4 : 2;
  return static_cast<unsigned char*>(rows.data) +
         (batch * rows.batch_stride + head * rows.head_stride + position * rows.row_stride) *
             kElementBytes;
}

}  // namespace flashlab::device
