#pragma once

// Tiles of 16-bit elements for the tensor-core rungs: their way into shared memory.

#include "arguments.h"
#include "ladder/elements.h"
#include "ladder/strides.h"

namespace flashlab::device {

/// Copies rows [row0, row0 + kRows) of a head to shared memory as they are, 16 bytes at a time.
/// Rows from `row_end` on and features beyond kDim are zeros.
template <int kAlign, int kRows, int kDim>
__device__ inline void load_tile_16bit(unsigned short* shared, const Rows& tensor, int batch,
                                       int head, int row0, int row_end) {
  constexpr int kEights = kMmaDim<kDim> / 8;
  for (int i = threadIdx.x; i < kRows * kEights; i += blockDim.x) {
    const int row = i / kEights, d = i % kEights * 8;
    unsigned words[4] = {0, 0, 0, 0};
    if (row0 + row < row_end) {
      const auto* from = static_cast<const unsigned short*>(tensor.data) +
                         row_index(tensor, batch, head, row0 + row) + d;
      if (kAlign >= 16 && d + 8 <= kDim) {
        const uint4 eight = *reinterpret_cast<const uint4*>(from);
        words[0] = eight.x, words[1] = eight.y, words[2] = eight.z, words[3] = eight.w;
      } else {
        for (int e = 0; e < 8; ++e) {
          if (d + e < kDim) words[e / 2] |= static_cast<unsigned>(from[e]) << (e % 2 * 16);
        }
      }
    }
    *reinterpret_cast<uint4*>(shared + row * kMmaStride<kDim> + d) = {words[0], words[1], words[2],
                                                                      words[3]};
  }
}

}  // namespace flashlab::device
