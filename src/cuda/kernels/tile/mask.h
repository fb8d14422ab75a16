#pragma once

// Mask tensors, and the constants of scores. A masked score is replaced by -inf, whatever it was;
// which keys the bounds let a row see is in tile/key_range.h.

#include "arguments.h"
#include "config_types.h"
#include "ptx/convert.h"
#include "tile/key_range.h"

namespace flashlab::device {

inline constexpr float kMinusInfinity = __builtin_bit_cast(float, 0xff800000u);
inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

/// An element of a 16- or 32-bit tensor as a float.
template <Element kElement>
__device__ inline float read_element(const void* data, Int64 index) {
  if constexpr (kElement == Element::kFp32) {
    return static_cast<const float*>(data)[index];
  } else {
    const unsigned short bits = static_cast<const unsigned short*>(data)[index];
    if constexpr (kElement == Element::kFp16) return ptx::float_of_fp16(bits);
    return __uint_as_float(static_cast<unsigned>(bits) << 16);
  }
}

/// The mask tensor seen from one (batch, head).
template <class Config>
struct MaskRows {
  MaskView view;
  Int64 base;
  __device__ MaskRows(const MaskView& mask, int batch, int head)
      : view(mask), base(batch * mask.batch_stride + head * mask.head_stride) {}

  /// Elements between the masks of two keys that are `keys` apart: a constant where they lie side
  /// by side, so that a thread's keys are constant offsets from one address.
  __device__ Int64 distance(int keys) const {
    return Config::kMaskDense ? keys : keys * view.key_stride;
  }
  __device__ Int64 index(int query, int key) const {
    return base + query * view.row_stride + distance(key);
  }

  /// Whether the mask leaves a key visible, and its score after the mask: `scaled` is in units of
  /// log2, an additive mask in natural ones. An additive -inf hides the key like a boolean false; a
  /// visible key whose own score is -inf stays visible.
  __device__ bool reveal(float& scaled, Int64 index) const {
    if constexpr (Config::kMask == MaskTensor::kBool) {
      return static_cast<const unsigned char*>(view.data)[index] != 0;
    } else if constexpr (Config::kMask == MaskTensor::kAdditive) {
      const float added = read_element<Config::kMaskElement>(view.data, index);
      scaled += added * kLog2E;
      return added != kMinusInfinity;
    } else {
      return true;
    }
  }

  /// The score of a key for the softmax: -inf if it is hidden.
  __device__ float apply(float scaled, Int64 index) const {
    return reveal(scaled, index) ? scaled : kMinusInfinity;
  }
};

}  // namespace flashlab::device
