#include "cuda/launch/tensor_map.h"

#include <array>
#include <cstddef>
#include <utility>

#include "cuda/kernels/tile/bounded.h"
#include "cuda/launch/config.h"

namespace flashlab::cuda {
namespace {

constexpr std::int64_t kMaxStrideBytes = std::int64_t{1} << 40;
// 2^64 / kBoundedRows: as many times this stride is no distance.
constexpr std::uint64_t kNoDistance = std::uint64_t{1} << 34;

// Bytes between neighbours of an axis. A dimension of one element has no stride of its own: any
// valid one does.
std::uint64_t stride_bytes(const TensorSpec& spec, std::size_t axis) {
  if (spec.shape[axis] <= 1) return kSlabRowBytes;
  return static_cast<std::uint64_t>(spec.strides[axis]) * size_of(spec.dtype);
}

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

runtime::TensorMap tensor_map(const TensorSpec& spec, int rows, std::int64_t group) {
  runtime::TensorMap map;
  map.dtype = spec.dtype;
  map.rank = 4;
  using Axes = std::array<std::size_t, 4>;
  const Axes innermost_first = group > 1 ? Axes{3, 2, 1, 0} : Axes{3, 1, 2, 0};
  for (std::size_t i = 0; i < 4; ++i) {
    const std::size_t axis = innermost_first[i];
    map.extents[i] = static_cast<std::uint64_t>(spec.shape[axis]);
    if (i > 0) map.strides_bytes[i - 1] = stride_bytes(spec, axis);
  }
  const auto heads = static_cast<std::uint32_t>(group);
  map.box = {kSlabColumns, static_cast<std::uint32_t>(rows), 1, 1};
  if (group > 1) map.box = {kSlabColumns, heads, static_cast<std::uint32_t>(rows) / heads, 1};
  map.swizzle = runtime::TensorMap::Swizzle::k128Bytes;
  return map;
}

namespace {

// A tensor's rows, all of one dimension: entries of a batch are so many rows apart.
struct RowsOfAll {
  std::int64_t rows, entries;
  std::uint64_t row_bytes;  // from one row to the next
  std::int64_t between;     // rows from entry to entry
  bool whole;               // that number is one

  explicit RowsOfAll(const TensorSpec& spec)
      : rows(spec.shape[spec.rank == 3 ? 0 : 1]),
        entries(spec.rank == 3 ? 1 : spec.shape[0]),
        row_bytes(stride_bytes(spec, spec.rank == 4 && rows > 1 ? 1 : 0)),
        between(0),
        whole(true) {
    if (entries <= 1) return;
    const auto bytes = static_cast<std::uint64_t>(spec.strides[0]) * size_of(spec.dtype);
    between = static_cast<std::int64_t>(bytes / row_bytes);
    whole = bytes % row_bytes == 0;
  }
};

}  // namespace

bool boundable(const TensorSpec& spec) {
  if (!describable(spec)) return false;
  const RowsOfAll of(spec);
  return of.whole && of.row_bytes < kNoDistance && of.rows <= device::kBoundedRows &&
         (of.entries <= 1 || of.between <= (INT32_MAX - of.rows) / (of.entries - 1));
}

std::int64_t rows_between_entries(const TensorSpec& spec) {
  return RowsOfAll(spec).between;
}

runtime::TensorMap bounded_map(const TensorSpec& spec, int rows, std::int64_t group) {
  const std::uint64_t row = RowsOfAll(spec).row_bytes;
  const std::size_t head_axis = spec.rank == 3 ? 1 : 2;
  const auto of_group = static_cast<std::uint32_t>(group);
  constexpr std::uint64_t kAny = std::uint64_t{1} << 31;
  runtime::TensorMap map;
  map.dtype = spec.dtype;
  map.rank = 5;
  map.extents = {static_cast<std::uint64_t>(spec.shape[head_axis + 1]), device::kBoundedRows,
                 static_cast<std::uint64_t>(spec.shape[head_axis]), kAny, kAny};
  map.strides_bytes = {row, stride_bytes(spec, head_axis), row, kNoDistance - row};
  map.box = {kSlabColumns, static_cast<std::uint32_t>(rows) / of_group, of_group, 1, 1};
  if (group > 1) {
    std::swap(map.extents[1], map.extents[2]);
    std::swap(map.strides_bytes[0], map.strides_bytes[1]);
    std::swap(map.box[1], map.box[2]);
  }
  map.swizzle = runtime::TensorMap::Swizzle::k128Bytes;
  return map;
}

int slabs_between_heads(const TensorSpec& spec) {
  const std::uint64_t bytes = stride_bytes(spec, spec.rank == 3 ? 1 : 2);
  return bytes % kSlabRowBytes == 0 ? static_cast<int>(bytes / kSlabRowBytes) : 0;
}

runtime::TensorMap bounded_slabs_map(const TensorSpec& spec, int rows) {
  const std::size_t head_axis = spec.rank == 3 ? 1 : 2;
  const auto slabs = static_cast<std::uint64_t>(spec.shape[head_axis + 1] / kSlabColumns);
  const auto heads = static_cast<std::uint64_t>(spec.shape[head_axis]);
  runtime::TensorMap map = bounded_map(spec, rows);
  map.extents[0] = kSlabColumns;
  map.extents[2] = (heads - 1) * static_cast<std::uint64_t>(slabs_between_heads(spec)) + slabs;
  map.strides_bytes[1] = kSlabRowBytes;
  map.box[2] = static_cast<std::uint32_t>(slabs);
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
