#pragma once

// Products of the tensor-core rungs, of a warp that owns 16 queries. ptx/mma.h says which lane
// holds which element of a fragment; in short, with g = lane / 4 and t = lane % 4, a lane has rows
// g and g + 8, columns 2t and 2t + 1 of every 16 x 8 block of scores or of O.

#include "config_types.h"
#include "ladder/strides.h"
#include "ptx/convert.h"
#include "ptx/memory.h"
#include "ptx/mma.h"

namespace flashlab::device {

/// Two floats side by side in 16 bits each.
template <Element kElement>
__device__ inline unsigned pack_two(float low, float high) {
#if __CUDA_ARCH__ >= 800
  return kElement == Element::kBf16 ? ptx::pack_bf16(low, high) : ptx::pack_fp16(low, high);
#else
  return ptx::fp16_bits(low) | static_cast<unsigned>(ptx::fp16_bits(high)) << 16;
#endif
}

/// d[16, 8] += a[16, 16] b[16, 8]. sm_75 has fp16 in steps of 8 only: two of them.
template <Element kElement>
__device__ inline void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
#if __CUDA_ARCH__ >= 800
  const unsigned b[2] = {b0, b1};
  if constexpr (kElement == Element::kBf16) {
    ptx::mma_bf16_16816(d, a, b);
  } else {
    ptx::mma_fp16_16816(d, a, b);
  }
#else
  static_assert(kElement == Element::kFp16, "bf16 on tensor cores needs sm_80");
  const unsigned lower[2] = {a[0], a[1]}, upper[2] = {a[2], a[3]};
  ptx::mma_fp16_1688(d, lower, b0);
  ptx::mma_fp16_1688(d, upper, b1);
#endif
}

/// Q as A fragments: 16 rows of a tile, kMmaDim / 16 steps of features.
template <int kDim>
__device__ inline void load_queries(unsigned (&q)[kMmaDim<kDim> / 16][4],
                                    const unsigned short* rows) {
  const int lane = threadIdx.x % 32;
  const unsigned short* corner = rows + lane % 16 * kMmaStride<kDim> + lane / 16 * 8;
  for (int step = 0; step < kMmaDim<kDim> / 16; ++step) {
    ptx::load_matrix_4(q[step], ptx::shared_address(corner + step * 16));
  }
}

/// s[16, kKeys] = q K^T. K's rows are the columns of B: they are loaded as they lie.
template <Element kElement, int kDim, int kKeys>
__device__ inline void scores(float (&s)[kKeys / 8][4], const unsigned (&q)[kMmaDim<kDim> / 16][4],
                              const unsigned short* sK) {
  const int lane = threadIdx.x % 32;
  const unsigned short* corner =
      sK + (lane / 16 * 8 + lane % 8) * kMmaStride<kDim> + lane / 8 % 2 * 8;
#pragma unroll
  for (int key = 0; key < kKeys; key += 16) {
    float(&left)[4] = s[key / 8], (&right)[4] = s[key / 8 + 1];
    for (int e = 0; e < 4; ++e) left[e] = right[e] = 0;
#pragma unroll
    for (int step = 0; step < kMmaDim<kDim> / 16; ++step) {
      unsigned b[4];
      ptx::load_matrix_4(b, ptx::shared_address(corner + key * kMmaStride<kDim> + step * 16));
      multiply<kElement>(left, q[step], b[0], b[1]);
      multiply<kElement>(right, q[step], b[2], b[3]);
    }
  }
}

/// o[16, Dv] += p[16, kKeys] V. Where a lane holds scores is where it needs them as operand A: P
/// never leaves the registers. V's columns are loaded by transposing.
template <Element kElement, int kDimV, int kKeys>
__device__ inline void add_values(float (&o)[kMmaDim<kDimV> / 8][4], const float (&p)[kKeys / 8][4],
                                  const unsigned short* sV) {
  const int lane = threadIdx.x % 32;
  const unsigned short* corner = sV + lane % 16 * kMmaStride<kDimV> + lane / 16 * 8;
#pragma unroll
  for (int key = 0; key < kKeys; key += 16) {
    const float(&left)[4] = p[key / 8], (&right)[4] = p[key / 8 + 1];
    const unsigned a[4] = {
        pack_two<kElement>(left[0], left[1]), pack_two<kElement>(left[2], left[3]),
        pack_two<kElement>(right[0], right[1]), pack_two<kElement>(right[2], right[3])};
#pragma unroll
    for (int n = 0; n < kMmaDim<kDimV> / 16; ++n) {
      unsigned b[4];
      ptx::load_matrix_4_transposed(b,
                                    ptx::shared_address(corner + key * kMmaStride<kDimV> + n * 16));
      multiply<kElement>(o[2 * n], a, b[0], b[1]);
      multiply<kElement>(o[2 * n + 1], a, b[2], b[3]);
    }
  }
}

}  // namespace flashlab::device
