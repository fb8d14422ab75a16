#include "cuda/launch/tensor_map.h"

#include <array>
#include <cstddef>

#include "cuda/launch/config.h"

namespace flashlab::cuda {
namespace {

constexpr std::int64_t kMaxStrideBytes = std::int64_t{1} << 40;

}  // namespace

bool describable(const TensorSpec& spec) {
  if (row_alignment_bytes(spec) < kMapAlignment) return false;
  const auto size = static_cast<std::int64_t>(size_of(spec.dtype));
  for (std::size_t i = 0; i < 3; ++i) {
    const std::int64_t bytes = spec.strides[i] * size;
    if (spec.shape[i] > 1 && (bytes <= 0 || bytes >= kMaxStrideBytes)) return false;
  }
  return true;
}

// A dimension of one element has no stride of its own: any valid one does.
runtime::TensorMap tensor_map(const TensorSpec& spec, int rows, std::int64_t group) {
  runtime::TensorMap map;
  map.dtype = spec.dtype;
  map.rank = 4;
  using Axes = std::array<std::size_t, 4>;
  const Axes innermost_first = group > 1 ? Axes{3, 2, 1, 0} : Axes{3, 1, 2, 0};
  for (std::size_t i = 0; i < 4; ++i) {
    const std::size_t axis = innermost_first[i];
    map.extents[i] = static_cast<std::uint64_t>(spec.shape[axis]);
    if (i == 0) continue;
    map.strides_bytes[i - 1] =
        spec.shape[axis] > 1 ? static_cast<std::uint64_t>(spec.strides[axis]) * size_of(spec.dtype)
                             : kSlabRowBytes;
  }
  const auto heads = static_cast<std::uint32_t>(group);
  map.box = {kSlabColumns, static_cast<std::uint32_t>(rows), 1, 1};
  if (group > 1) map.box = {kSlabColumns, heads, static_cast<std::uint32_t>(rows) / heads, 1};
  map.swizzle = runtime::TensorMap::Swizzle::k128Bytes;
  return map;
}

runtime::TensorMap slab_map(DType dtype, std::int64_t rows, int box) {
  runtime::TensorMap map;
  map.dtype = dtype;
  map.rank = 4;
  map.extents = {kSlabColumns, static_cast<std::uint64_t>(rows), 1, 1};
  map.strides_bytes = {kSlabRowBytes, kSlabRowBytes, kSlabRowBytes};
  map.box = {kSlabColumns, static_cast<std::uint32_t>(box), 1, 1};
  map.swizzle = runtime::TensorMap::Swizzle::k128Bytes;
  return map;
}

runtime::TensorMap row_map(std::int64_t rows, std::int64_t columns, int box) {
  const auto row_bytes = static_cast<std::uint64_t>(columns) * sizeof(float);
  runtime::TensorMap map;
  map.dtype = DType::kFp32;
  map.rank = 4;
  map.extents = {static_cast<std::uint64_t>(columns), static_cast<std::uint64_t>(rows), 1, 1};
  map.strides_bytes = {row_bytes, row_bytes, row_bytes};
  map.box = {static_cast<std::uint32_t>(box), 1, 1, 1};
  return map;
}

}  // namespace flashlab::cuda
