#include "lab/report/monitor_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/text.h"
#include "lab/machine/monitor.h"
#include "lab/report/numbers.h"

namespace flashlab::lab::report {
namespace {

constexpr double kWidth = 760, kLeft = 110, kRight = 90, kTop = 34, kLane = 56, kGap = 12;

struct Range {
  double low = 0, high = 0;
  bool known = false;
};

Range range_of(const std::vector<MonitorSample>& samples, const MonitorFigure& figure) {
  Range out;
  for (const MonitorSample& sample : samples) {
    const std::optional<double> value = sample.*figure.value;
    if (!value) continue;
    out.low = out.known ? std::min(out.low, *value) : *value;
    out.high = out.known ? std::max(out.high, *value) : *value;
    out.known = true;
  }
  return out;
}

std::string words(const MonitorFigure& figure, double value) {
  if (figure.unit == std::string_view("bytes")) return format_bytes(value);
  return format_significant(value, 3) + " " + figure.unit;
}

// What the lane's upper edge stands for.
double full_of(const MonitorFigure& figure, const Range& range) {
  if (figure.unit == std::string_view("%")) return 100;
  return range.high > 0 ? 1.05 * range.high : 1;
}

void draw_lane(Svg& svg, const std::vector<MonitorSample>& samples, const MonitorFigure& figure,
               double top, int style) {
  const Range range = range_of(samples, figure);
  const double full = full_of(figure, range), width = kWidth - kLeft - kRight;
  const double end = std::max(samples.back().seconds, 1e-9), bottom = top + kLane;
  const auto x = [&](double seconds) { return kLeft + width * seconds / end; };
  const auto y = [&](double value) { return bottom - kLane * std::clamp(value / full, 0.0, 1.0); };
  svg.line(kLeft, bottom, kLeft + width, bottom, "fl-axis");
  svg.text(kLeft - 8, top + kLane / 2 + 4, figure.heading, "fl-small", Anchor::kEnd);
  svg.text(kLeft + width + 8, top + 10, words(figure, full), "fl-small fl-muted");
  std::string path;
  for (const MonitorSample& sample : samples) {
    const std::optional<double> value = sample.*figure.value;
    if (!value) continue;
    path += fmt::format("{}{:.1f},{:.1f}", path.empty() ? "M" : "L", x(sample.seconds), y(*value));
  }
  svg.begin_group(colour_class(style));
  svg.path(path, stroke_class(style));
  svg.end_group();
  // A transparent column of every sample shows its value.
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const std::optional<double> value = samples[i].*figure.value;
    if (!value) continue;
    const double from = i > 0 ? x((samples[i - 1].seconds + samples[i].seconds) / 2) : kLeft;
    const double to = i + 1 < samples.size() ? x((samples[i].seconds + samples[i + 1].seconds) / 2)
                                             : kLeft + width;
    svg.rect(
        from, top, std::max(to - from, 0.5), kLane, "fl-hover",
        fmt::format("{:.1f} s: {} {}{}", samples[i].seconds, figure.heading, words(figure, *value),
                    samples[i].throttle.empty() ? "" : ", slowed by " + samples[i].throttle));
  }
}

}  // namespace

std::string monitor_picture(const std::vector<MonitorSample>& samples, SvgUse use) {
  if (samples.size() < 2) return {};
  Svg svg(kWidth);
  svg.text(0, 16, "The device while this ran", "fl-title");
  double top = kTop;
  int style = 0;
  for (const MonitorFigure& figure : monitor_figures()) {
    if (!range_of(samples, figure).known) continue;
    draw_lane(svg, samples, figure, top, style++);
    top += kLane + kGap;
  }
  if (style == 0) return {};
  svg.text(kLeft, top + 8, "0 s", "fl-small fl-muted");
  svg.text(kWidth - kRight, top + 8, fmt::format("{:.1f} s", samples.back().seconds),
           "fl-small fl-muted", Anchor::kEnd);
  return svg.finish(top + 16, "monitor", "The device while this ran", monitor_words(samples), use);
}

std::string monitor_words(const std::vector<MonitorSample>& samples) {
  std::vector<std::string> parts;
  for (const MonitorFigure& figure : monitor_figures()) {
    const Range range = range_of(samples, figure);
    if (!range.known) continue;
    const std::string low = words(figure, range.low), high = words(figure, range.high);
    parts.push_back(low == high ? fmt::format("{} {}", figure.heading, high)
                                : fmt::format("{} {} to {}", figure.heading, low, high));
  }
  std::set<std::string> reasons;
  for (const MonitorSample& sample : samples) {
    if (!sample.throttle.empty()) reasons.insert(sample.throttle);
  }
  for (const std::string& reason : reasons) parts.push_back("slowed by " + reason);
  return base::join(parts, ", ");
}

}  // namespace flashlab::lab::report
