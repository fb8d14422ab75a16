#pragma once

// Tensor maps of the emulated copy engine, in the place of what the driver encodes
// (cuTensorMapEncodeTiled).

#include <cstdint>
#include <string>

#include "runtime/program/parameters.h"

namespace emulated {

struct TensorMap {
  const char* address;
  std::uint64_t strides_bytes[4];  ///< of dimensions 1 to rank - 1
  std::uint32_t extents[5], box[5];
  std::uint8_t rank, element_bytes;
  std::uint8_t swizzle_bits;  ///< how many bits of a chunk's place change: 0 to 3
};
static_assert(sizeof(TensorMap) <= flashlab::runtime::ParameterBlock::kTensorMapBytes);

/// The map of a tensor at an address, from the description that the driver gets, under the driver's
/// rules; what breaks one is said in `error`.
inline TensorMap encode(const flashlab::runtime::TensorMap& from, const void* address,
                        std::string& error) {
  const auto need = [&](bool holds, const char* rule) {
    if (!holds) error = rule;
  };
  TensorMap out{};
  out.address = static_cast<const char*>(address);
  out.rank = static_cast<std::uint8_t>(from.rank);
  out.element_bytes = static_cast<std::uint8_t>(flashlab::size_of(from.dtype));
  out.swizzle_bits = static_cast<std::uint8_t>(from.swizzle);
  need(reinterpret_cast<std::uintptr_t>(address) % 16 == 0, "a map's address is aligned to 16");
  need(from.rank >= 1 && from.rank <= 5, "a map has one to five dimensions");
  for (std::size_t i = 0; i < static_cast<std::size_t>(from.rank); ++i) {
    need(from.extents[i] >= 1 && from.extents[i] <= UINT32_MAX, "an extent is 1 to 2^32 - 1");
    need(from.box[i] >= 1 && from.box[i] <= 256, "a box has 1 to 256 elements in a dimension");
    out.extents[i] = static_cast<std::uint32_t>(from.extents[i]);
    out.box[i] = from.box[i];
    if (i == 0) continue;
    const std::uint64_t stride = from.strides_bytes[i - 1];
    need(stride % 16 == 0 && stride < 1ull << 40, "strides are multiples of 16 below 2^40");
    out.strides_bytes[i - 1] = stride;
  }
  const unsigned inner_bytes = from.box[0] * out.element_bytes;
  need(inner_bytes % 16 == 0, "a box's rows are multiples of 16 bytes");
  need(out.swizzle_bits == 0 || inner_bytes <= 16u << out.swizzle_bits,
       "a box's rows are not longer than what is swizzled");
  need(!from.nan_outside, "what lies outside is zero here");
  return out;
}

}  // namespace emulated
