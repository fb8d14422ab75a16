// Bounded copies: where the copy engine finds rows of a sequence by a bounded map, and which it
// leaves out, by its arithmetic, on any machine (tests/cuda_hopper_test.cpp asks the engine).

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "api/problem.h"
#include "cuda/launch/tensor_map.h"
#include "tile/bounded.h"

namespace flashlab::cuda {
namespace {

using runtime::TensorMap;

// Bytes from a tensor's address to an element, which the engine adds modulo 2^64; none outside.
std::optional<std::uint64_t> place_of(const TensorMap& map, const std::vector<std::int64_t>& at) {
  std::uint64_t bytes = static_cast<std::uint64_t>(at[0]) * size_of(map.dtype);
  for (std::size_t i = 0; i < at.size(); ++i) {
    if (at[i] < 0 || at[i] >= static_cast<std::int64_t>(map.extents[i])) return std::nullopt;
    if (i > 0) bytes += static_cast<std::uint64_t>(at[i]) * map.strides_bytes[i - 1];
  }
  return bytes;
}

void expect_rows_of_a_sequence(const TensorSpec& spec, std::int64_t group) {
  const std::int64_t rows = spec.shape[0], row = spec.strides[0] * 2;
  const TensorMap map = bounded_map(spec, 64, group);
  ASSERT_EQ(map.rank, 5);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(map.strides_bytes[i] % 16, 0u);
    EXPECT_LT(map.strides_bytes[i], std::uint64_t{1} << 40);
    EXPECT_LE(map.extents[i + 1], std::uint64_t{1} << 32);
  }
  const std::int64_t last = rows - 1;
  for (const std::int64_t begin : {std::int64_t{0}, std::int64_t{1}, last / 2, last}) {
    for (const std::int64_t length : {std::int64_t{1}, std::int64_t{2}, rows - begin}) {
      if (begin + length > rows) continue;
      for (const std::int64_t first : {std::int64_t{0}, length / 2, length - 1}) {
        const device::BoundedRows box(static_cast<int>(begin), static_cast<int>(length),
                                      static_cast<int>(first));
        for (const std::int64_t i : {0, 1, 63}) {
          const std::int64_t head = spec.shape[1] - 1, box_row = box.row + i;
          const auto place =
              place_of(map, {8, group > 1 ? head : box_row, group > 1 ? box_row : head, box.end,
                             std::int64_t{device::kBoundedRows}});
          ASSERT_EQ(place.has_value(), first + i < length)
              << begin << " " << length << " " << first << " " << i;
          if (!place) continue;
          EXPECT_EQ(*place, static_cast<std::uint64_t>((begin + first + i) * row +
                                                       head * spec.strides[1] * 2 + 16));
        }
      }
    }
  }
}

TensorSpec packed(std::int64_t rows, std::int64_t heads, std::int64_t dim) {
  return contiguous_spec(DType::kBf16, {rows, heads, dim}, {DeviceKind::kCuda, 0});
}

TEST(BoundedCopies, EndWithTheirSequence) {
  for (const std::int64_t rows : {2, 150, 65536, 1 << 30}) {
    for (const std::int64_t group : {1, 4}) {
      TensorSpec spec = packed(rows, 4, 64);
      expect_rows_of_a_sequence(spec, group);
      spec.strides[0] = 7 * 8;  // rows that overlap, and heads far apart
      spec.strides[1] = rows * 7 * 8;
      if (describable(spec)) expect_rows_of_a_sequence(spec, group);
    }
  }
}

TEST(BoundedCopies, NeedEntriesThatAreWholeRowsApart) {
  const Device device{DeviceKind::kCuda, 0};
  TensorSpec spec = contiguous_spec(DType::kFp16, {3, 100, 2, 64}, device);
  EXPECT_TRUE(boundable(spec));
  EXPECT_EQ(rows_between_entries(spec), 100);
  spec.strides[0] += 64;
  EXPECT_TRUE(describable(spec));
  EXPECT_FALSE(boundable(spec));
  spec.shape[1] = 1;  // one row of each entry: entries are the rows
  EXPECT_TRUE(boundable(spec));
  EXPECT_EQ(rows_between_entries(spec), 1);
  EXPECT_EQ(bounded_map(spec, 64).strides_bytes[0],
            static_cast<std::uint64_t>(spec.strides[0] * 2));
  spec.shape[0] = 1;
  EXPECT_EQ(rows_between_entries(spec), 0);
}

TEST(BoundedCopies, HaveSoManyRows) {
  EXPECT_TRUE(boundable(packed(device::kBoundedRows, 1, 64)));
  EXPECT_FALSE(boundable(packed(std::int64_t{device::kBoundedRows} + 1, 1, 64)));
  const Device device{DeviceKind::kCuda, 0};
  EXPECT_TRUE(boundable(contiguous_spec(DType::kBf16, {7, 1 << 28, 1, 64}, device)));
  EXPECT_FALSE(boundable(contiguous_spec(DType::kBf16, {8, 1 << 28, 1, 64}, device)));
  TensorSpec far = packed(100, 1, 64);
  far.strides[0] = std::int64_t{1} << 33;
  EXPECT_TRUE(describable(far));
  EXPECT_FALSE(boundable(far));
}

}  // namespace
}  // namespace flashlab::cuda
