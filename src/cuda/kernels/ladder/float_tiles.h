#pragma once

// Tiles of floats: their way into shared memory, and arithmetic on four features of a row.

#include "arguments.h"
#include "config_types.h"
#include "ladder/elements.h"

namespace flashlab::device {

/// Copies rows [row0, row0 + kRows) of a head to shared memory as floats, [kRows][kStride], with
/// all threads of the block. Rows from `row_end` on are zeros: 0 times what a tensor's end holds
/// could be NaN.
template <Element kElement, int kRows, int kDim, int kStride>
__device__ inline void load_tile(float* shared, const Rows& tensor, int batch, int head, int row0,
                                 int row_end) {
  for (int i = threadIdx.x; i < kRows * kDim; i += blockDim.x) {
    const int row = i / kDim, d = i % kDim;
    float value = 0;
    if (row0 + row < row_end) {
      value = load_element<kElement>(tensor.data, row_index(tensor, batch, head, row0 + row) + d);
    }
    shared[row * kStride + d] = value;
  }
}

/// As load_tile, four elements at a time: one global load where rows are aligned (`kAlign` bytes)
/// and one 16-byte store. Features from kDim to the next multiple of 4 become zeros.
template <Element kElement, int kAlign, int kRows, int kDim, int kStride>
__device__ inline void load_tile_vector(float* shared, const Rows& tensor, int batch, int head,
                                        int row0, int row_end) {
  constexpr int kFours = (kDim + 3) / 4;
  constexpr bool kAligned = kAlign >= 4 * kBytesOf<kElement>;
  for (int i = threadIdx.x; i < kRows * kFours; i += blockDim.x) {
    const int row = i / kFours, d = i % kFours * 4;
    float4 value = {0, 0, 0, 0};
    if (row0 + row < row_end) {
      const Int64 index = row_index(tensor, batch, head, row0 + row) + d;
      if (kAligned && d + 4 <= kDim) {
        value = load_four<kElement>(tensor.data, index);
      } else {
        value.x = load_element<kElement>(tensor.data, index);
        if (d + 1 < kDim) value.y = load_element<kElement>(tensor.data, index + 1);
        if (d + 2 < kDim) value.z = load_element<kElement>(tensor.data, index + 2);
        if (d + 3 < kDim) value.w = load_element<kElement>(tensor.data, index + 3);
      }
    }
    *reinterpret_cast<float4*>(shared + row * kStride + d) = value;
  }
}

/// Four floats of shared or global memory at an address that is a multiple of 16.
__device__ inline float4& four(float* address) {
  return *reinterpret_cast<float4*>(address);
}

__device__ inline float dot_four(float4 a, float4 b) {
  return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}

__device__ inline void add_times(float4& sum, float factor, float4 a) {
  sum.x += factor * a.x;
  sum.y += factor * a.y;
  sum.z += factor * a.z;
  sum.w += factor * a.w;
}

}  // namespace flashlab::device
