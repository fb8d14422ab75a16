#include "lab/report/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/text.h"
#include "lab/report/axis.h"
#include "lab/report/numbers.h"

namespace flashlab::lab::report {
namespace {

constexpr double kWidth = 500;
constexpr double kLeft = 64, kRight = 20;
constexpr double kPlotHeight = 236;
constexpr double kFont = 13;

/// What an axis can show: beyond these a figure is a mistake, and would flatten all others.
constexpr double kSmallest = 1e-12, kLargest = 1e18;

bool plottable(const ChartPoint& p, Scale y_scale) {
  if (!std::isfinite(p.x) || !std::isfinite(p.y) || p.x < kSmallest || p.x > kLargest) return false;
  if (p.y > kLargest) return false;
  return y_scale == Scale::kLinear ? p.y >= 0 : p.y >= kSmallest;
}

/// Title and subtitle, wrapped; returns the y below them.
double heading(Svg* svg, const std::string& title, const std::string& subtitle) {
  double y = 8;
  for (const std::string& line : base::wrap(title, 54)) {
    y += 17;
    svg->text(14, y, line, "fl-title");
  }
  if (!subtitle.empty()) {
    for (const std::string& line : base::wrap(subtitle, 66)) {
      y += 17;
      svg->text(14, y, line, "fl-muted");
    }
  }
  return y;
}

double notes(Svg* svg, const std::vector<std::string>& lines, double y) {
  for (const std::string& note : lines) {
    for (const std::string& line : base::wrap(base::clean(note), 66)) {
      y += 17;
      svg->text(14, y, line, "fl-muted");
    }
  }
  return y;
}

/// Lengths as ticks, leaving out those whose label would touch its neighbour's.
void x_axis(Svg* svg, const std::set<double>& lengths, const AxisRange& x, double top,
            double bottom) {
  double free_from = 0;
  const auto place = [&](double value) {
    return kLeft + x.position(value) * (kWidth - kLeft - kRight);
  };
  for (const double value : lengths) {
    const std::string label = format_length(static_cast<std::int64_t>(value));
    const double at = place(value), half = text_width(label, kFont) / 2;
    svg->line(at, top, at, bottom, "fl-grid");
    if (at - half < free_from) continue;
    svg->text(at, bottom + 18, label, "fl-muted", Anchor::kMiddle);
    free_from = at + half + 8;
  }
}

double legend(Svg* svg, const std::vector<Series>& series, double y) {
  constexpr double kMark = 30, kGap = 18;
  double x = 14;
  y += 22;
  for (const Series& s : series) {
    const std::string label = fitted(s.label, kFont, kWidth - 28 - kMark);
    const double width = kMark + text_width(label, kFont) + kGap;
    if (x > 14 && x + width - kGap > kWidth - 14) {
      x = 14;
      y += 20;
    }
    svg->begin_group(colour_class(s.style));
    svg->path(fmt::format("M{:.2f} {:.2f}h24", x, y - 4.5), stroke_class(s.style));
    svg->marker(x + 12, y - 4.5, s.style);
    svg->end_group();
    svg->text(x + kMark, y, label, "");
    x += width;
  }
  return y;
}

/// Whether two lines cannot be told apart: the same lengths, less than a marker between them.
template <class PlaceY>
bool coincide(const Series& a, const Series& b, Scale scale, PlaceY place_y) {
  if (a.points.size() != b.points.size()) return false;
  for (std::size_t i = 0; i < a.points.size(); ++i) {
    const ChartPoint &p = a.points[i], &q = b.points[i];
    if (!plottable(p, scale) || !plottable(q, scale) || p.x != q.x) return false;
    if (std::fabs(place_y(p.y) - place_y(q.y)) > 3) return false;
  }
  return !a.points.empty();
}

/// "cpu, fa2-plain coincide": a line under another one would seem to be missing.
template <class PlaceY>
std::vector<std::string> coinciding(const LineChart& chart, PlaceY place_y) {
  std::vector<std::string> out;
  std::set<std::size_t> told;
  for (std::size_t i = 0; i < chart.series.size(); ++i) {
    if (told.count(i)) continue;
    std::vector<std::string> names = {chart.series[i].label};
    for (std::size_t j = i + 1; j < chart.series.size(); ++j) {
      if (told.count(j)) continue;
      if (!coincide(chart.series[i], chart.series[j], chart.y_scale, place_y)) continue;
      names.push_back(chart.series[j].label);
      told.insert(j);
    }
    if (names.size() > 1) out.push_back(base::join(names, ", ") + " coincide");
  }
  return out;
}

std::string described(const LineChart& chart) {
  std::string text = chart.subtitle + ". " + chart.y_label + " over " + chart.x_label + ".";
  for (const Series& s : chart.series) {
    if (s.points.empty()) continue;
    text += " " + s.points.front().hover;
    if (s.points.size() > 1) text += "; " + s.points.back().hover;
    text += ".";
  }
  return text;
}

}  // namespace

std::string render(const LineChart& chart, SvgUse use) {
  Svg svg(kWidth);
  std::set<double> lengths;
  double low = HUGE_VAL, high = 0;
  for (const Series& s : chart.series) {
    for (const ChartPoint& p : s.points) {
      if (!plottable(p, chart.y_scale)) continue;
      lengths.insert(p.x);
      low = std::min(low, p.y);
      high = std::max(high, p.y);
    }
  }
  const double below_title = heading(&svg, chart.title, chart.subtitle);
  if (lengths.empty()) {
    svg.text(kWidth / 2, below_title + 60, "nothing to plot", "fl-muted", Anchor::kMiddle);
    const double end = notes(&svg, chart.notes, below_title + 90);
    return svg.finish(end + 16, chart.id, chart.title, described(chart), use);
  }

  const double top = below_title + 36, bottom = top + kPlotHeight;
  svg.text(14, top - 12, chart.y_label, "fl-muted");
  const AxisRange y = nice_axis(chart.y_scale, low, high);
  AxisRange x;
  x.scale = Scale::kLog;
  // Half an octave of room where there is one length only, a little otherwise.
  const double room =
      lengths.size() == 1 ? 1.4 : std::pow(*lengths.rbegin() / *lengths.begin(), 0.04);
  x.low = *lengths.begin() / room;
  x.high = *lengths.rbegin() * room;
  const auto place_x = [&](double v) { return kLeft + x.position(v) * (kWidth - kLeft - kRight); };
  const auto place_y = [&](double v) { return bottom - y.position(v) * kPlotHeight; };

  x_axis(&svg, lengths, x, top, bottom);
  for (const Tick& tick : y.ticks) {
    svg.line(kLeft, place_y(tick.value), kWidth - kRight, place_y(tick.value), "fl-grid");
    svg.text(kLeft - 8, place_y(tick.value) + 4.5, tick.label, "fl-muted", Anchor::kEnd);
  }
  svg.line(kLeft, bottom, kWidth - kRight, bottom, "fl-axis");
  svg.text((kLeft + kWidth - kRight) / 2, bottom + 38, chart.x_label, "fl-muted", Anchor::kMiddle);

  // The first series, the device's own, ends up on top.
  for (auto at = chart.series.rbegin(); at != chart.series.rend(); ++at) {
    const Series& s = *at;
    svg.begin_group(colour_class(s.style));
    std::string data;
    for (const ChartPoint& p : s.points) {
      if (!plottable(p, chart.y_scale)) continue;
      data += fmt::format("{}{:.2f} {:.2f}", data.empty() ? "M" : "L", place_x(p.x), place_y(p.y));
    }
    if (!data.empty()) svg.path(data, stroke_class(s.style));
    for (const ChartPoint& p : s.points) {
      if (plottable(p, chart.y_scale)) svg.marker(place_x(p.x), place_y(p.y), s.style, p.hover);
    }
    svg.end_group();
  }
  double end = legend(&svg, chart.series, bottom + 46);
  std::vector<std::string> below = coinciding(chart, [&](double v) { return place_y(v); });
  below.insert(below.end(), chart.notes.begin(), chart.notes.end());
  end = notes(&svg, below, end + 4);
  return svg.finish(end + 14, chart.id, chart.title, described(chart), use);
}

std::string render(const BarChart& chart, SvgUse use) {
  constexpr double kLabelRoom = 132, kBarHeight = 18, kPitch = 27;
  Svg svg(kWidth);
  double largest = chart.full.value_or(0), text_room = 40;
  std::string description = chart.subtitle + ".";
  for (const BarGroup& group : chart.groups) {
    for (const Bar& bar : group.bars) {
      for (const double v : {bar.value, bar.high.value_or(0)}) {
        if (std::isfinite(v) && v <= kLargest) largest = std::max(largest, v);
      }
      text_room = std::max(text_room, text_width(bar.text, kFont) + 10);
      description += " " + group.heading + " " + bar.label + ": " + bar.text + ".";
    }
  }
  text_room = std::min(text_room, 180.0);
  if (largest <= 0) largest = 1;
  const double room = kWidth - kLabelRoom - 14 - text_room;
  const auto length = [&](double v) {
    return std::isfinite(v) && v > 0 ? std::min(v / largest, 1.0) * room : 0.0;
  };

  double y = heading(&svg, chart.title, chart.subtitle) + 16;
  const double full_x = kLabelRoom + length(chart.full.value_or(0));
  if (chart.full) {
    y += 14;
    svg.text(full_x, y, chart.full_label, "fl-muted", Anchor::kMiddle);
    y += 6;
  }
  const double top = y;
  for (const BarGroup& group : chart.groups) {
    if (!group.heading.empty()) {
      y += 20;
      svg.text(14, y, group.heading, "fl-strong");
      y += 8;
    }
    for (const Bar& bar : group.bars) {
      svg.text(kLabelRoom - 10, y + kBarHeight / 2 + 4.5, fitted(bar.label, kFont, kLabelRoom - 24),
               "", Anchor::kEnd);
      const std::string hover = bar.label + ": " + bar.text;
      svg.rect(kLabelRoom, y, room, kBarHeight, "fl-track");
      svg.begin_group(colour_class(bar.style));
      if (length(bar.value) > 0) {
        svg.rect(kLabelRoom, y, std::max(length(bar.value), 1.5), kBarHeight, "fl-fill", hover);
      }
      svg.end_group();
      double text_x = kLabelRoom + room;
      if (bar.low && bar.high && length(*bar.high) > length(*bar.low)) {
        const double middle = y + kBarHeight / 2;
        const double from = kLabelRoom + length(*bar.low), to = kLabelRoom + length(*bar.high);
        svg.line(from, middle, to, middle, "fl-whisker");
        svg.line(from, middle - 4, from, middle + 4, "fl-whisker");
        svg.line(to, middle - 4, to, middle + 4, "fl-whisker");
      }
      svg.text(text_x + 8, y + kBarHeight / 2 + 4.5, fitted(bar.text, kFont, text_room), "");
      y += kPitch;
    }
  }
  if (chart.full) svg.line(full_x, top, full_x, y - 6, "fl-axis");
  const double end = notes(&svg, chart.notes, y);
  return svg.finish(end + 12, chart.id, chart.title, description, use);
}

}  // namespace flashlab::lab::report
