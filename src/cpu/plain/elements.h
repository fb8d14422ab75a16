#pragma once

// Rows of any element type, read as the type sums are kept in and rounded once when written.

#include <bit>
#include <cstdint>

#include "flashlab/tensor.h"

namespace flashlab::internal {

/// bf16 is the upper half of an fp32.
inline float widen_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// Round to nearest even. A NaN keeps its sign and becomes quiet: its payload may lie in the bits
/// that are dropped, and what is left would read as infinity.
inline std::uint16_t narrow_bf16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const std::uint32_t quiet = (bits >> 16) | 0x40u;
  return static_cast<std::uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

/// Multiplying by 2^112 moves fp16's exponent to fp32's bias, for subnormals too.
inline float widen_fp16(std::uint16_t half) {
  const std::uint32_t magnitude = half & 0x7fffu;
  const float value = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  const std::uint32_t special = (magnitude << 13) | 0x7f800000u;  // infinity or NaN
  const std::uint32_t bits = magnitude >= 0x7c00u ? special : std::bit_cast<std::uint32_t>(value);
  return std::bit_cast<float>(bits | (half & 0x8000u) << 16);
}

/// Round to nearest even; subnormals kept, too large becomes infinity.
inline std::uint16_t narrow_fp16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  // Adding 0.5 leaves an fp16 subnormal, rounded by the addition itself, in the low bits.
  const std::uint32_t tiny =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  const std::uint32_t rebias =
      0xc8000fffu;  // (15 - 127) << 23, and just below half of the last bit
  const std::uint32_t normal = (magnitude + rebias + ((magnitude >> 13) & 1u)) >> 13;
  const std::uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  const std::uint32_t finite = magnitude < 0x38800000u ? tiny : normal;
  const std::uint32_t half = magnitude >= 0x47800000u ? special : finite;
  return static_cast<std::uint16_t>(half | (bits >> 16 & 0x8000u));
}

/// out[c] = data[first + c] for c in [0, count), `first` in elements. Acc is float or double; the
/// dtype is fp64, fp32, fp16 or bf16.
template <class Acc>
void load_row(DType dtype, const void* data, std::int64_t first, std::int64_t count, Acc* out);

/// data[first + c] = values[c], rounded once. With `accumulate` the old element is added before.
template <class Acc>
void store_row(DType dtype, void* data, std::int64_t first, std::int64_t count, const Acc* values,
               bool accumulate = false);

/// One element.
template <class Acc>
Acc load_element(DType dtype, const void* data, std::int64_t index) {
  Acc value;
  load_row(dtype, data, index, 1, &value);
  return value;
}

template <class Acc>
void store_element(DType dtype, void* data, std::int64_t index, Acc value) {
  store_row(dtype, data, index, 1, &value);
}

/// Whether all values are finite. An exponent of all ones is NaN or infinity: x - x is 0 for every
/// other number, and the loop has no branch.
template <class Acc>
bool all_finite(std::int64_t count, const Acc* values) {
  int bad = 0;
  for (std::int64_t c = 0; c < count; ++c) bad |= !(values[c] - values[c] == Acc(0));
  return bad == 0;
}

}  // namespace flashlab::internal
