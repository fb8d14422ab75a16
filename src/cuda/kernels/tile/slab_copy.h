#pragma once

// Tiles of slabs by the copy engine.

#include "ptx/tensor_copy.h"
#include "tile/bounded.h"
#include "tile/slab.h"

namespace flashlab::device {

/// One thread starts the copies of a tile's rows from `row` on, all slabs, to shared memory. `map`:
/// of the tensor. Rows and features that do not exist land as zeros, and `barrier` counts them,
/// too.
template <class Tile>
__device__ inline void copy_tile(unsigned shared, const void* map, int row, int head, int batch,
                                 unsigned barrier, unsigned long long policy) {
#pragma unroll
  for (int slab = 0; slab < Tile::kSlabs; ++slab) {
    ptx::copy_box_4(shared + slab * Tile::kSlabBytes, map, slab * kSlabColumns, row, head, batch,
                    barrier, policy);
  }
}

/// The same of one sequence of a packed tensor, by a bounded map: nothing behind the sequence's end
/// is read. `y` and `z`: rows.row and a head, in the map's order.
template <class Tile>
__device__ inline void copy_bounded_tile(unsigned shared, const void* map, int y, int z, int end,
                                         unsigned barrier, unsigned long long policy) {
#pragma unroll
  for (int slab = 0; slab < Tile::kSlabs; ++slab) {
    ptx::copy_box_5(shared + slab * Tile::kSlabBytes, map, slab * kSlabColumns, y, z, end,
                    kBoundedRows, barrier, policy);
  }
}

}  // namespace flashlab::device
