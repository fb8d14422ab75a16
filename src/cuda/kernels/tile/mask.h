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

/// A number from its bits.
template <Element kElement>
__device__ inline float float_of_bits(unsigned bits) {
  if constexpr (kElement == Element::kFp32) return __uint_as_float(bits);
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

/// The mask tensor seen from one (batch, head).
template <class Config>
struct MaskRows {
  static constexpr int kBits = Config::kMask == MaskTensor::kBool       ? 8
                               : Config::kMaskElement == Element::kFp32 ? 32
                                                                        : 16;
  /// An element that hides its key: false, or -inf.
  static constexpr unsigned kHidden = Config::kMask == MaskTensor::kBool       ? 0
                                      : Config::kMaskElement == Element::kFp32 ? 0xff800000u
                                      : Config::kMaskElement == Element::kBf16 ? 0xff80u
                                                                               : 0xfc00u;
  /// The bits of hiding_value in 16: those of what hides are not less, as unsigned numbers. Those
  /// of a negative NaN, which does not hide, are not less either.
  static constexpr unsigned kFirstHiding =
      Config::kMaskElement == Element::kBf16
          ? __builtin_bit_cast(unsigned, hiding_value<Element::kBf16>()) >> 16
          : 0xf7ffu;
  /// Of two neighbouring keys, as they lie in memory: who reads them waits only when they are used.
  struct Pair {
    unsigned words[kBits == 32 ? 2 : 1];
    __device__ unsigned bits(int i) const {
      if constexpr (kBits == 32) {
        return words[i];
      } else {
        return words[0] >> i * kBits & ((1u << kBits) - 1);
      }
    }
  };
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

  __device__ unsigned bits(Int64 index) const {
    if constexpr (kBits == 8) return static_cast<const unsigned char*>(view.data)[index];
    if constexpr (kBits == 16) return static_cast<const unsigned short*>(view.data)[index];
    return static_cast<const unsigned*>(view.data)[index];
  }

  /// Of a key at an even place of its row and the next one. Elements of keys that are not seen are
  /// not read.
  __device__ Pair pair(Int64 index, bool first_seen, bool second_seen) const {
    const unsigned first = first_seen ? bits(index) : kHidden;
    const unsigned second = second_seen ? bits(index + distance(1)) : kHidden;
    if constexpr (kBits == 32) {
      return {{first, second}};
    } else {
      return {{first | second << kBits}};
    }
  }
  __device__ Pair pair(Int64 index) const {
    const unsigned char* at = static_cast<const unsigned char*>(view.data) + index * (kBits / 8);
    if constexpr (!Config::kMaskPairs) {
      return pair(index, true, true);
    } else if constexpr (kBits == 8) {
      return {{*reinterpret_cast<const unsigned short*>(at)}};
    } else if constexpr (kBits == 16) {
      return {{*reinterpret_cast<const unsigned*>(at)}};
    } else {
      const uint2 both = *reinterpret_cast<const uint2*>(at);
      return {{both.x, both.y}};
    }
  }
  /// Where `keys` keys are left from this one on: of a pair that begins with one, both are read.
  __device__ Pair pair_of(Int64 index, int keys) const {
    if (!Config::kMaskPairs || keys <= 0) return pair(index, keys > 0, keys > 1);
    return pair(index);
  }

  /// Eight neighbouring 16-bit elements, of which the first lies at a multiple of 16 bytes.
  __device__ uint4 eight(Int64 index) const {
    return *reinterpret_cast<const uint4*>(static_cast<const unsigned char*>(view.data) +
                                           index * 2);
  }

  /// Whether an element leaves its key visible, and the key's score after the mask: an additive
  /// mask is in natural units, of which the score has `unit`: log2(e) if it is one of log2. An
  /// additive value at or below hiding_value hides the key like a boolean false; a visible key
  /// whose own score is -inf stays visible.
  __device__ static bool reveal(float& score, unsigned element, float unit = kLog2E) {
    if constexpr (Config::kMask == MaskTensor::kNone) return true;
    if constexpr (Config::kMask == MaskTensor::kBool) return element != 0;
    const float added = float_of_bits<Config::kMaskElement>(element);
    score += added * unit;
    return !(added <= hiding_value<Config::kMaskElement>());
  }
  __device__ bool reveal_at(float& scaled, Int64 index) const {
    if constexpr (Config::kMask == MaskTensor::kNone) return true;
    return reveal(scaled, bits(index));
  }
};

}  // namespace flashlab::device
