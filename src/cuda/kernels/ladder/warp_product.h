#pragma once

// Products of tiles of 16-bit elements on tensor cores, one strip of 16 rows per warp. ptx/mma.h
// says which lane holds what, tile/fragments.h which addresses a lane gives.
//
// A lane holds of a strip [16][8 n ..] rows g and g + 8, columns 8 n + 2 t and the next one, with
// g = lane / 4, t = lane % 4: sums[n][0..1] of row g, sums[n][2..3] of row g + 8.

#include "ladder/elements.h"
#include "ladder/pairs.h"
#include "tile/fragments.h"

namespace flashlab::device {

/// Fills a tile from rows row0 .. of a head; zeros outside and where `skip(row)` says so. 16 bytes
/// at a time where the row's address allows it.
template <Element kSource, Element kElement, int kDim, class Layout, class Skip>
__device__ inline void fill_half_tile(unsigned char* tile, const Rows& rows, int batch, int head,
                                      int row0, int row_end, const Skip& skip) {
  for (int n = threadIdx.x; n < Layout::kRows * Layout::kChunks; n += blockDim.x) {
    const int r = n / Layout::kChunks, d = n % Layout::kChunks * 8;
    uint4 chunk = {0, 0, 0, 0};
    if (row0 + r < row_end) {
      const Int64 index = row_index(rows, batch, head, row0 + r) + d;
      const auto* address = static_cast<const unsigned short*>(rows.data) + index;
      if (kSource == kElement && d + 8 <= kDim && reinterpret_cast<Int64>(address) % 16 == 0) {
        chunk = *reinterpret_cast<const uint4*>(address);
      } else {
        float value[8];
        for (int i = 0; i < 8; ++i) {
          value[i] = d + i < kDim ? load_element<kSource>(rows.data, index + i) : 0.0f;
        }
        chunk = {pack<kElement>(value[0], value[1]), pack<kElement>(value[2], value[3]),
                 pack<kElement>(value[4], value[5]), pack<kElement>(value[6], value[7])};
      }
      // After the load, so that what skip() reads is fetched at the same time.
      if (skip(row0 + r)) chunk = {0, 0, 0, 0};
    }
    *reinterpret_cast<uint4*>(tile + Layout::offset(r, n % Layout::kChunks)) = chunk;
  }
}

/// sums += A B^T: A is the strip from `row` on of a tile, B all rows of another; both by rows.
template <Element kElement, class LayoutA, class LayoutB, int kColumns>
__device__ inline void add_strip_by_rows(float (&sums)[kColumns][4], const unsigned char* a,
                                         int row, const unsigned char* b) {
  const int lane = threadIdx.x % 32;
  const unsigned at_a = ptx::shared_address(a + lane_offset_rows_first<LayoutA>(lane));
  const unsigned at_b = ptx::shared_address(b + lane_offset_chunks_first<LayoutB>(lane));
#pragma unroll
  for (int k = 0; k < LayoutA::kChunks; k += 2) {
    unsigned rA[4], rB[4];
    ptx::load_matrix_4(rA, at_a + LayoutA::offset(row, k));
#pragma unroll
    for (int n = 0; n < kColumns; n += 2) {
      ptx::load_matrix_4(rB, at_b + LayoutB::offset(8 * n, k));
      multiply_add<kElement>(sums[n], rA, rB[0], rB[1]);
      multiply_add<kElement>(sums[n + 1], rA, rB[2], rB[3]);
    }
  }
}

/// sums += A B: A is a strip in registers as packed by pack_strip, B a tile [16 kSteps][columns].
template <Element kElement, class LayoutB, int kSteps, int kColumns>
__device__ inline void add_strip_by_columns(float (&sums)[kColumns][4],
                                            const unsigned (&a)[kSteps][4],
                                            const unsigned char* b) {
  const int lane = threadIdx.x % 32;
  const unsigned at_b = ptx::shared_address(b + lane_offset_rows_first<LayoutB>(lane));
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
#pragma unroll
    for (int n = 0; n < kColumns; n += 2) {
      unsigned rB[4];
      ptx::load_matrix_4_transposed(rB, at_b + LayoutB::offset(16 * k, n));
      multiply_add<kElement>(sums[n], a[k], rB[0], rB[1]);
      multiply_add<kElement>(sums[n + 1], a[k], rB[2], rB[3]);
    }
  }
}

/// A strip of sums as the left operand of the next product: what a lane holds of a result is what
/// it must hold of an operand, so nothing is exchanged.
template <Element kElement, int kColumns>
__device__ inline void pack_strip(unsigned (&out)[kColumns / 2][4],
                                  const float (&sums)[kColumns][4]) {
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
    out[n / 2][n % 2 * 2] = pack<kElement>(sums[n][0], sums[n][1]);
    out[n / 2][n % 2 * 2 + 1] = pack<kElement>(sums[n][2], sums[n][3]);
  }
}

/// Writes a packed strip to rows row .. of a tile.
template <class Layout, int kSteps>
__device__ inline void store_strip(unsigned char* tile, int row,
                                   const unsigned (&strip)[kSteps][4]) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
#pragma unroll
    for (int part = 0; part < 4; ++part) {  // rows g, g + 8 of chunk 2 k, then of chunk 2 k + 1
      unsigned char* at = tile + Layout::offset(row + g + part % 2 * 8, 2 * k + part / 2) + 4 * t;
      *reinterpret_cast<unsigned*>(at) = strip[k][part];
    }
  }
}

/// Strip `column` of a tile's transpose as a left operand: rows are the tile's columns from
/// 16 column on, depth its rows.
template <class Layout, int kSteps>
__device__ inline void load_strip_transposed(unsigned (&out)[kSteps][4], const unsigned char* tile,
                                             int column) {
  const int lane = threadIdx.x % 32;
  const unsigned at = ptx::shared_address(tile + lane_offset_chunks_first<Layout>(lane));
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    ptx::load_matrix_4_transposed(out[k], at + Layout::offset(16 * k, 2 * column));
  }
}

}  // namespace flashlab::device
