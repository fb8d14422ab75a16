// The reference's own conversions against the library's, which share no code with them.

#include "reference/view.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <set>

namespace flashlab::reference {
namespace {

TEST(ReferenceView, EverySixteenBitPatternReadsAsTheLibraryReadsIt) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto pattern = static_cast<std::uint16_t>(bits);
    for (DType dtype : {DType::kFp16, DType::kBf16}) {
      const float expected =
          dtype == DType::kFp16 ? float_from_fp16(pattern) : float_from_bf16(pattern);
      const double got = load(&pattern, dtype, 0);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(got)) << bits;
        continue;
      }
      ASSERT_EQ(got, static_cast<double>(expected)) << bits;
      ASSERT_EQ(std::signbit(got), std::signbit(expected)) << bits;
      std::uint16_t back = 0;
      store(&back, dtype, 0, got);
      ASSERT_EQ(back, pattern);
      ASSERT_EQ(round_to(dtype, expected), expected);
    }
  }
}

TEST(ReferenceView, RoundingAgreesWithTheLibraryOnEveryKindOfFloat) {
  std::uint32_t bits = 1;
  for (int n = 0; n < 400000; ++n) {
    bits = bits * 1664525u + 1013904223u;
    const auto value = std::bit_cast<float>(bits);
    for (DType dtype : {DType::kFp16, DType::kBf16}) {
      const std::uint16_t library =
          dtype == DType::kFp16 ? fp16_from_float(value) : bf16_from_float(value);
      const float expected =
          dtype == DType::kFp16 ? float_from_fp16(library) : float_from_bf16(library);
      const float fast = round_to(dtype, value);
      const double wide = round_to(dtype, static_cast<double>(value));
      if (std::isnan(value)) {
        ASSERT_TRUE(std::isnan(fast) && std::isnan(wide));
        continue;
      }
      ASSERT_EQ(fast, expected) << value << " in " << to_string(dtype);
      ASSERT_EQ(wide, static_cast<double>(expected)) << value << " in " << to_string(dtype);
    }
  }
}

TEST(ReferenceView, Tf32KeepsElevenBitsOfAnOperand) {
  EXPECT_EQ(round_to_tf32(1.0f + 0x1p-10f), 1.0f + 0x1p-10f);
  EXPECT_EQ(round_to_tf32(1.0f + 0x1p-11f), 1.0f);                // a tie, to even
  EXPECT_EQ(round_to_tf32(1.0f + 3 * 0x1p-11f), 1.0f + 0x1p-9f);  // the other tie
  EXPECT_EQ(round_to_tf32(-(1.0f + 0x1p-11f + 0x1p-23f)), -(1.0f + 0x1p-10f));
  EXPECT_EQ(round_to_tf32(0x1p-140f), 0.0f);
  EXPECT_TRUE(std::isinf(round_to_tf32(INFINITY)));
  EXPECT_TRUE(std::isnan(round_to_tf32(NAN)));
}

TEST(ReferenceView, RoundingOfTiesGoesToEven) {
  EXPECT_EQ(round_to(DType::kBf16, 1.0 + 1.0 / 256), 1.0);
  EXPECT_EQ(round_to(DType::kBf16, 1.0 + 3.0 / 256), 1.0 + 4.0 / 256);
  EXPECT_EQ(round_to(DType::kFp16, 1.0 + 1.0 / 2048), 1.0);
  EXPECT_EQ(round_to(DType::kFp16, 65519.0), 65504.0);
  EXPECT_TRUE(std::isinf(round_to(DType::kFp16, 65520.0)));
  EXPECT_EQ(round_to(DType::kFp16, 0x1p-25), 0.0);
  EXPECT_EQ(round_to(DType::kFp16, 0x1.8p-25), 0x1p-24);
}

TEST(ReferenceView, ReadsAnyStrides) {
  std::vector<float> memory(100);
  for (std::size_t n = 0; n < memory.size(); ++n) memory[n] = static_cast<float>(n);
  ConstTensor t = tensor(static_cast<const float*>(memory.data()), {2, 3, 2, 4});
  t.spec.strides = {0, 20, 5, 1};
  std::vector<double> rows, columns;
  read_rows(t, 1, 1, {0, 2}, rows);
  EXPECT_EQ(rows, (std::vector<double>{5, 6, 7, 8, 45, 46, 47, 48}));
  read_columns(t, 1, 1, {0, 2}, columns);
  EXPECT_EQ(columns, (std::vector<double>{5, 45, 6, 46, 7, 47, 8, 48}));
}

TEST(ReferenceView, ASeededSampleIsDistinctOrderedAndHasTheEdges) {
  const Sizes sizes = {2, 6, 3, 100, 50, 8, 8};
  const Sample sample = Sample::seeded(sizes, 64, 8, 3);
  EXPECT_FALSE(sample.all);
  EXPECT_EQ(sample.queries.size(), 64u);
  std::set<std::pair<std::int64_t, std::int64_t>> heads;
  for (std::size_t n = 0; n < sample.queries.size(); ++n) {
    const Row& row = sample.queries[n];
    heads.insert({row.batch, row.head});
    EXPECT_LT(row.position, 100);
    if (n == 0) continue;
    const Row& before = sample.queries[n - 1];
    EXPECT_LT(std::tie(before.batch, before.head, before.position),
              std::tie(row.batch, row.head, row.position));
  }
  EXPECT_EQ(heads.size(), 8u);
  EXPECT_EQ(sample.queries.front().position, 0);
  EXPECT_EQ(sample.queries.back().position, 99);
  EXPECT_EQ(Sample::seeded(sizes, 64, 8, 3).queries, sample.queries);
  EXPECT_NE(Sample::seeded(sizes, 64, 8, 4).queries, sample.queries);
}

}  // namespace
}  // namespace flashlab::reference
