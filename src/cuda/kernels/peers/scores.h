#pragma once

// What the cuBLASLt composition does itself: rows of a score matrix that a GEMM has left in memory.
// One block per row; the matrices hold one batch element, [heads, Sq, Sk], without padding.

#include "composed_arguments.h"
#include "ptx/convert.h"
#include "ptx/warp.h"

namespace flashlab::device {

inline constexpr int kScoreThreads = 256;
inline constexpr int kScoreWarps = kScoreThreads / 32;

__device__ inline float infinity() {
  return __int_as_float(0x7f800000);
}

template <Element kType>
__device__ inline float load_element(const void* data, Int64 index) {
  if constexpr (kType == Element::kFp32) {
    return static_cast<const float*>(data)[index];
  } else {
    const unsigned short bits = static_cast<const unsigned short*>(data)[index];
    if constexpr (kType == Element::kFp16) return ptx::float_of_fp16(bits);
    return __uint_as_float(static_cast<unsigned>(bits) << 16);
  }
}

template <Element kType>
__device__ inline void store_element(void* data, Int64 index, float value) {
  if constexpr (kType == Element::kFp32) {
    static_cast<float*>(data)[index] = value;
  } else if constexpr (kType == Element::kFp16) {
    static_cast<unsigned short*>(data)[index] = ptx::fp16_bits(value);
  } else {
    // Round to nearest even; NaN stays NaN. sm_75 has no instruction for it.
    const unsigned bits = __float_as_uint(value);
    const unsigned rounded = value != value ? bits | 0x400000 : bits + 0x7fff + (bits >> 16 & 1);
    static_cast<unsigned short*>(data)[index] = static_cast<unsigned short>(rounded >> 16);
  }
}

/// The scaled and masked score of (query i of head h, key j); a hidden one is -inf whatever it was.
struct ScoreRow {
  const float* scores;
  const unsigned char* mask;  ///< element (b, h, i, 0); null without one
  Int64 key_stride;
  Int64 last;   ///< last visible key by the bounds
  Int64 first;  ///< first
  float scale;

  __device__ bool visible(Int64 j) const {
    if (j < first || j > last) return false;
    if constexpr (Config::kMask == MaskTensor::kBool) return mask[j * key_stride] != 0;
    if constexpr (Config::kMask == MaskTensor::kAdditive) {
      return !(bias(j) <= hiding_value<Config::kMaskElement>());
    }
    return true;
  }
  __device__ float at(Int64 j) const {
    if (!visible(j)) return -infinity();
    const float score = scores[j] * scale;
    if constexpr (Config::kMask == MaskTensor::kAdditive) return score + bias(j);
    return score;
  }
  __device__ float bias(Int64 j) const {
    return load_element<Config::kMaskElement>(mask, j * key_stride);
  }
};

__device__ inline int mask_element_bytes() {
  if constexpr (Config::kMask == MaskTensor::kBool) return 1;
  return Config::kMaskElement == Element::kFp32 ? 4 : 2;
}

/// Row i of head h of batch element b.
__device__ inline ScoreRow score_row(const float* row, const MaskView& mask, const Shape& shape,
                                     int b, int h, int i) {
  ScoreRow out;
  out.scores = row;
  out.mask = nullptr;
  if constexpr (Config::kMask != MaskTensor::kNone) {
    const Int64 offset = b * mask.batch_stride + h * mask.head_stride + i * mask.row_stride;
    out.mask = static_cast<const unsigned char*>(mask.data) + offset * mask_element_bytes();
  }
  out.key_stride = mask.key_stride;
  out.first = i - shape.left;
  out.last = i + shape.right;
  out.scale = shape.scale;
  return out;
}

/// Sum (or maximum that drops NaN) over the block, in every thread.
template <bool kMaximum>
__device__ inline float reduce_block(float value, float* shared) {
  const auto combine = [](float a, float b) { return kMaximum ? fmaxf(a, b) : a + b; };
  for (int lanes = 16; lanes > 0; lanes /= 2)
    value = combine(value, ptx::shuffle_xor(value, lanes));
  __syncthreads();  // the last reduction's values have been read
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  value = shared[0];
  for (int warp = 1; warp < kScoreWarps; ++warp) value = combine(value, shared[warp]);
  return value;
}

}  // namespace flashlab::device
