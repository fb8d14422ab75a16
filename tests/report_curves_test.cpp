// Curves of a training run: the picture's axes, lines and size, and the one of characters.

#include "lab/report/curves.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/text.h"
#include "lab/report/axis.h"

namespace flashlab::lab::report {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::vector<CurvePoint> falling(int steps) {
  std::vector<CurvePoint> out;
  for (int i = 1; i <= steps; ++i) {
    const double noise = std::sin(i * 1.7) * 0.1;
    out.push_back({static_cast<double>(i), 2 + 8 / std::sqrt(static_cast<double>(i)) + noise});
  }
  return out;
}

CurveChart of_run(int steps) {
  CurveChart chart;
  chart.id = "loss";
  chart.title = "Loss on <a>.txt";
  chart.subtitle = "2 layers";
  chart.y_label = "nats per token";
  chart.curves = {{.label = "training", .style = 1, .points = falling(steps)},
                  {.label = "validation",
                   .style = 2,
                   .form = CurveForm::kDots,
                   .points = {{1, 9}, {steps * 0.5, 2.25}, {steps * 1.0, 2.5}}}};
  for (const CurvePoint& p : chart.curves[0].points) {
    chart.learning_rate.push_back({p.step, 1e-3 * p.step / steps});
  }
  chart.tokens_per_step = 8192;
  return chart;
}

std::size_t count_of(const std::string& text, const std::string& what) {
  std::size_t count = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) {
    ++count;
  }
  return count;
}

TEST(ReportCurves, AxesHaveAtMostEightRoundTicks) {
  const double values[] = {-3, 0, 1e-6, 0.7, 1, 2.1953, 2.2553, 4.8, 300, 12345, 1e7};
  for (const double low : values) {
    for (const double high : values) {
      if (high < low) continue;
      for (const bool tight : {false, true}) {
        const AxisRange axis = linear_axis({.low = low, .high = high, .tight = tight});
        EXPECT_LE(axis.ticks.size(), 8u) << low << " " << high;
        EXPECT_GE(axis.ticks.size(), 2u) << low << " " << high;
        EXPECT_LE(axis.low, low + 1e-9 * std::fabs(low));
        EXPECT_GE(axis.high, high - 1e-9 * std::fabs(high));
        for (const Tick& tick : axis.ticks) {
          EXPECT_GE(axis.position(tick.value), -1e-9);
          EXPECT_LE(axis.position(tick.value), 1 + 1e-9);
        }
      }
    }
  }
  // Neighbours among numbers so large that adding 1 changes nothing.
  EXPECT_LE(linear_axis({.low = 1e20, .high = 1e20 + 32768}).ticks.size(), 8u);
  const AxisRange steps = linear_axis({.low = 1, .high = 300, .tight = true});
  EXPECT_EQ(steps.ticks.front().label, "50");
  EXPECT_EQ(steps.ticks.back().label, "300");
}

TEST(ReportCurves, AMeanDoesNotLagBehindASlope) {
  std::vector<CurvePoint> slope;
  for (int i = 0; i < 100; ++i) slope.push_back({static_cast<double>(i), 10 - 0.05 * i});
  for (const int half : {0, 1, 7, 200}) {
    const std::vector<CurvePoint> mean = centred_mean(slope, half);
    ASSERT_EQ(mean.size(), slope.size());
    for (std::size_t i = 0; i < slope.size(); ++i) {
      EXPECT_NEAR(mean[i].value, slope[i].value, 1e-9) << half << " " << i;
    }
  }
  const std::vector<CurvePoint> mean = centred_mean({{1, 0}, {2, 3}, {3, 0}, {4, 3}, {5, 0}}, 1);
  EXPECT_NEAR(mean[1].value, 1, 1e-12);
  EXPECT_NEAR(mean[2].value, 2, 1e-12);
}

TEST(ReportCurves, ThinningKeepsSpikesAndOrder) {
  std::vector<CurvePoint> points = falling(100000);
  points[70001].value = 55;
  const std::vector<CurvePoint> few = thinned(points, 500);
  EXPECT_LE(few.size(), 500u);
  EXPECT_GE(few.size(), 450u);
  EXPECT_TRUE(std::is_sorted(few.begin(), few.end(), [](const CurvePoint& a, const CurvePoint& b) {
    return a.step < b.step;
  }));
  EXPECT_TRUE(
      std::any_of(few.begin(), few.end(), [](const CurvePoint& p) { return p.value == 55; }));
  EXPECT_EQ(thinned(falling(499), 500).size(), 499u);
}

TEST(ReportCurves, ALongRunIsASmallFile) {
  const std::string svg = render(of_run(200000), SvgUse::kFile);
  EXPECT_LT(svg.size(), 60'000u);
  EXPECT_THAT(svg, HasSubstr("width=\"900\""));
  EXPECT_THAT(svg, HasSubstr("Loss on &lt;a&gt;.txt"));
  EXPECT_THAT(svg, HasSubstr("least 2.2500 at step 100000"));
  EXPECT_THAT(svg, HasSubstr(">200000<"));
  EXPECT_THAT(svg, HasSubstr(">1.64B<")) << "200,000 steps of 8,192 tokens";
  EXPECT_THAT(svg, HasSubstr("learning rate"));
  EXPECT_EQ(count_of(svg, "class=\"fl-thin\""), 1u);
  EXPECT_EQ(count_of(svg, "<circle"), 4u) << "three dots and the legend's";
}

TEST(ReportCurves, NumbersThatAreNoneAreLeftOut) {
  CurveChart chart = of_run(50);
  chart.curves[0].points[20].value = std::numeric_limits<double>::quiet_NaN();
  chart.curves[1].points[1].value = std::numeric_limits<double>::infinity();
  const std::string svg = render(chart, SvgUse::kFile);
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
  chart.curves.clear();
  EXPECT_THAT(render(chart, SvgUse::kFile), HasSubstr("nothing to plot"));
  EXPECT_THAT(drawn_as_text(chart, 80), IsEmpty());
}

TEST(ReportCurves, AShortRunHasWholeSteps) {
  for (const int count : {1, 2, 3, 5}) {
    CurveChart chart = of_run(count);
    chart.curves.resize(1);
    const std::string svg = render(chart, SvgUse::kFile);
    for (int step = 1; step <= count; ++step) {
      EXPECT_THAT(svg, HasSubstr(">" + std::to_string(step) + "<")) << count;
    }
    EXPECT_THAT(svg, Not(HasSubstr(">1.5<"))) << count;
  }
}

// A diverging step must not press every other one to the ground.
TEST(ReportCurves, ASpikeEndsAtTheFrame) {
  CurveChart chart = of_run(5000);
  const double before = range_of(chart.curves)->high;
  chart.curves[0].points[2500].value = 1000;
  EXPECT_LT(range_of(chart.curves)->high, before + 1000.0 / 100);
}

TEST(ReportCurves, ATerminalGetsEightRowsAndAnAxis) {
  const std::vector<std::string> lines = drawn_as_text(of_run(300), 80);
  ASSERT_EQ(lines.size(), 9u);
  for (const std::string& line : lines) EXPECT_LE(base::display_width(line), 80) << line;
  EXPECT_THAT(lines[7], HasSubstr("2.2"));
  EXPECT_THAT(lines[8], HasSubstr("step 300"));
  // It falls: the first row begins with dots, and the last one ends with them.
  EXPECT_LT(base::display_width(lines[0]), 40);
  EXPECT_GT(base::display_width(lines[7]), 60);
  for (int columns = 30; columns < 130; ++columns) {
    for (const std::string& line : drawn_as_text(of_run(100000), columns)) {
      EXPECT_LE(base::display_width(line), columns) << line;
    }
  }
  EXPECT_THAT(drawn_as_text(of_run(300), 29), IsEmpty());
  EXPECT_THAT(drawn_as_text(of_run(9), 80), IsEmpty());
  EXPECT_THAT(drawn_as_text(of_run(10), 80), Not(IsEmpty()));
}

}  // namespace
}  // namespace flashlab::lab::report
