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

/// The bits of an fp16 or bf16 number as a float.
template <Element kElement>
__device__ inline float float_of_bits(unsigned bits) {
  if constexpr (kElement == Element::kFp16) return ptx::float_of_fp16(bits);
  return __uint_as_float(bits << 16);
}

/// An element of a 16- or 32-bit tensor as a float.
template <Element kElement>
__device__ inline float read_element(const void* data, Int64 index) {
  if constexpr (kElement == Element::kFp32) {
    return static_cast<const float*>(data)[index];
  } else {
    return float_of_bits<kElement>(static_cast<const unsigned short*>(data)[index]);
  }
}

/// What a mask says of a key: whether it is visible, or what is added to its score, in natural
/// units.
template <MaskTensor kMask>
struct MaskSays {
  using Value = unsigned;
  static constexpr Value kHidden = 0;
};
template <>
struct MaskSays<MaskTensor::kAdditive> {
  using Value = float;
  static constexpr Value kHidden = kMinusInfinity;
};

/// The mask tensor seen from one (batch, head).
template <class Config>
struct MaskRows {
  using Value = typename MaskSays<Config::kMask>::Value;
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

  __device__ Value value(Int64 index) const {
    if constexpr (Config::kMask == MaskTensor::kBool) {
      return static_cast<const unsigned char*>(view.data)[index];
    } else if constexpr (Config::kMask == MaskTensor::kAdditive) {
      return read_element<Config::kMaskElement>(view.data, index);
    } else {
      return 1;
    }
  }

  /// Of a key and the next one, the first at an even place of its row.
  __device__ void pair(Value (&out)[2], Int64 index) const {
    if constexpr (!Config::kMaskPairs) {
      out[0] = value(index), out[1] = value(index + distance(1));
    } else if constexpr (Config::kMask == MaskTensor::kBool) {
      const auto* flags = static_cast<const unsigned char*>(view.data) + index;
      const unsigned both = *reinterpret_cast<const unsigned short*>(flags);
      out[0] = both & 0xff, out[1] = both >> 8;
    } else if constexpr (Config::kMaskElement == Element::kFp32) {
      const auto* added = static_cast<const float*>(view.data) + index;
      const float2 both = *reinterpret_cast<const float2*>(added);
      out[0] = both.x, out[1] = both.y;
    } else {
      const auto* added = static_cast<const unsigned short*>(view.data) + index;
      const unsigned both = *reinterpret_cast<const unsigned*>(added);
      out[0] = float_of_bits<Config::kMaskElement>(both & 0xffff);
      out[1] = float_of_bits<Config::kMaskElement>(both >> 16);
    }
  }

  /// Whether a mask of `value` leaves a key visible, and its score after the mask: `scaled` is in
  /// units of log2. An additive -inf hides the key like a boolean false; a visible key whose own
  /// score is -inf stays visible.
  __device__ static bool reveal(float& scaled, Value value) {
    if constexpr (Config::kMask == MaskTensor::kBool) return value != 0;
    if constexpr (Config::kMask == MaskTensor::kAdditive) {
      scaled += value * kLog2E;
      return value != kMinusInfinity;
    }
    return true;
  }
  __device__ bool reveal(float& scaled, Int64 index) const { return reveal(scaled, value(index)); }
};

}  // namespace flashlab::device
