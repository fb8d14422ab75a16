#pragma once

// Of Hopper's backward kernels, whose warpgroups have 64 keys as rows: what a thread holds of
// products whose columns are queries (S^T, dP^T) or features (dK, dV). With warp w of the group,
// g = lane / 4 and t = lane % 4 a thread holds keys 16 w + g and 16 w + g + 8: index 4 j + 2 h + i
// is key half h, column 8 j + 2 t + i.

#include "ptx/convert.h"
#include "tile/output.h"
#include "tile/query_walk.h"
#include "tile/slab.h"

namespace flashlab::device {

/// One of two packed elements: 0 the low half.
template <Element kElement>
__device__ inline float unpack(unsigned both, int half) {
  if constexpr (kElement == Element::kBf16) {
    return __uint_as_float(half == 0 ? both << 16 : both & 0xffff0000u);
  } else {
    return ptx::float_of_fp16(static_cast<unsigned short>(half == 0 ? both : both >> 16));
  }
}

/// A value per query of a tile: a thread has two of every 8. The first are read at once, so that
/// nobody waits for them when the products are there that they are used with.
struct PerQuery {
  static constexpr int kEarly = 8;
  const float* own;
  float2 early[kEarly];
  __device__ PerQuery(const float* values, unsigned thread) : own(values + 2 * (thread % 4)) {
#pragma unroll
    for (int j = 0; j < kEarly; ++j) early[j] = read(j);
  }
  __device__ float2 read(int block) const {
    return *reinterpret_cast<const float2*>(own + 8 * block);
  }
  __device__ float2 pair(int block) const {
    return block < kEarly ? early[block < kEarly ? block : 0] : read(block);
  }
};

/// Calls `work` with each slab of 64 features and what a thread holds of a head's kHeadDim features
/// there.
template <int kHeadDim, int kSlabs, class Work>
__device__ inline void for_slabs(float (&sum)[kSlabs][32], const Work& work) {
  constexpr int kColumns = round_up(kHeadDim, 16), kLast = (kColumns - 1) / kSlabColumns;
#pragma unroll
  for (int slab = 0; slab < kLast; ++slab) work(slab, sum[slab]);
  constexpr int kCount = (kColumns - kLast * kSlabColumns) / 2;
  work(kLast, reinterpret_cast<float(&)[kCount]>(sum[kLast]));
}

template <int kSlabs>
__device__ inline void clear_slabs(float (&sum)[kSlabs][32]) {
#pragma unroll
  for (auto& slab : sum) {
#pragma unroll
    for (float& value : slab) value = 0;
  }
}

/// dK or dV of 16 keys from `key0` on, times `scale`.
template <class Writer, Element kGradient, int kSlabs>
__device__ inline void store_key_rows(const float (&sum)[kSlabs][32], const Rows& to,
                                      const Shape& shape, const Work& work, int key0, int lane,
                                      float scale) {
#pragma unroll
  for (int slab = 0; slab < kSlabs; ++slab) {
    Writer::write(reinterpret_cast<const float(&)[8][4]>(sum[slab]), scale, slab * kSlabColumns,
                  lane, [&](int row) -> unsigned char* {
                    if (key0 + row >= shape.seqlen_k) return nullptr;
                    return row_address<kGradient>(to, work.batch, work.head_k, key0 + row);
                  });
  }
}

}  // namespace flashlab::device
