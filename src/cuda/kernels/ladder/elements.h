#pragma once

// Elements of any type as floats, one at a time and four at a time, and where a row lies.

#include "arguments.h"
#include "config_types.h"
#include "ptx/convert.h"

namespace flashlab::device {

template <Element kElement>
inline constexpr int kBytesOf = kElement == Element::kFp32 ? 4 : 2;

/// 16 bits of fp16 or bf16 as a float. bf16 is the upper half of a float: no instruction of sm_80
/// is needed.
template <Element kElement>
__device__ inline float float_of_bits(unsigned short bits) {
  if constexpr (kElement == Element::kFp16) return ptx::float_of_fp16(bits);
  return __uint_as_float(static_cast<unsigned>(bits) << 16);
}

/// A float rounded to nearest even. bf16 by integers: add half of the last place, less one for an
/// even result, and cut; NaN would carry into infinity and is made by hand.
template <Element kElement>
__device__ inline unsigned short bits_of_float(float value) {
  if constexpr (kElement == Element::kFp16) return ptx::fp16_bits(value);
  const unsigned bits = __float_as_uint(value);
  if (value != value) return 0x7fff;
  return static_cast<unsigned short>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

template <Element kElement>
__device__ inline float load_element(const void* data, Int64 index) {
  if constexpr (kElement == Element::kFp32) return static_cast<const float*>(data)[index];
  return float_of_bits<kElement>(static_cast<const unsigned short*>(data)[index]);
}

template <Element kElement>
__device__ inline void store_element(void* data, Int64 index, float value) {
  if constexpr (kElement == Element::kFp32) {
    static_cast<float*>(data)[index] = value;
  } else {
    static_cast<unsigned short*>(data)[index] = bits_of_float<kElement>(value);
  }
}

/// Elements index .. index + 3 as floats by one load of 16 or 8 bytes, to which it is aligned.
template <Element kElement>
__device__ inline float4 load_four(const void* data, Int64 index) {
  if constexpr (kElement == Element::kFp32) {
    return *reinterpret_cast<const float4*>(static_cast<const float*>(data) + index);
  } else {
    const auto* address = static_cast<const unsigned short*>(data) + index;
    const ushort4 bits = *reinterpret_cast<const ushort4*>(address);
    return {float_of_bits<kElement>(bits.x), float_of_bits<kElement>(bits.y),
            float_of_bits<kElement>(bits.z), float_of_bits<kElement>(bits.w)};
  }
}

/// The other way round.
template <Element kElement>
__device__ inline void store_four(void* data, Int64 index, float4 value) {
  if constexpr (kElement == Element::kFp32) {
    *reinterpret_cast<float4*>(static_cast<float*>(data) + index) = value;
  } else {
    *reinterpret_cast<ushort4*>(static_cast<unsigned short*>(data) + index) = {
        bits_of_float<kElement>(value.x), bits_of_float<kElement>(value.y),
        bits_of_float<kElement>(value.z), bits_of_float<kElement>(value.w)};
  }
}

/// Of four neighbours from feature d on, those below kDim; `index` is that of feature d.
template <Element kElement, int kAlign, int kDim>
__device__ inline void store_up_to_four(void* data, Int64 index, int d, float4 value) {
  if (kAlign >= 4 * kBytesOf<kElement> && d + 4 <= kDim) {
    store_four<kElement>(data, index, value);
    return;
  }
  store_element<kElement>(data, index, value.x);
  if (d + 1 < kDim) store_element<kElement>(data, index + 1, value.y);
  if (d + 2 < kDim) store_element<kElement>(data, index + 2, value.z);
  if (d + 3 < kDim) store_element<kElement>(data, index + 3, value.w);
}

/// Index of the first element of a row; 64-bit, because tensors may exceed 2^31 elements.
__device__ inline Int64 row_index(const Rows& tensor, int batch, int head, int row) {
  return batch * tensor.batch_stride + head * tensor.head_stride + row * tensor.row_stride;
}

__device__ inline Int64 row_index(const RowScalars& tensor, int batch, int head, int row) {
  return batch * tensor.batch_stride + head * tensor.head_stride + row * tensor.row_stride;
}

}  // namespace flashlab::device
