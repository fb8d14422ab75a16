// Axes, charts and which pictures there are.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "lab/report/axis.h"
#include "lab/report/chart.h"
#include "lab/report/plots.h"
#include "report_process.h"
#include "report_samples.h"

namespace flashlab::lab::report {
namespace {

using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

std::vector<std::string> names_of(const std::vector<Plot>& plots) {
  std::vector<std::string> names;
  for (const Plot& plot : plots) names.push_back(plot.name);
  return names;
}

TEST(ReportAxis, CoversItsDataWithAFewRoundTicks) {
  const double values[] = {1e-9, 3e-4, 0.7, 1, 2, 9.99, 10, 123, 4.5e6, 1e17};
  for (const Scale scale : {Scale::kLinear, Scale::kLog, Scale::kLogMs, Scale::kLogBytes}) {
    for (const double low : values) {
      for (const double high : values) {
        if (high < low) continue;
        const AxisRange axis = nice_axis(scale, low, high);
        EXPECT_LE(axis.low, low * 1.001);
        EXPECT_GE(axis.high, high * 0.999);
        EXPECT_LT(axis.low, axis.high);
        EXPECT_GE(axis.ticks.size(), 2u);
        EXPECT_LE(axis.ticks.size(), 9u) << low << " " << high;
        EXPECT_NEAR(axis.position(axis.low), 0, 1e-9);
        EXPECT_NEAR(axis.position(axis.high), 1, 1e-9);
      }
    }
  }
}

TEST(ReportAxis, TicksHaveUnits) {
  const AxisRange time = nice_axis(Scale::kLogMs, 0.0012, 4000);
  EXPECT_EQ(time.ticks.front().label, "1 \xc2\xb5s");
  EXPECT_EQ(time.ticks.back().label, "10 s");
  const AxisRange memory = nice_axis(Scale::kLogBytes, 3.0 * (1 << 20), 5.0 * (1 << 30));
  EXPECT_EQ(memory.ticks.front().label, "2 MiB");
  EXPECT_EQ(nice_axis(Scale::kLinear, 0, 230).ticks.back().label, "250");
  EXPECT_EQ(nice_axis(Scale::kLinear, 0, 0).ticks.front().label, "0");
}

TEST(ReportChart, DrawsEveryPointOnce) {
  LineChart chart;
  chart.id = "c";
  chart.title = "A <title>";
  chart.series = {{"one", 0, {{256, 1, "p1"}, {512, 2, "p2"}}}, {"two & <b>", 9, {{256, 3, "p3"}}}};
  const std::string svg = render(chart, SvgUse::kInline);
  for (const char* hover : {"<title>p1</title>", "<title>p2</title>", "<title>p3</title>"}) {
    EXPECT_THAT(svg, HasSubstr(hover));
  }
  EXPECT_THAT(svg, HasSubstr("A &lt;title&gt;"));
  EXPECT_THAT(svg, HasSubstr("two &amp; &lt;b&gt;"));
  EXPECT_THAT(svg, HasSubstr("fl-d1")) << "the ninth style repeats a colour with a dash";
  EXPECT_THAT(svg, Not(HasSubstr("xmlns")));
  EXPECT_THAT(render(chart, SvgUse::kFile), HasSubstr("xmlns=\"http://www.w3.org/2000/svg\""));
}

TEST(ReportChart, LeavesOutWhatNoAxisShows) {
  LineChart chart;
  chart.id = "c";
  chart.y_scale = Scale::kLogMs;
  chart.series = {{"bad",
                   0,
                   {{256, std::nan(""), "nan"},
                    {512, HUGE_VAL, "inf"},
                    {1024, 0, "zero"},
                    {2048, -1, "negative"},
                    {4096, 1e300, "huge"},
                    {8192, 5e-324, "tiny"}}}};
  const std::string empty = render(chart, SvgUse::kInline);
  EXPECT_THAT(empty, HasSubstr("nothing to plot"));
  chart.series[0].points.push_back({16384, 7, "seven"});
  const std::string svg = render(chart, SvgUse::kInline);
  EXPECT_THAT(svg, HasSubstr("<title>seven</title>"));
  EXPECT_THAT(svg, Not(HasSubstr("<title>huge</title>")));
  EXPECT_THAT(svg, Not(HasSubstr("=\"nan")));
  EXPECT_THAT(svg, Not(HasSubstr("=\"inf")));
}

TEST(ReportChart, LinesThatCoincideAreNamed) {
  LineChart chart;
  chart.id = "c";
  chart.series = {{"a", 0, {{256, 1, ""}, {512, 2, ""}}},
                  {"b", 1, {{256, 1.001, ""}, {512, 2, ""}}},
                  {"c", 2, {{256, 1, ""}, {512, 1, ""}}}};
  EXPECT_THAT(render(chart, SvgUse::kInline), HasSubstr("a, b coincide"));
}

TEST(ReportChart, FittedKeepsBothEnds) {
  EXPECT_EQ(fitted("short", 13, 200), "short");
  const std::string cut = fitted("abcdefghijklmnopqrstuvwxyz", 13, 80);
  EXPECT_EQ(cut, "abcde\xE2\x80\xA6wxyz");
  EXPECT_LE(text_width(cut, 13), 80);
}

TEST(ReportPlots, ASweepGivesLinesPerFamilyAndPass) {
  const std::vector<Plot> plots = make_plots(sample_sweep());
  EXPECT_EQ(plots.size(), 1 + 2 * 2 * 3u);
  EXPECT_THAT(names_of(plots), Contains("performance_B1_H4_d32_fp32_causal-top-left_forward"));
  EXPECT_THAT(names_of(plots), Contains("time_B1_H4_d64_fp32_causal-top-left_backward"));
  EXPECT_THAT(names_of(plots), Contains("memory_B1_H4_d64_fp32_causal-top-left_backward"));
  for (const Plot& plot : plots) {
    if (plot.kind == PlotKind::kRoof) continue;
    EXPECT_THAT(plot.inline_svg, HasSubstr("naive: out of memory from S 8k")) << plot.name;
  }
}

TEST(ReportPlots, ASingleProblemGivesBars) {
  EXPECT_THAT(names_of(make_plots(sample_comparison())),
              UnorderedElementsAre("roof_shares", "performance_B1_H8_d64_fp32_S2048",
                                   "memory_B1_H8_d64_fp32_S2048"));
  EXPECT_THAT(make_plots({}), IsEmpty());
}

TEST(ReportPlots, ARooflineHasEveryRateUnderTheRoofs) {
  ResultFile file = sample_comparison();
  const auto rooflines = [&] {
    std::vector<std::string> out;
    for (const Plot& plot : make_plots(file)) {
      if (plot.kind == PlotKind::kRoofline) out.push_back(plot.file_svg);
    }
    return out;
  };
  file.environment.copy_gb_per_s = 20;
  const std::vector<std::string> drawn = rooflines();
  ASSERT_EQ(drawn.size(), 1u);
  EXPECT_THAT(drawn[0], HasSubstr("236 GFLOP/s, 20.0 GB/s"));
  EXPECT_THAT(drawn[0], HasSubstr(">cpu forward<"));
  EXPECT_THAT(drawn[0], HasSubstr(">naive forward<"));
  EXPECT_THAT(drawn[0], ContainsRegex("cpu forward: 200 GFLOP/s at [0-9.]+ FLOPs per byte"));
  file.environment.copy_gb_per_s.reset();
  EXPECT_TRUE(rooflines().empty());
}

TEST(ReportPlots, AnImplementationKeepsItsColour) {
  const auto colours = chart_colours(sample_comparison());
  EXPECT_EQ(colours.at("naive"), 0);
  EXPECT_EQ(colours.at("cpu"), 1);
  EXPECT_EQ(colours.at("fa2-plain"), 2);
  ResultFile many;
  for (int i = 0; i < 20; ++i) {
    many.results.push_back(sample_result("i" + std::to_string(i), "forward", sample_case(), 1, 1));
  }
  std::set<int> styles;
  for (const auto& [name, style] : chart_colours(many)) {
    EXPECT_NE(style % kChartColours, 0) << "grey is naive's";
    styles.insert(style);
  }
  EXPECT_EQ(styles.size(), 20u);
}

TEST(ReportPlots, EveryPictureIsXmlWithAnIdOfItsOwn) {
  const TemporaryFolder folder;
  std::vector<std::filesystem::path> files;
  for (const ResultFile& file : {sample_comparison(), sample_sweep(), hostile_results()}) {
    std::set<std::string> names;
    for (const Plot& plot : make_plots(file)) {
      EXPECT_TRUE(names.insert(plot.name).second) << plot.name;
      EXPECT_LT(plot.name.size(), 200u);
      EXPECT_EQ(plot.name.find_first_of("/ <>\"'\\"), std::string::npos) << plot.name;
      EXPECT_THAT(plot.inline_svg, HasSubstr("id=\"plot-" + plot.name + "-t\""));
      files.push_back(folder.path() / (std::to_string(files.size()) + ".svg"));
      std::ofstream(files.back()) << plot.file_svg;
      files.push_back(folder.path() / (std::to_string(files.size()) + ".svg"));
      std::ofstream(files.back()) << plot.inline_svg;
    }
  }
  ASSERT_GT(files.size(), 20u);
  const Outcome parsed = parse_xml(files);
  EXPECT_EQ(parsed.code, 0) << parsed.output;
  std::ofstream(files.front()) << "<svg><g></svg>";
  EXPECT_NE(parse_xml(files).code, 0) << "the parser must notice";
}

}  // namespace
}  // namespace flashlab::lab::report
