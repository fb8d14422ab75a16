// The oracle against numbers worked out by hand, against finite differences, and against the
// contract's sentences about rows without keys, NaN and infinities.

#include "reference/oracle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "flashlab/flashlab.h"
#include "reference/naive_rounded.h"
#include "reference_problem.h"

namespace flashlab::reference {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// q = 1, k = (0, ln 3), scale 1: probabilities 1/4 and 3/4; v = (1, 5): o = 4, lse = ln 4.
SmallProblem two_keys() {
  SmallProblem p({.seqlen_k = 2});
  p.options.scale = 1.0f;
  p.q = {1};
  p.k = {0, std::log(3.0)};
  p.v = {1, 5};
  p.d_o = {1};
  p.d_lse = {2};
  return p;
}

TEST(Oracle, ForwardByHand) {
  SmallProblem p = two_keys();
  const ForwardRows out = p.run_forward();
  EXPECT_NEAR(out.o[0], 4.0, 1e-15);
  EXPECT_NEAR(out.lse[0], std::log(4.0), 1e-15);
}

TEST(Oracle, BackwardByHand) {
  SmallProblem p = two_keys();
  // delta = o = 4, dS = p (v - 4) = (-3/4, 3/4).
  BackwardRows out = p.run_backward();
  EXPECT_NEAR(out.dq[0], 0.75 * std::log(3.0), 1e-15);
  EXPECT_NEAR(out.dk[0], -0.75, 1e-15);
  EXPECT_NEAR(out.dk[1], 0.75, 1e-15);
  EXPECT_NEAR(out.dv[0], 0.25, 1e-15);
  EXPECT_NEAR(out.dv[1], 0.75, 1e-15);
  // dLSE = 2: dS = p (v - 4 + 2) = (-1/4, 9/4); dV does not change.
  out = p.run_backward(true);
  EXPECT_NEAR(out.dq[0], 2.25 * std::log(3.0), 1e-15);
  EXPECT_NEAR(out.dk[0], -0.25, 1e-15);
  EXPECT_NEAR(out.dk[1], 2.25, 1e-15);
  EXPECT_NEAR(out.dv[1], 0.75, 1e-15);
}

TEST(Oracle, ScaleDefaultsToOneOverRootOfHeadDim) {
  SmallProblem p({.seqlen_k = 2, .head_dim = 4});
  p.q = {1, 1, 1, 1};
  p.k = {0, 0, 0, 0, 1, 1, 1, 1};  // scores 0 and 4/2 = 2
  p.v = {0, 1};
  EXPECT_NEAR(p.run_forward().o[0], 1 / (1 + std::exp(-2.0)), 1e-15);
}

struct GradientCase {
  const char* name;
  Shape shape;
  Causal causal = Causal::kNone;
  std::optional<float> scale{};
  enum { kNone, kBool, kAdditive } mask = kNone;
};

class Gradients : public testing::TestWithParam<GradientCase> {};

// Central differences with step h have an error of h^2 / 6 times the third derivative: 1e-10 here.
void expect_gradient(SmallProblem& p, std::vector<double>& values,
                     const std::vector<double>& analytic, const std::vector<Row>& rows,
                     std::int64_t seqlen, std::int64_t heads, bool with_d_lse, const char* name) {
  constexpr double kStep = 1e-5;
  const std::size_t width = values.size() / rows.size();
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const auto token = static_cast<std::size_t>(
        (rows[r].batch * seqlen + rows[r].position) * heads + rows[r].head);
    for (std::size_t d = 0; d < width; ++d) {
      double& x = values[token * width + d];
      const double before = x;
      x = before + kStep;
      const double up = p.loss(with_d_lse);
      x = before - kStep;
      const double down = p.loss(with_d_lse);
      x = before;
      ASSERT_NEAR(analytic[r * width + d], (up - down) / (2 * kStep), 2e-9)
          << name << " row " << r << " element " << d;
    }
  }
}

TEST_P(Gradients, MatchFiniteDifferences) {
  const GradientCase& c = GetParam();
  SmallProblem p(c.shape);
  p.options.causal = c.causal;
  p.options.scale = c.scale;
  std::vector<std::uint8_t> visible;
  std::vector<double> added;
  if (c.mask != GradientCase::kNone) {  // [B, 1, Sq, Sk]
    const auto count =
        static_cast<std::size_t>(c.shape.batch * c.shape.seqlen_q * c.shape.seqlen_k);
    for (std::size_t n = 0; n < count; ++n) {
      visible.push_back(n % 3 != 1);
      added.push_back(n % 5 == 2 ? -kInf : wave(n, 0.4));
    }
    const std::initializer_list<std::int64_t> shape = {c.shape.batch, 1, c.shape.seqlen_q,
                                                       c.shape.seqlen_k};
    p.mask =
        c.mask == GradientCase::kBool
            ? ConstTensor(tensor(static_cast<const void*>(visible.data()), shape, DType::kBool))
            : ConstTensor(tensor(added.data(), shape));
  }
  for (bool with_d_lse : {false, true}) {
    const BackwardRows out = p.run_backward(with_d_lse);
    expect_gradient(p, p.q, out.dq, out.queries, c.shape.seqlen_q, c.shape.heads_q, with_d_lse,
                    "dq");
    expect_gradient(p, p.k, out.dk, out.keys, c.shape.seqlen_k, c.shape.heads_k, with_d_lse, "dk");
    expect_gradient(p, p.v, out.dv, out.keys, c.shape.seqlen_k, c.shape.heads_k, with_d_lse, "dv");
  }
}

INSTANTIATE_TEST_SUITE_P(
    Oracle, Gradients,
    testing::Values(
        GradientCase{"plain", {2, 2, 2, 3, 4, 3, 2}},
        GradientCase{"grouped", {1, 4, 2, 3, 5, 2, 3}},
        GradientCase{"top_left", {1, 2, 1, 4, 3, 2, 2}, Causal::kTopLeft},
        GradientCase{"bottom_right_empty_rows", {1, 2, 1, 5, 3, 2, 2}, Causal::kBottomRight},
        GradientCase{"bottom_right_more_keys", {1, 1, 1, 2, 5, 2, 2}, Causal::kBottomRight},
        GradientCase{"negative_scale", {1, 1, 1, 3, 4, 2, 2}, Causal::kNone, -1.5f},
        GradientCase{"zero_scale", {1, 1, 1, 3, 4, 2, 2}, Causal::kNone, 0.0f},
        GradientCase{"bool_mask", {2, 2, 1, 3, 4, 2, 2}, Causal::kNone, {}, GradientCase::kBool},
        GradientCase{"additive_mask_causal",
                     {1, 2, 2, 4, 4, 2, 3},
                     Causal::kTopLeft,
                     {},
                     GradientCase::kAdditive}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(Oracle, RowsWithoutKeysAreZeroWithLseMinusInfinity) {
  SmallProblem p({1, 1, 1, 4, 2, 2, 3});
  p.options.causal = Causal::kBottomRight;  // rows 0 and 1 see nothing
  p.d_lse[0] = kNaN;                        // ignored
  const ForwardRows out = p.run_forward();
  for (std::size_t r = 0; r < 2; ++r) {
    EXPECT_EQ(out.lse[r], -kInf);
    for (std::size_t d = 0; d < 3; ++d) EXPECT_EQ(out.o[r * 3 + d], 0);
  }
  EXPECT_TRUE(std::isfinite(out.lse[2]));
  const BackwardRows back = p.run_backward(true);
  for (std::size_t n = 0; n < 4; ++n) EXPECT_EQ(back.dq[n], 0);
  for (double x : back.dk) EXPECT_TRUE(std::isfinite(x));
}

TEST(Oracle, NoKeysAtAll) {
  SmallProblem p({1, 2, 1, 3, 0, 2, 2});
  const ForwardRows out = p.run_forward();
  for (double x : out.o) EXPECT_EQ(x, 0);
  for (double x : out.lse) EXPECT_EQ(x, -kInf);
  const BackwardRows back = p.run_backward();
  for (double x : back.dq) EXPECT_EQ(x, 0);
  EXPECT_TRUE(back.dk.empty());
}

TEST(Oracle, BottomRightEndsWithTheLastKey) {
  // The last query of (2 queries, 4 keys) sees all keys, the first all but one.
  SmallProblem p({1, 1, 1, 2, 4, 1, 1});
  p.options.scale = 0.0f;  // uniform over what is visible
  p.v = {1, 10, 100, 1000};
  p.options.causal = Causal::kBottomRight;
  EXPECT_NEAR(p.run_forward().o[0], 111.0 / 3, 1e-12);
  EXPECT_NEAR(p.run_forward().o[1], 1111.0 / 4, 1e-12);
  p.options.causal = Causal::kTopLeft;
  EXPECT_NEAR(p.run_forward().o[0], 1.0, 1e-12);
  EXPECT_NEAR(p.run_forward().o[1], 11.0 / 2, 1e-12);
}

TEST(Oracle, MaskedScoresAreReplacedNotAdded) {
  SmallProblem p({1, 1, 1, 1, 3, 1, 1});
  p.v = {1, 2, 4};
  p.k[1] = kNaN;
  const std::vector<std::uint8_t> visible = {1, 0, 1};
  p.mask = tensor(static_cast<const void*>(visible.data()), {1, 1, 1, 3}, DType::kBool);
  ForwardRows out = p.run_forward();
  EXPECT_TRUE(std::isfinite(out.o[0]));
  EXPECT_EQ(out.dont_care[0], 0);
  const std::vector<double> added = {0, -kInf, 0};
  p.mask = tensor(added.data(), {1, 1, 1, 3});
  const ForwardRows again = p.run_forward();
  EXPECT_EQ(again.o[0], out.o[0]);
}

TEST(Oracle, NaNOrPlusInfinityInAScoreMakesTheRowNaN) {
  for (double bad : {kNaN, kInf}) {
    SmallProblem p({1, 1, 1, 2, 3, 1, 2});
    p.q = {1, 1};
    p.k[1] = bad;
    p.options.causal = Causal::kBottomRight;  // both rows see key 1
    const ForwardRows out = p.run_forward();
    for (double x : out.o) EXPECT_TRUE(std::isnan(x));
    for (double x : out.lse) EXPECT_TRUE(std::isnan(x));
    const BackwardRows back = p.run_backward();
    EXPECT_TRUE(std::isnan(back.dq[0]));
    EXPECT_TRUE(std::isnan(back.dv[0]));
  }
}

TEST(Oracle, VisibleScoresAllMinusInfinityAreAnEmptyRow) {
  SmallProblem p({1, 1, 1, 1, 2, 1, 1});
  p.q = {1};
  p.k = {-kInf, -kInf};
  const ForwardRows out = p.run_forward();
  EXPECT_EQ(out.o[0], 0);
  EXPECT_EQ(out.lse[0], -kInf);
  p.k = {-kInf, 1};  // one of two: the other takes all
  p.v = {7, 9};
  EXPECT_EQ(p.run_forward().o[0], 9);
}

TEST(Oracle, DontCareIsWhereAMaskedPairMeetsWhatIsNotFinite) {
  SmallProblem p({1, 1, 1, 3, 3, 1, 1});
  p.options.causal = Causal::kTopLeft;
  p.v[1] = kInf;  // masked for row 0, visible to rows 1 and 2
  const ForwardRows out = p.run_forward();
  EXPECT_EQ(out.dont_care, (std::vector<std::uint8_t>{1, 0, 0}));
  EXPECT_TRUE(std::isinf(out.o[1]));

  SmallProblem b({1, 1, 1, 3, 3, 1, 1});
  b.options.causal = Causal::kTopLeft;
  b.q[1] = kNaN;  // row 1 does not see key 2
  const BackwardRows back = b.run_backward();
  EXPECT_EQ(back.dk_dont_care, (std::vector<std::uint8_t>{0, 0, 1}));
  EXPECT_EQ(back.dv_dont_care, (std::vector<std::uint8_t>{0, 0, 1}));
  EXPECT_EQ(back.dq_dont_care, (std::vector<std::uint8_t>{0, 0, 0}));
  EXPECT_TRUE(std::isnan(back.dq[1]));
  EXPECT_TRUE(std::isfinite(back.dq[0]));

  // An infinite V at a masked key leaves row 0's o and delta open, and so its dq and the dk of what
  // it sees. Row 1's own o is infinite beside masked key 2. dv knows neither V nor delta.
  const BackwardRows open = p.run_backward();
  EXPECT_EQ(open.dq_dont_care, (std::vector<std::uint8_t>{1, 1, 0}));
  EXPECT_EQ(open.dk_dont_care[0], 1);
  EXPECT_EQ(open.dv_dont_care, (std::vector<std::uint8_t>{0, 0, 0}));
  for (double x : open.dv) EXPECT_TRUE(std::isfinite(x));
}

TEST(Oracle, ASampleGivesTheSameNumbers) {
  SmallProblem p({2, 4, 2, 9, 11, 3, 2});
  p.options.causal = Causal::kBottomRight;
  const ForwardRows all = p.run_forward();
  const BackwardRows all_back = p.run_backward(true);
  const Sample sample = Sample::seeded(p.sizes(), 12, 3, 7);
  EXPECT_EQ(sample.description, "12 rows of 3 heads, seed 7");
  EXPECT_FALSE(sample.keys.empty());

  const auto find = [](const std::vector<Row>& rows, const Row& row) {
    return static_cast<std::size_t>(std::find(rows.begin(), rows.end(), row) - rows.begin());
  };
  const ForwardRows some = forward(p.forward(), p.options, sample).value();
  ASSERT_EQ(some.rows.size(), 12u);
  for (std::size_t r = 0; r < some.rows.size(); ++r) {
    const std::size_t full = find(all.rows, some.rows[r]);
    EXPECT_EQ(some.lse[r], all.lse[full]);
    for (std::size_t d = 0; d < 2; ++d) EXPECT_EQ(some.o[r * 2 + d], all.o[full * 2 + d]);
  }
  for (Statistics statistics : {Statistics::kRecomputed, Statistics::kGiven}) {
    // Given statistics: those of the full forward, as an implementation would hand them over.
    for (std::size_t r = 0; r < all.rows.size(); ++r) {
      const Row& row = all.rows[r];
      p.lse[static_cast<std::size_t>((row.batch * 4 + row.head) * 9 + row.position)] = all.lse[r];
      for (std::size_t d = 0; d < 2; ++d) {
        p.o[static_cast<std::size_t>((row.batch * 9 + row.position) * 4 + row.head) * 2 + d] =
            all.o[r * 2 + d];
      }
    }
    const BackwardRows back = backward(p.backward(true), p.options, sample, statistics).value();
    for (std::size_t r = 0; r < back.queries.size(); ++r) {
      const std::size_t full = find(all_back.queries, back.queries[r]);
      for (std::size_t d = 0; d < 3; ++d) {
        EXPECT_NEAR(back.dq[r * 3 + d], all_back.dq[full * 3 + d], 1e-13);
      }
    }
    for (std::size_t r = 0; r < back.keys.size(); ++r) {
      const std::size_t full = find(all_back.keys, back.keys[r]);
      for (std::size_t d = 0; d < 3; ++d) {
        EXPECT_NEAR(back.dk[r * 3 + d], all_back.dk[full * 3 + d], 1e-13);
      }
      for (std::size_t d = 0; d < 2; ++d) {
        EXPECT_NEAR(back.dv[r * 2 + d], all_back.dv[full * 2 + d], 1e-13);
      }
    }
    const BackwardRows naive =
        naive_backward(p.backward(true), p.options, sample, statistics).value();
    for (std::size_t n = 0; n < back.dk.size(); ++n) EXPECT_NEAR(naive.dk[n], back.dk[n], 1e-13);
    for (std::size_t n = 0; n < back.dq.size(); ++n) EXPECT_NEAR(naive.dq[n], back.dq[n], 1e-13);
  }
}

TEST(Oracle, NaiveRoundsAsItsTypeDoes) {
  // One query, two keys, fp16: S = round(0.1 * 3) etc., each step by hand.
  const std::uint16_t q = fp16_from_float(0.1f);
  const std::uint16_t k[2] = {fp16_from_float(3.0f), fp16_from_float(-1.0f)};
  const std::uint16_t v[2] = {fp16_from_float(0.7f), fp16_from_float(-0.2f)};
  std::uint16_t o = 0;
  ForwardTensors t;
  t.q = tensor(static_cast<const void*>(&q), {1, 1, 1, 1}, DType::kFp16);
  t.k = tensor(static_cast<const void*>(k), {1, 2, 1, 1}, DType::kFp16);
  t.v = tensor(static_cast<const void*>(v), {1, 2, 1, 1}, DType::kFp16);
  t.o = tensor(static_cast<void*>(&o), {1, 1, 1, 1}, DType::kFp16);
  const auto fp16 = [](float x) { return float_from_fp16(fp16_from_float(x)); };
  const float s0 = fp16(fp16(0.1f) * 3.0f), s1 = fp16(fp16(0.1f) * -1.0f);
  const float e = std::exp(s1 - s0), sum = 1 + e;
  const float p0 = fp16(1 / sum), p1 = fp16(e / sum);
  const float expected = fp16(p0 * fp16(0.7f) + p1 * fp16(-0.2f));
  const Sample all = Sample::everything(sizes_of(t.q, t.k, t.v));
  const ForwardRows naive = naive_forward(t, {}, all).value();
  EXPECT_EQ(static_cast<float>(naive.o[0]), expected);
  const ForwardRows exact = forward(t, {}, all).value();
  EXPECT_NE(exact.o[0], naive.o[0]);
  EXPECT_NEAR(exact.o[0], naive.o[0], 2e-3);
}

TEST(Oracle, MultiplyAddsCountVisiblePairs) {
  const Sizes sizes = {2, 4, 2, 3, 5, 8, 16};
  EXPECT_EQ(multiply_adds(sizes, {.causal = Causal::kNone}), 2 * 4 * 15 * 24);
  EXPECT_EQ(multiply_adds(sizes, {.causal = Causal::kTopLeft}), 2 * 4 * (1 + 2 + 3) * 24);
  EXPECT_EQ(multiply_adds(sizes, {.causal = Causal::kBottomRight}), 2 * 4 * (3 + 4 + 5) * 24);
}

}  // namespace
}  // namespace flashlab::reference
