#pragma once

// A thread's share of a product of two tiles in shared memory. 256 threads stand in a square,
// thread (x, y) = (index % 16, index / 16), and share the result so:
//
//      columns    x, x + 16, ...             or    kV neighbours from kV x on, every 16 kV
//   rows  +--------------------------+
//   y     | sums[0][0] sums[0][1] .. |       Each operand is read so that a thread's four numbers
//   y+16  | sums[1][0] sums[1][1] .. |       lie side by side (one 16-byte load) and the sixteen
//   ..    +--------------------------+       threads of a row never meet in a bank.
//
// Tiles are row-major floats; a stride is a multiple of 4 and not of 8, see kVectorStride.

namespace flashlab::device {

inline constexpr int kSide = 16;
inline constexpr int kBlockThreads = kSide * kSide;

__device__ inline int thread_x() {
  return static_cast<int>(threadIdx.x) % kSide;
}
__device__ inline int thread_y() {
  return static_cast<int>(threadIdx.x) / kSide;
}

/// Row or column of the n-th of a thread's kCount numbers when neighbours go together.
template <int kCount>
__device__ inline int neighbour(int side, int n) {
  constexpr int kV = kCount % 4 == 0 ? 4 : kCount % 2 == 0 ? 2 : 1;
  return n / kV * kV * kSide + side * kV + n % kV;
}

/// tile[row][column] = element(row, column), with all threads, columns fastest.
template <int kRows, int kColumns, int kStride, class ElementAt>
__device__ inline void fill_tile(float* tile, const ElementAt& element) {
#pragma unroll 4
  for (int n = threadIdx.x; n < kRows * kColumns; n += kBlockThreads) {
    tile[n / kColumns * kStride + n % kColumns] = element(n / kColumns, n % kColumns);
  }
}

/// sums[i][j] += sum_k a[y + 16 i][k] b[x + 16 j][k]      rows by rows: Q K^T, dO V^T
template <int kDepth, int kStride, int kRows, int kColumns>
__device__ inline void add_rows_by_rows(float (&sums)[kRows][kColumns], const float* a,
                                        const float* b) {
#pragma unroll 2
  for (int k = 0; k < kDepth; k += 4) {
    float4 rA[kRows], rB[kColumns];
    for (int i = 0; i < kRows; ++i) {
      rA[i] = *reinterpret_cast<const float4*>(a + (thread_y() + kSide * i) * kStride + k);
    }
    for (int j = 0; j < kColumns; ++j) {
      rB[j] = *reinterpret_cast<const float4*>(b + (thread_x() + kSide * j) * kStride + k);
    }
    for (int i = 0; i < kRows; ++i) {
      for (int j = 0; j < kColumns; ++j) {
        sums[i][j] += rA[i].x * rB[j].x;
        sums[i][j] += rA[i].y * rB[j].y;
        sums[i][j] += rA[i].z * rB[j].z;
        sums[i][j] += rA[i].w * rB[j].w;
      }
    }
  }
}

/// sums[i][n] += sum_k a[y + 16 i][k] b[k][neighbour(x, n)]      rows by columns: P V, dS K
template <int kDepth, int kStrideA, int kStrideB, int kRows, int kColumns>
__device__ inline void add_rows_by_columns(float (&sums)[kRows][kColumns], const float* a,
                                           const float* b) {
#pragma unroll 1
  for (int k = 0; k < kDepth; k += 4) {
    float rA[kRows][4];
    for (int i = 0; i < kRows; ++i) {
      *reinterpret_cast<float4*>(rA[i]) =
          *reinterpret_cast<const float4*>(a + (thread_y() + kSide * i) * kStrideA + k);
    }
    for (int step = 0; step < 4; ++step) {
      float rB[kColumns];
      for (int n = 0; n < kColumns; ++n) {
        rB[n] = b[(k + step) * kStrideB + neighbour<kColumns>(thread_x(), n)];
      }
      for (int i = 0; i < kRows; ++i) {
        for (int n = 0; n < kColumns; ++n) sums[i][n] += rA[i][step] * rB[n];
      }
    }
  }
}

/// sums[m][n] += sum_k a[k][neighbour(y, m)] b[k][neighbour(x, n)]      P^T dO, dS^T Q
template <int kDepth, int kStrideA, int kStrideB, int kRows, int kColumns>
__device__ inline void add_columns_by_columns(float (&sums)[kRows][kColumns], const float* a,
                                              const float* b) {
#pragma unroll 4
  for (int k = 0; k < kDepth; ++k) {
    float rA[kRows], rB[kColumns];
    for (int m = 0; m < kRows; ++m) rA[m] = a[k * kStrideA + neighbour<kRows>(thread_y(), m)];
    for (int n = 0; n < kColumns; ++n) rB[n] = b[k * kStrideB + neighbour<kColumns>(thread_x(), n)];
    for (int m = 0; m < kRows; ++m) {
      for (int n = 0; n < kColumns; ++n) sums[m][n] += rA[m] * rB[n];
    }
  }
}

}  // namespace flashlab::device
