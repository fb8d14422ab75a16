#pragma once

// Two kinds of pictures: lines over lengths, and horizontal bars.

#include <optional>
#include <string>
#include <vector>

#include "lab/report/svg.h"

namespace flashlab::lab::report {

struct ChartPoint {
  double x = 0, y = 0;
  std::string hover;  ///< what a pointer shows
};

struct Series {
  std::string label;
  int style = 0;  ///< colour, marker and dash
  std::vector<ChartPoint> points;
};

/// kLogMs and kLogBytes write their ticks with units: "10 ms", "2 s"; "4 MiB".
enum class Scale { kLinear, kLog, kLogMs, kLogBytes };

/// Lines over x on a logarithm of 2. Points that are not finite, or not positive where an axis is
/// logarithmic, are left out.
struct LineChart {
  std::string id, title, subtitle;
  std::string x_label, y_label;
  Scale y_scale = Scale::kLinear;
  std::vector<Series> series;
  std::vector<std::string> notes;  ///< below the legend: what the lines do not show
};

std::string render(const LineChart& chart, SvgUse use);

struct Bar {
  std::string label;
  int style = 0;
  double value = 0;                 ///< not finite or negative: no bar, only the text
  std::optional<double> low, high;  ///< a whisker
  std::string text;                 ///< at the bar's end
};

struct BarGroup {
  std::string heading;
  std::vector<Bar> bars;
};

/// Bars from 0 to the largest value, or to `full` where that is given (and its end marked).
struct BarChart {
  std::string id, title, subtitle;
  std::optional<double> full;
  std::string full_label;
  std::vector<BarGroup> groups;
  std::vector<std::string> notes;
};

std::string render(const BarChart& chart, SvgUse use);

}  // namespace flashlab::lab::report
