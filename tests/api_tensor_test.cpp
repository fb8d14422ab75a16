#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "flashlab/tensor.h"

namespace flashlab {
namespace {

TEST(Fp16, EveryValueSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = float_from_fp16(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(float_from_fp16(fp16_from_float(value))));
    } else {
      EXPECT_EQ(fp16_from_float(value), half);
    }
  }
}

// Round to nearest even by its definition: the nearest of the two neighbours, ties to even bits.
std::uint16_t nearest_fp16(float value) {
  std::uint16_t best = 0;
  double distance = std::numeric_limits<double>::infinity();
  for (std::uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const double d = std::fabs(static_cast<double>(float_from_fp16(half)) - value);
    if (d < distance || (d == distance && (half & 1) == 0)) {
      distance = d;
      best = half;
    }
  }
  return best;
}

TEST(Fp16, RoundsToNearestEven) {
  for (float value : {0.0f, 1.0f, 1.00048828125f, 1.0014648f, 5.9604645e-8f, 2.9802322e-8f, 2.9e-8f,
                      6.1e-5f, 6.09756e-5f, 1023.5f, 2049.0f, 2051.0f, 65503.9f, 0.1f, 3.14159f}) {
    EXPECT_EQ(fp16_from_float(value), nearest_fp16(value)) << value;
    EXPECT_EQ(fp16_from_float(-value), nearest_fp16(value) | 0x8000) << value;
  }
  EXPECT_EQ(fp16_from_float(65519.9f), 0x7bff);
  EXPECT_EQ(fp16_from_float(65520.0f), 0x7c00);
  EXPECT_EQ(fp16_from_float(std::numeric_limits<float>::infinity()), 0x7c00);
}

TEST(Bf16, RoundsToNearestEven) {
  EXPECT_EQ(bf16_from_float(1.0f), 0x3f80);
  EXPECT_EQ(bf16_from_float(1.00390625f), 0x3f80) << "a tie goes to the even neighbour";
  EXPECT_EQ(bf16_from_float(1.01171875f), 0x3f82) << "a tie goes to the even neighbour";
  EXPECT_EQ(bf16_from_float(std::bit_cast<float>(0x3f808001u)), 0x3f81);
  EXPECT_EQ(bf16_from_float(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_TRUE(std::isnan(float_from_bf16(bf16_from_float(std::bit_cast<float>(0x7f800001u)))))
      << "a NaN with low payload bits stays a NaN";
  for (std::uint32_t bits = 0; bits < 0x7f80; ++bits) {
    EXPECT_EQ(bf16_from_float(float_from_bf16(static_cast<std::uint16_t>(bits))), bits);
  }
}

TEST(TensorSpec, ContiguousStridesAreRowMajor) {
  const TensorSpec spec = contiguous_spec(DType::kBf16, {2, 3, 4, 5});
  EXPECT_EQ(spec.strides[0], 60);
  EXPECT_EQ(spec.strides[1], 20);
  EXPECT_EQ(spec.strides[2], 5);
  EXPECT_EQ(spec.strides[3], 1);
  EXPECT_EQ(spec.elements(), 120);
  EXPECT_EQ(spec.bytes(), 240);
  EXPECT_EQ(to_string(spec), "bf16 [2, 3, 4, 5] strides [60, 20, 5, 1] on cpu");
}

TEST(Tensor, ViewsKeepConstness) {
  const float in[4] = {};
  float out[4] = {};
  const ConstTensor a = tensor(in, {1, 1, 1, 4});
  const Tensor b = tensor(out, {1, 1, 1, 4});
  EXPECT_EQ(a.data, in);
  EXPECT_EQ(b.data, out);
  EXPECT_EQ(a.spec.dtype, DType::kFp32);
}

}  // namespace
}  // namespace flashlab
