// The memory of a case: the same values in every layout and on every machine, guards that see a
// stray write, and sizes that do not fit refused with their accounts.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "lab/data/case_data.h"
#include "lab/data/case_data_fill.h"
#include "lab/machine/memory.h"
#include "reference/view.h"

namespace flashlab::lab {
namespace {

using cases::Case;
using cases::Fill;
using cases::Layout;
using testing::HasSubstr;

Case small_case() {
  Case c;
  c.name = "small";
  c.batch = 2;
  c.heads_q = 4;
  c.heads_k = 2;
  c.seqlen_q = c.seqlen_k = 9;
  c.head_dim = c.head_dim_v = 5;
  return c;
}

double at(const ConstTensor& t, std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t d) {
  return reference::load(t.data, t.spec.dtype,
                         b * t.spec.strides[0] + s * t.spec.strides[1] + h * t.spec.strides[2] + d);
}

TEST(CaseData, HoldsTheSameValuesInEveryLayout) {
  Case c = small_case();
  const CaseData contiguous = CaseData::create(c).value();
  for (Layout layout : {Layout::kHeadsFirst, Layout::kPackedQkv, Layout::kPaddedRows}) {
    c.layout = layout;
    const CaseData data = CaseData::create(c).value();
    const ForwardTensors a = contiguous.forward_tensors(), b = data.forward_tensors();
    EXPECT_NE(a.q.spec.strides, b.q.spec.strides);
    for (std::int64_t i = 0; i < 2; ++i) {
      for (std::int64_t s = 0; s < 9; ++s) {
        for (std::int64_t h = 0; h < 4; ++h) {
          for (std::int64_t d = 0; d < 5; ++d) {
            ASSERT_EQ(at(a.q, i, s, h, d), at(b.q, i, s, h, d));
            if (h >= 2) continue;
            ASSERT_EQ(at(a.k, i, s, h, d), at(b.k, i, s, h, d));
            ASSERT_EQ(at(a.v, i, s, h, d), at(b.v, i, s, h, d));
          }
        }
      }
    }
  }
}

TEST(CaseData, PackedTensorsShareARowAndPaddedOnesHaveNaNBetween) {
  Case c = small_case();
  c.layout = Layout::kPackedQkv;
  const CaseData packed = CaseData::create(c).value();
  ForwardTensors t = packed.forward_tensors();
  const auto* q = static_cast<const float*>(t.q.data);
  EXPECT_EQ(t.k.data, q + 4 * 5);
  EXPECT_EQ(t.v.data, q + 6 * 5);
  EXPECT_EQ(t.q.spec.strides[1], 8 * 5);

  c.layout = Layout::kPaddedRows;
  const CaseData padded = CaseData::create(c).value();
  t = padded.forward_tensors();
  q = static_cast<const float*>(t.q.data);
  EXPECT_EQ(t.q.spec.strides[2], 8);
  for (int n = 5; n < 8; ++n) EXPECT_TRUE(std::isnan(q[n]));
  EXPECT_TRUE(std::isnan(q[-1]));
}

// Golden values: a generator that differs between machines would make results incomparable.
TEST(CaseData, NumbersAreTheSameOnEveryMachine) {
  const double golden[] = {normal_at(1, 0), normal_at(1, 1), normal_at(1, 2), normal_at(99, 12345)};
  std::uint64_t bits[4];
  std::memcpy(bits, golden, sizeof bits);
  EXPECT_EQ(bits[0], 0xBFD3F4C5D969D7A3u);
  EXPECT_EQ(bits[1], 0x4004A733A9C140CFu);
  EXPECT_EQ(bits[2], 0xBFCD8CEFA1B31262u);
  EXPECT_EQ(bits[3], 0x3FFB7E1939449983u);
}

TEST(CaseData, NumbersAreStandardNormal) {
  constexpr int kCount = 400000;
  double sum = 0, squares = 0, fourth = 0, largest = 0, neighbours = 0, before = 0;
  int beyond_two = 0;
  for (int n = 0; n < kCount; ++n) {
    const double x = normal_at(7, static_cast<std::uint64_t>(n));
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
    largest = std::max(largest, std::fabs(x));
    neighbours += x * before;
    before = x;
    beyond_two += std::fabs(x) > 2;
  }
  // Five standard errors each.
  EXPECT_NEAR(sum / kCount, 0, 5 / std::sqrt(kCount));
  EXPECT_NEAR(squares / kCount, 1, 5 * std::sqrt(2.0 / kCount));
  EXPECT_NEAR(fourth / kCount, 3, 5 * std::sqrt(96.0 / kCount));
  EXPECT_NEAR(neighbours / kCount, 0, 5 / std::sqrt(kCount));
  EXPECT_NEAR(beyond_two / static_cast<double>(kCount), 0.0455, 0.0017);
  EXPECT_GT(largest, 4);
  EXPECT_LT(largest, 6.5);
}

TEST(CaseData, FillsAreWhatTheySay) {
  Case c = small_case();
  c.fill = Fill::kEqual;
  CaseData data = CaseData::create(c).value();
  for (std::int64_t s = 1; s < 9; ++s) {
    EXPECT_EQ(at(data.forward_tensors().k, 1, s, 1, 3), at(data.forward_tensors().k, 1, 0, 1, 3));
  }
  EXPECT_NE(at(data.forward_tensors().k, 1, 0, 1, 3), at(data.forward_tensors().k, 1, 0, 0, 3));

  c.seqlen_q = c.seqlen_k = 200;
  const auto count = [&](Fill fill, DType dtype, auto&& test) {
    c.fill = fill;
    c.dtype = dtype;
    data = CaseData::create(c).value();
    int hits = 0;
    for (std::int64_t s = 0; s < 200; ++s) {
      for (std::int64_t h = 0; h < 4; ++h) {
        for (std::int64_t d = 0; d < 5; ++d) hits += test(at(data.forward_tensors().q, 0, s, h, d));
      }
    }
    return hits;
  };
  const auto subnormal = [](double limit) {
    return [limit](double x) { return x != 0 && std::fabs(x) < limit; };
  };
  EXPECT_NEAR(count(Fill::kSubnormal, DType::kFp32, subnormal(0x1p-126)), 1000, 150);
  EXPECT_NEAR(count(Fill::kSubnormal, DType::kFp16, subnormal(0x1p-14)), 1000, 150);
  EXPECT_NEAR(count(Fill::kSubnormal, DType::kFp64, subnormal(0x1p-1022)), 1000, 150);
  EXPECT_GT(count(Fill::kMixedScales, DType::kFp32, [](double x) { return std::fabs(x) > 300; }),
            50);
  EXPECT_GT(count(Fill::kMixedScales, DType::kFp32, [](double x) { return std::fabs(x) < 1e-4; }),
            50);
  EXPECT_NEAR(count(Fill::kSpecial, DType::kBf16, [](double x) { return !std::isfinite(x); }), 50,
              25);
  EXPECT_EQ(count(Fill::kNormal, DType::kBf16, [](double x) { return !std::isfinite(x); }), 0);
  c.fill = Fill::kGrowing;
  data = CaseData::create(c).value();
  EXPECT_EQ(at(data.forward_tensors().q, 0, 7, 1, 0), 8);
  EXPECT_EQ(at(data.forward_tensors().k, 0, 0, 0, 0), -8192);
  EXPECT_EQ(at(data.forward_tensors().k, 0, 63, 0, 0), 0.125);
  EXPECT_EQ(at(data.forward_tensors().k, 0, 64, 0, 0), 0.25);
}

TEST(CaseData, OutputsStartAsNaNOrAsWhatIsAddedTo) {
  Case c = small_case();
  CaseData data = CaseData::create(c).value();
  EXPECT_TRUE(std::isnan(at(data.forward_tensors().o, 1, 2, 3, 4)));
  EXPECT_TRUE(std::isnan(at(data.backward_tensors().dk, 1, 2, 1, 4)));
  c.gradient_mode = GradientMode::kAccumulate;
  data = CaseData::create(c).value();
  const double initial = at(data.backward_tensors().dk, 1, 2, 1, 4);
  EXPECT_TRUE(std::isfinite(initial));
  static_cast<float*>(data.backward_tensors().dk.data)[0] = 99;
  ASSERT_TRUE(data.reset_outputs(Pass::kBackward).ok());
  EXPECT_NE(static_cast<float*>(data.backward_tensors().dk.data)[0], 99);
  EXPECT_EQ(at(data.backward_tensors().dk, 1, 2, 1, 4), initial);
}

TEST(CaseData, GuardsSeeWritesBeforeBehindAndBetween) {
  Case c = small_case();
  c.layout = Layout::kPaddedRows;
  CaseData data = CaseData::create(c).value();
  EXPECT_FALSE(data.find_violation().has_value());
  auto* o = static_cast<float*>(data.forward_tensors().o.data);
  o[0] = 1;  // an element: allowed
  EXPECT_FALSE(data.find_violation().has_value());
  o[6] = 1;  // padding
  ASSERT_TRUE(data.find_violation().has_value());
  EXPECT_EQ(data.find_violation()->tensor, "o");
  ASSERT_TRUE(data.reset_outputs(Pass::kForward).ok());
  EXPECT_FALSE(data.find_violation().has_value());
  o[-1] = 1;
  ASSERT_TRUE(data.find_violation().has_value());
  ASSERT_TRUE(data.reset_outputs(Pass::kForward).ok());
  auto* lse = static_cast<float*>(data.forward_tensors().lse->data);
  lse[9] = 0;  // between two heads' rows
  EXPECT_EQ(data.find_violation()->tensor, "lse");

  c.layout = Layout::kContiguous;
  data = CaseData::create(c).value();
  auto* dv = static_cast<float*>(data.backward_tensors().dv.data);
  dv[2 * 9 * 2 * 5 - 1] = 1;
  EXPECT_FALSE(data.find_violation().has_value());
  dv[2 * 9 * 2 * 5] = 1;
  EXPECT_EQ(data.find_violation()->tensor, "dv");
  ASSERT_TRUE(data.reset_outputs(Pass::kBackward).ok());
  dv[-1] = 1;
  EXPECT_EQ(data.find_violation()->tensor, "dv");
}

TEST(CaseData, AccountsNameEveryTensorWithItsBytes) {
  const Case c = small_case();
  const auto forward = accounting(c, Pass::kForward);
  ASSERT_EQ(forward.size(), 5u);
  EXPECT_EQ(forward[0].name, "q");
  EXPECT_EQ(forward[0].shape, "fp32 [2, 9, 4, 5]");
  EXPECT_EQ(forward[0].bytes, 2 * 9 * 4 * 5 * 4);
  EXPECT_EQ(forward[4].name, "lse");
  EXPECT_EQ(total_bytes(forward), (2 * 360 + 2 * 180 + 72) * 4);
  const CaseData data = CaseData::create(c).value();
  EXPECT_EQ(data.input_bytes(Pass::kForward), (360 + 2 * 180) * 4);
  EXPECT_EQ(data.output_bytes(Pass::kForward), (360 + 72) * 4);
  EXPECT_EQ(data.input_bytes(Pass::kBackward), (3 * 360 + 2 * 180 + 72) * 4);
  EXPECT_EQ(data.output_bytes(Pass::kBackward), (360 + 2 * 180) * 4);
  EXPECT_EQ(total_bytes(accounting(c, Pass::kBackward)),
            data.input_bytes(Pass::kBackward) + data.output_bytes(Pass::kBackward));
  EXPECT_THAT(to_string(forward), HasSubstr("q fp32 [2, 9, 4, 5] = 1.41 KiB"));
}

TEST(CaseData, WhatDoesNotFitIsRefusedWithItsAccounts) {
  Case c = small_case();
  CaseDataOptions options;
  options.memory_limit_bytes = 1000;
  auto refused = CaseData::create(c, options);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kOutOfMemory);
  EXPECT_THAT(refused.status().message(), HasSubstr("q fp32 [2, 9, 4, 5]"));
  EXPECT_THAT(refused.status().message(), HasSubstr("together"));
  EXPECT_THAT(refused.status().message(), HasSubstr("shorter sequence"));

  c.seqlen_q = c.seqlen_k = std::int64_t{1} << 33;  // 680 GB of q alone
  refused = CaseData::create(c);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kOutOfMemory);
  c.batch = c.seqlen_q = c.heads_q = c.heads_k = std::int64_t{1} << 40;  // beyond 64 bits
  refused = CaseData::create(c);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kOutOfMemory);
  c.batch = -1;
  refused = CaseData::create(c);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.status().message(), HasSubstr("batch: got -1"));
  EXPECT_GT(available_memory_bytes(), 0);
}

TEST(CaseData, TakesGivenValues) {
  Case c = small_case();
  c.dtype = DType::kBf16;
  std::vector<double> q(2 * 9 * 4 * 5), kv(2 * 9 * 2 * 5, 0.5);
  for (std::size_t n = 0; n < q.size(); ++n) q[n] = static_cast<double>(n % 64);
  CaseDataOptions options;
  options.values = CaseValues{tensor(q.data(), {2, 9, 4, 5}), tensor(kv.data(), {2, 9, 2, 5}),
                              tensor(kv.data(), {2, 9, 2, 5}), std::nullopt};
  const CaseData data = CaseData::create(c, options).value();
  EXPECT_EQ(at(data.forward_tensors().q, 0, 1, 2, 3), 33);
  EXPECT_EQ(at(data.forward_tensors().v, 1, 8, 1, 4), 0.5);
  EXPECT_TRUE(std::isfinite(at(data.backward_tensors().d_o, 0, 0, 0, 0)));
  options.values->k = tensor(kv.data(), {2, 2, 9, 5});
  const auto refused = CaseData::create(c, options);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("k: got"));
}

TEST(CaseData, TakesGivenValuesByTheirStrides) {
  Case c = small_case();
  const auto shape_of = [](std::int64_t heads) {
    return std::array<std::int64_t, 4>{2, 9, heads, 5};
  };
  // Axes from the one that runs fastest: C order, Fortran order, and the last axis in the middle.
  for (const std::array<std::size_t, 4> order :
       {std::array<std::size_t, 4>{3, 2, 1, 0}, {0, 1, 2, 3}, {1, 3, 0, 2}}) {
    std::vector<float> memory[3];
    const auto given = [&](std::size_t which, std::int64_t heads) {
      const auto shape = shape_of(heads);
      ConstTensor out{nullptr, contiguous_spec(DType::kFp32, {2, 9, heads, 5})};
      std::int64_t stride = 1;
      for (const std::size_t axis : order) {
        out.spec.strides[axis] = stride;
        stride *= shape[axis];
      }
      memory[which].resize(static_cast<std::size_t>(stride));
      for (std::int64_t n = 0; n < stride; ++n) {
        std::int64_t at = 0, rest = n;
        for (std::size_t axis = 4; axis-- > 0; rest /= shape[axis]) {
          at += rest % shape[axis] * out.spec.strides[axis];
        }
        memory[which][static_cast<std::size_t>(at)] = static_cast<float>(n);
      }
      out.data = memory[which].data();
      return out;
    };
    CaseDataOptions options;
    options.values = CaseValues{given(0, 4), given(1, 2), given(2, 2), std::nullopt};
    const CaseData data = CaseData::create(c, options).value();
    EXPECT_EQ(at(data.forward_tensors().q, 1, 2, 3, 4), ((1 * 9 + 2) * 4 + 3) * 5 + 4);
    EXPECT_EQ(at(data.forward_tensors().k, 1, 8, 0, 2), ((1 * 9 + 8) * 2 + 0) * 5 + 2);
    EXPECT_EQ(at(data.forward_tensors().v, 0, 3, 1, 1), ((0 * 9 + 3) * 2 + 1) * 5 + 1);
  }
}

TEST(CaseData, MasksTakeEveryBroadcastForm) {
  Case c = small_case();
  c.mask = cases::MaskKind::kBool;
  const std::array<std::int64_t, 4> shapes[6] = {{2, 4, 9, 9}, {1, 1, 9, 9}, {2, 1, 1, 9},
                                                 {2, 4, 9, 9}, {1, 4, 9, 1}, {2, 1, 9, 9}};
  for (std::uint64_t form = 0; form < 6; ++form) {
    c.seed = form;
    const CaseData data = CaseData::create(c).value();
    const auto mask = data.forward_tensors().mask;
    ASSERT_TRUE(mask.has_value());
    EXPECT_EQ(mask->spec.shape, shapes[form]);
    EXPECT_EQ(mask->spec.dtype, DType::kBool);
  }
  c.seed = 3;
  EXPECT_EQ(CaseData::create(c).value().forward_tensors().mask->spec.strides[1], 0);
  c.mask = cases::MaskKind::kAdditive;
  c.dtype = DType::kBf16;
  EXPECT_EQ(CaseData::create(c).value().forward_tensors().mask->spec.dtype, DType::kFp32);
  c.seed = 9;
  EXPECT_EQ(CaseData::create(c).value().forward_tensors().mask->spec.dtype, DType::kBf16);
}

// Kernels have other code for blocks of 16-bit masks that hide nothing: a warp's 16 rows, 64 keys.
TEST(CaseData, SomeBlocksOfAMaskHideNothing) {
  for (const DType dtype : {DType::kBf16, DType::kFp16}) {
    const std::uint16_t hiding = dtype == DType::kBf16 ? 0xfeff : 0xf7ff;  // half the lowest
    const auto list = cases::conformance_cases(dtype);
    const auto found = std::find_if(list.begin(), list.end(), [](const Case& c) {
      return c.name.find("additive-mask-own-type") != std::string::npos;
    });
    ASSERT_NE(found, list.end());
    const CaseData data = CaseData::create(*found).value();
    const auto mask = data.forward_tensors().mask;
    ASSERT_TRUE(mask.has_value());
    ASSERT_EQ(mask->spec.dtype, dtype);
    const auto* elements = static_cast<const std::uint16_t*>(mask->data);
    int open = 0, closed = 0;
    for (std::int64_t row = 0; row < mask->spec.shape[2]; row += 16) {
      for (std::int64_t key = 0; key + 64 <= mask->spec.shape[3]; key += 64) {
        int hidden = 0;
        for (std::int64_t i = 0; i < 16 * 64; ++i) {
          hidden += elements[(row + i / 64) * mask->spec.strides[2] + key + i % 64] >= hiding;
        }
        (hidden == 0 ? open : closed) += 1;
      }
    }
    EXPECT_GT(open, 0);
    EXPECT_GT(closed, open);
  }
}

}  // namespace
}  // namespace flashlab::lab
