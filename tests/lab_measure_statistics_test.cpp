#include "lab/measure/statistics.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace flashlab::lab {
namespace {

TEST(Statistics, KnownSamples) {
  const std::vector<double> samples = {4, 1, 3, 2};
  const auto s = summarize(samples);
  ASSERT_TRUE(s.has_value());
  EXPECT_EQ(s->count, 4u);
  EXPECT_DOUBLE_EQ(s->min, 1);
  EXPECT_DOUBLE_EQ(s->q1, 1.75);
  EXPECT_DOUBLE_EQ(s->median, 2.5);
  EXPECT_DOUBLE_EQ(s->mean, 2.5);
  EXPECT_DOUBLE_EQ(s->q3, 3.25);
  EXPECT_DOUBLE_EQ(s->max, 4);
  EXPECT_NEAR(s->std, 1.2909944487358056, 1e-15);
}

TEST(Statistics, OneSampleHasNoSpread) {
  const auto s = summarize(std::vector<double>{7.5});
  ASSERT_TRUE(s.has_value());
  EXPECT_EQ(s->median, 7.5);
  EXPECT_EQ(s->q1, 7.5);
  EXPECT_EQ(s->q3, 7.5);
  EXPECT_EQ(s->std, 0);
}

TEST(Statistics, NothingOrNoNumberGivesNothing) {
  EXPECT_FALSE(summarize(std::vector<double>{}).has_value());
  EXPECT_FALSE(summarize(std::vector<double>{1, std::numeric_limits<double>::quiet_NaN()}));
  EXPECT_FALSE(summarize(std::vector<double>{1, std::numeric_limits<double>::infinity()}));
  EXPECT_FALSE(median_of(std::vector<double>{}).has_value());
}

TEST(Statistics, SpreadSurvivesALargeOffset) {
  // A naive sum of squares loses all digits here.
  const auto s = summarize(std::vector<double>{1e9 + 4, 1e9 + 7, 1e9 + 13, 1e9 + 16});
  ASSERT_TRUE(s.has_value());
  EXPECT_DOUBLE_EQ(s->mean, 1e9 + 10);
  EXPECT_NEAR(s->std, 5.477225575051661, 1e-9);
}

TEST(Statistics, MedianOfOddAndEvenCounts) {
  EXPECT_EQ(*median_of(std::vector<double>{9, 1, 5}), 5);
  EXPECT_EQ(*median_of(std::vector<double>{9, 1, 5, 7}), 6);
}

TEST(Statistics, IntervalOfTheMedianIgnoresOneOutlier) {
  std::vector<double> samples;
  for (int i = 0; i < 99; ++i) samples.push_back(10 + 0.01 * (i % 11));
  const Interval calm = median_interval(*summarize(samples));
  samples.push_back(1000);
  const Interval spiked = median_interval(*summarize(samples));
  EXPECT_NEAR(calm.low, spiked.low, 0.01);
  EXPECT_NEAR(calm.high, spiked.high, 0.01);
  EXPECT_LT(calm.high - calm.low, 0.05);
  EXPECT_GE(calm.low, 10);
}

}  // namespace
}  // namespace flashlab::lab
