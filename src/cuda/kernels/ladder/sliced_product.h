#pragma once

// A 64 x 64 block of a product of two matrices in global memory: both factors pass through shared
// memory in slices of 32 along the depth. The naive kernels are these three forms.
//
//     A  [64][depth]                     B  [64][depth] or [depth][64]
//     +----+----+----+                   +----+----+----+
//     | 32 | 32 | .. |   ->  shared  <-  | 32 | 32 | .. |     256 threads, 4 x 4 sums each
//     +----+----+----+                   +----+----+----+
//
// The factors are functions: a(row, k) is an element as a float, 0 outside the matrix.

#include "ladder/elements.h"
#include "ladder/product.h"
#include "ladder/strides.h"

namespace flashlab::device {

inline constexpr int kTile = 64;              // rows and columns of a block's result
inline constexpr int kSlice = 32;             // depth that is in shared memory at a time
inline constexpr int kShare = kTile / kSide;  // rows and columns of a thread's part of it
inline constexpr int kAlongDepth = kVectorStride<kSlice>;
inline constexpr int kAlongTile = kVectorStride<kTile>;

/// sums = sum_k a(row, k) b(column, k): row y + 16 i, column x + 16 j of the block.
template <class A, class B>
__device__ inline void rows_by_rows(float (&sums)[kShare][kShare], int depth, const A& a,
                                    const B& b) {
  __shared__ __align__(16) float sA[kTile * kAlongDepth], sB[kTile * kAlongDepth];
  for (int k0 = 0; k0 < depth; k0 += kSlice) {
    fill_tile<kTile, kSlice, kAlongDepth>(sA, [&](int r, int k) { return a(r, k0 + k); });
    fill_tile<kTile, kSlice, kAlongDepth>(sB, [&](int r, int k) { return b(r, k0 + k); });
    __syncthreads();
    add_rows_by_rows<kSlice, kAlongDepth>(sums, sA, sB);
    __syncthreads();
  }
}

/// sums = sum_k a(row, k) b(k, column): row y + 16 i, column neighbour(x, n) of the block.
template <class A, class B>
__device__ inline void rows_by_columns(float (&sums)[kShare][kShare], int depth, const A& a,
                                       const B& b) {
  __shared__ __align__(16) float sA[kTile * kAlongDepth], sB[kSlice * kAlongTile];
  for (int k0 = 0; k0 < depth; k0 += kSlice) {
    fill_tile<kTile, kSlice, kAlongDepth>(sA, [&](int r, int k) { return a(r, k0 + k); });
    fill_tile<kSlice, kTile, kAlongTile>(sB, [&](int k, int c) { return b(k0 + k, c); });
    __syncthreads();
    add_rows_by_columns<kSlice, kAlongDepth, kAlongTile>(sums, sA, sB);
    __syncthreads();
  }
}

/// sums += sum_k a(k, row) b(k, column): row neighbour(y, m), column neighbour(x, n) of the block.
template <class A, class B>
__device__ inline void columns_by_columns(float (&sums)[kShare][kShare], int depth, const A& a,
                                          const B& b) {
  __shared__ __align__(16) float sA[kSlice * kAlongTile], sB[kSlice * kAlongTile];
  for (int k0 = 0; k0 < depth; k0 += kSlice) {
    fill_tile<kSlice, kTile, kAlongTile>(sA, [&](int k, int c) { return a(k0 + k, c); });
    fill_tile<kSlice, kTile, kAlongTile>(sB, [&](int k, int c) { return b(k0 + k, c); });
    __syncthreads();
    add_columns_by_columns<kSlice, kAlongTile, kAlongTile>(sums, sA, sB);
    __syncthreads();
  }
}

/// Element (row, d) of a head, 0 outside [rows, dim].
template <Element kElement, int kDim>
struct HeadMatrix {
  const Rows& tensor;
  Int64 first;  ///< of the head's row 0, element 0
  int rows;
  __device__ HeadMatrix(const Rows& t, int batch, int head, int row_count)
      : tensor(t), first(row_index(t, batch, head, 0)), rows(row_count) {}
  __device__ float operator()(int row, int d) const {
    const bool inside = row < rows && d < kDim;
    return inside ? load_element<kElement>(tensor.data, first + row * tensor.row_stride + d) : 0.0f;
  }
};

/// Element (row, column) of a matrix [rows][columns] in a workspace, 0 outside.
template <Element kElement>
struct DenseMatrix {
  void* data;
  Int64 first;   ///< index of element (0, 0)
  Int64 stride;  ///< of rows, in elements
  int rows, columns;
  __device__ Int64 index(int row, int column) const { return first + row * stride + column; }
  __device__ float operator()(int row, int column) const {
    const bool inside = row < rows && column < columns;
    return inside ? load_element<kElement>(data, index(row, column)) : 0.0f;
  }
};

}  // namespace flashlab::device
