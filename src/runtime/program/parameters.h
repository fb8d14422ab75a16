#pragma once

// What a kernel step is launched with: one struct by value, of which a call replaces addresses,
// scalars and tensor maps.

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "flashlab/tensor.h"

namespace flashlab::runtime {

/// A place in a buffer of a program.
struct Place {
  int buffer = -1;  ///< index of the buffer in its program
  std::int64_t offset_bytes = 0;
  friend bool operator==(const Place&, const Place&) = default;
};

/// A tiled tensor map (CUtensorMap) but for the address: how the copy engine of sm_90 and later
/// finds boxes of a tensor. PTX ISA, "Tensor copy", has the rules: a 16-byte aligned address,
/// strides that are multiples of 16 bytes, box extents to 256.
struct TensorMap {
  /// How rows of a box are swizzled in shared memory; the box's inner extent fits into it.
  enum class Swizzle : std::uint8_t { kNone, k32Bytes, k64Bytes, k128Bytes };
  /// What L2 asks memory for at least.
  enum class Fetch : std::uint8_t { k128Bytes, k256Bytes };

  DType dtype = DType::kBf16;
  int rank = 2;                                  ///< 1 to 5
  std::array<std::uint64_t, 5> extents{};        ///< in elements, innermost first
  std::array<std::uint64_t, 4> strides_bytes{};  ///< of dimensions 1 to rank - 1
  std::array<std::uint32_t, 5> box{};            ///< in elements, innermost first
  Swizzle swizzle = Swizzle::kNone;
  Fetch fetch = Fetch::k256Bytes;
  bool nan_outside = false;  ///< what lies outside reads as NaN instead of 0
};

/// The bytes of a kernel's parameter struct and what a call patches into a copy of them.
class ParameterBlock {
 public:
  static constexpr std::size_t kAlignment = 64;  ///< of a tensor map in it (PTX ISA, "Tensor-map")
  static constexpr std::size_t kMaxBytes = 4096;
  static constexpr std::size_t kTensorMapBytes = 128;

  ParameterBlock() = default;
  /// `value` is the struct that the kernel takes; kernels take one, by value.
  template <class T>
  explicit ParameterBlock(const T& value) : bytes_(sizeof(T)) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= kMaxBytes);
    std::memcpy(bytes_.data(), &value, sizeof(T));
  }

  /// The address of a place is written at `offset` (offsetof of the struct's member).
  ParameterBlock& pointer(std::size_t offset, Place place) {
    pointers_.push_back({static_cast<std::uint32_t>(offset), place});
    return *this;
  }
  /// The low `bytes` (at most 8) of a scalar of the call: what changes between replays.
  ParameterBlock& scalar(std::size_t offset, std::size_t bytes, int scalar) {
    scalars_.push_back(
        {static_cast<std::uint32_t>(offset), static_cast<std::uint32_t>(bytes), scalar});
    return *this;
  }
  /// The map of a tensor that starts at a place; `offset` is a multiple of 64.
  ParameterBlock& tensor_map(std::size_t offset, Place place, const TensorMap& map) {
    tensor_maps_.push_back({static_cast<std::uint32_t>(offset), place, map});
    return *this;
  }

  /// Every place becomes `moved(place)`.
  template <class Moved>
  void move(const Moved& moved) {
    for (Pointer& each : pointers_) each.place = moved(each.place);
    for (Map& each : tensor_maps_) each.place = moved(each.place);
  }

  struct Pointer {
    std::uint32_t offset;
    Place place;
    friend bool operator==(const Pointer&, const Pointer&) = default;
  };
  struct Scalar {
    std::uint32_t offset, bytes;
    int scalar;
    friend bool operator==(const Scalar&, const Scalar&) = default;
  };
  struct Map {
    std::uint32_t offset;
    Place place;
    TensorMap map;
  };
  /// Whether every call makes the same bytes of both; false where there are tensor maps.
  bool same_without_maps(const ParameterBlock& other) const {
    return tensor_maps_.empty() && other.tensor_maps_.empty() && bytes_ == other.bytes_ &&
           pointers_ == other.pointers_ && scalars_ == other.scalars_;
  }
  const std::vector<std::byte>& bytes() const noexcept { return bytes_; }
  const std::vector<Pointer>& pointers() const noexcept { return pointers_; }
  const std::vector<Scalar>& scalars() const noexcept { return scalars_; }
  const std::vector<Map>& tensor_maps() const noexcept { return tensor_maps_; }

 private:
  std::vector<std::byte> bytes_;
  std::vector<Pointer> pointers_;
  std::vector<Scalar> scalars_;
  std::vector<Map> tensor_maps_;
};

}  // namespace flashlab::runtime
