// A comparator that cannot fail proves nothing: every way an output can be wrong must be seen.

#include "reference/comparator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace flashlab::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr float kInfF = std::numeric_limits<float>::infinity();
constexpr float kNaNF = std::numeric_limits<float>::quiet_NaN();

// [1, 3, 2, 2] outputs: reference values, what naive made of them, and what was got.
class Comparator : public testing::Test {
 protected:
  Comparator() {
    const Sizes sizes = {1, 2, 2, 3, 3, 2, 2};
    rows = Sample::everything(sizes).queries;
    for (std::size_t n = 0; n < 12; ++n) {
      expected.push_back(0.1 * static_cast<double>(n) - 0.35);
      naive.push_back(expected.back() + (n % 2 == 0 ? 1e-6 : -1e-6));
    }
    got.resize(12);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      for (std::size_t d = 0; d < 2; ++d) element(r, d) = static_cast<float>(expected[r * 2 + d]);
    }
  }

  // Rows are ordered by head, memory by token.
  float& element(std::size_t row, std::size_t d) {
    const Row& r = rows[row];
    return got[static_cast<std::size_t>((r.position * 2 + r.head) * 2) + d];
  }

  Verdict judge(const std::vector<std::uint8_t>* dont_care = nullptr) {
    return compare({"dk", tensor(static_cast<const float*>(got.data()), {1, 3, 2, 2}), rows,
                    expected, naive, dont_care, DType::kFp32});
  }

  std::vector<Row> rows;
  std::vector<double> expected, naive;
  std::vector<float> got;
};

TEST_F(Comparator, AcceptsTheReferenceItself) {
  const Verdict verdict = judge();
  EXPECT_TRUE(verdict.passed) << verdict.message();
  EXPECT_EQ(verdict.compared, 12);
  EXPECT_NEAR(verdict.naive_error, 1e-6, 1e-12);
  EXPECT_GE(verdict.bound, 2e-6);
  EXPECT_LT(verdict.bound, 2.3e-6);
}

TEST_F(Comparator, AcceptsTwiceTheNaiveErrorAndNoMore) {
  element(4, 1) += 1.9e-6f;
  EXPECT_TRUE(judge().passed);
  element(4, 1) += 0.6e-6f;
  const Verdict verdict = judge();
  EXPECT_FALSE(verdict.passed);
  EXPECT_EQ(verdict.index, (std::array<std::int64_t, 4>{0, 1, 1, 1}));
  EXPECT_NEAR(verdict.expected, expected[9], 1e-15);
  EXPECT_THAT(verdict.message(), testing::HasSubstr("dk[0, 1, 1, 1]"));
}

TEST_F(Comparator, NamesTheWorstOfSeveral) {
  element(0, 0) += 1e-4f;
  element(3, 1) -= 1e-3f;
  element(5, 0) += 1e-5f;
  const Verdict verdict = judge();
  EXPECT_FALSE(verdict.passed);
  EXPECT_EQ(verdict.index, (std::array<std::int64_t, 4>{0, 0, 1, 1}));
}

TEST_F(Comparator, ASwappedPairOfRowsIsRejected) {
  std::swap(element(0, 0), element(1, 0));
  EXPECT_FALSE(judge().passed);
}

TEST_F(Comparator, AnUnwrittenElementIsRejected) {
  element(2, 1) = kNaNF;
  const Verdict verdict = judge();
  EXPECT_FALSE(verdict.passed);
  EXPECT_TRUE(verdict.special_mismatch);
  EXPECT_EQ(verdict.index, (std::array<std::int64_t, 4>{0, 2, 0, 1}));
}

TEST_F(Comparator, AMovedNaNIsRejected) {
  expected[4] = std::nan("");
  naive[4] = std::nan("");
  EXPECT_FALSE(judge().passed) << "finite where NaN is expected";
  element(2, 0) = kNaNF;
  EXPECT_TRUE(judge().passed) << judge().message();
  element(2, 0) = static_cast<float>(0.1);
  element(2, 1) = kNaNF;
  EXPECT_FALSE(judge().passed) << "NaN one element further";
}

TEST_F(Comparator, InfinitiesAgreeInSign) {
  expected[0] = kInfinity;
  naive[0] = kInfinity;
  element(0, 0) = kInfF;
  EXPECT_TRUE(judge().passed);
  element(0, 0) = -kInfF;
  EXPECT_FALSE(judge().passed);
  element(0, 0) = kNaNF;
  EXPECT_FALSE(judge().passed);
  element(0, 0) = 3e38f;
  EXPECT_FALSE(judge().passed);
}

TEST_F(Comparator, AnInventedInfinityIsRejected) {
  element(0, 0) = kInfF;
  EXPECT_FALSE(judge().passed);
}

TEST_F(Comparator, AnInfinityIsRightWhereTheTypeEnds) {
  expected[0] = 1e39;
  naive[0] = kInfinity;
  element(0, 0) = kInfF;
  EXPECT_TRUE(judge().passed) << judge().message();
  element(0, 0) = -kInfF;
  EXPECT_FALSE(judge().passed);
}

TEST_F(Comparator, TheDontCareSetAndNothingElseIsLeftOut) {
  std::vector<std::uint8_t> dont_care(rows.size(), 0);
  dont_care[3] = 1;
  element(3, 0) = kNaNF;
  element(3, 1) = 99;
  const Verdict verdict = judge(&dont_care);
  EXPECT_TRUE(verdict.passed) << verdict.message();
  EXPECT_EQ(verdict.dont_care, 2);
  EXPECT_EQ(verdict.compared, 10);
  element(2, 0) = kNaNF;
  EXPECT_FALSE(judge(&dont_care).passed);
}

TEST_F(Comparator, ANaiveFormulaThatOverflowsDoesNotLoosenTheBound) {
  naive[6] = kInfinity;
  naive[7] = std::nan("");
  EXPECT_LT(judge().bound, 2.3e-6);
}

TEST_F(Comparator, LseWithinItsOwnRule) {
  std::vector<double> lse = {0, 3, -40, 300, -kInfinity, std::nan("")};
  std::vector<double> magnitude(6, 8.0);              // 64 features of size 1 at the default scale
  std::vector<float> values(lse.begin(), lse.end());  // [1, 2, 3] is the rows' own order
  const auto check = [&] {
    return compare_lse(tensor(static_cast<const float*>(values.data()), {1, 2, 3}), rows, lse,
                       magnitude);
  };
  EXPECT_TRUE(check().passed) << check().message();
  values[3] = 300.0029f;
  EXPECT_TRUE(check().passed);
  values[3] = 300.0032f;
  EXPECT_FALSE(check().passed);
  EXPECT_EQ(check().index, (std::array<std::int64_t, 4>{0, 0, 1, 0}));
  values[3] = 300;
  values[1] = 3 * 1.4426950408889634f;  // base 2
  EXPECT_FALSE(check().passed);
  values[1] = 3;
  values[4] = -3e38f;  // a large negative number is not an empty row
  EXPECT_FALSE(check().passed);
  values[4] = kInfF;
  EXPECT_FALSE(check().passed);
  values[4] = -kInfF;
  values[5] = -kInfF;
  EXPECT_FALSE(check().passed);
}

TEST_F(Comparator, LseOfCancelledProductsHasTheirRounding) {
  const std::vector<double> lse = {3, 3, 3, 3, 3, 3};
  const std::vector<double> magnitude = {8, 1000, 8, 8, 8, 8};
  std::vector<float> values(6, 3.0f);
  const auto check = [&] {
    return compare_lse(tensor(static_cast<const float*>(values.data()), {1, 2, 3}), rows, lse,
                       magnitude);
  };
  values[1] = 3.0003f;
  EXPECT_TRUE(check().passed) << check().message();
  values[1] = 3.0006f;
  EXPECT_FALSE(check().passed);
  values[1] = 3;
  values[2] = 3.0003f;
  EXPECT_FALSE(check().passed);
}

TEST(ComparatorAtol, IsTwiceWhatTheTypeLosesOfTheReference) {
  EXPECT_EQ(element_atol(DType::kFp32, 0.0),
            2 * std::fabs(static_cast<double>((0.0f + 0.3f) - 0.3f)));
  const float ref = 0.7654321f;
  EXPECT_EQ(element_atol(DType::kFp32, ref),
            2 * std::fabs(static_cast<double>((ref + 0.3f) - 0.3f) - static_cast<double>(ref)));
  // bf16 keeps 8 bits: 1.01 is 1.0078125 there; + 0.3007... = 1.3085..., rounded 1.3125; -
  // 0.3007...
  const double back =
      round_to(DType::kBf16, round_to(DType::kBf16, 1.0078125 + 0.30078125) - 0.30078125);
  EXPECT_EQ(element_atol(DType::kBf16, 1.01), 2 * std::fabs(back - 1.01));
  EXPECT_GT(element_atol(DType::kBf16, 1.01), element_atol(DType::kFp32, 1.01));
}

}  // namespace
}  // namespace flashlab::reference
