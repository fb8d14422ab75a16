#include "lab/report/curves.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "lab/report/axis.h"
#include "lab/report/numbers.h"

namespace flashlab::lab::report {
namespace {

constexpr double kCurveWidth = 900, kCurveHeight = 340;
constexpr double kCurveLeft = 64, kCurveRight = 84;  // the right side has the rate's ticks
constexpr double kCurveFont = 13;

/// Where a step and a value of one axis stand.
struct CurveFrame {
  double top = 0, bottom = 0;
  AxisRange x, y;

  double at_x(double step) const {
    return kCurveLeft + x.position(step) * (kCurveWidth - kCurveLeft - kCurveRight);
  }
  double at_y(const AxisRange& axis, double value) const {
    return bottom - std::clamp(axis.position(value), 0.0, 1.0) * (bottom - top);
  }
};

std::vector<CurvePoint> finite_points(const std::vector<CurvePoint>& points) {
  std::vector<CurvePoint> out;
  for (const CurvePoint& p : points) {
    if (std::isfinite(p.step) && std::isfinite(p.value)) out.push_back(p);
  }
  return out;
}

std::string line_through(const std::vector<CurvePoint>& points, const CurveFrame& frame,
                         const AxisRange& axis) {
  std::string data;
  for (const CurvePoint& p : points) {
    data += fmt::format("{}{:.1f} {:.1f}", data.empty() ? "M" : "L", frame.at_x(p.step),
                        frame.at_y(axis, p.value));
  }
  return data;
}

std::string tokens_words(double tokens) {
  for (const auto& [size, unit] : {std::pair(1e12, "T"), {1e9, "B"}, {1e6, "M"}, {1e3, "k"}}) {
    if (tokens >= size) return fmt::format("{:.3g}{}", tokens / size, unit);
  }
  return fmt::format("{:.3g}", tokens);
}

void draw_axes(Svg* svg, const CurveFrame& frame, const CurveChart& chart) {
  const double right = kCurveWidth - kCurveRight;
  for (const Tick& tick : frame.y.ticks) {
    const double y = frame.at_y(frame.y, tick.value);
    svg->line(kCurveLeft, y, right, y, "fl-grid");
    svg->text(kCurveLeft - 8, y + 4.5, tick.label, "fl-muted", Anchor::kEnd);
  }
  for (const Tick& tick : frame.x.ticks) {
    const double x = frame.at_x(tick.value);
    svg->line(x, frame.bottom, x, frame.bottom + 5, "fl-axis");
    svg->text(x, frame.bottom + 20, tick.label, "fl-muted", Anchor::kMiddle);
    if (chart.tokens_per_step <= 0) continue;
    svg->text(x, frame.top - 8, tokens_words(tick.value * chart.tokens_per_step), "fl-muted",
              Anchor::kMiddle);
  }
  svg->line(kCurveLeft, frame.bottom, right, frame.bottom, "fl-axis");
  svg->text((kCurveLeft + right) / 2, frame.bottom + 40, "step", "fl-muted", Anchor::kMiddle);
  if (chart.tokens_per_step > 0) {
    svg->text(kCurveLeft - 8, frame.top - 8, "tokens", "fl-muted", Anchor::kEnd);
  }
}

void draw_learning_rate(Svg* svg, const CurveFrame& frame, const std::vector<CurvePoint>& rates) {
  double highest = 0;
  for (const CurvePoint& p : rates) highest = std::max(highest, p.value);
  if (highest <= 0) return;
  const AxisRange axis = linear_axis({.low = 0, .high = highest, .most_ticks = 6});
  for (const Tick& tick : axis.ticks) {
    svg->text(kCurveWidth - kCurveRight + 8, frame.at_y(axis, tick.value) + 4.5, tick.label,
              "fl-muted");
  }
  svg->path(line_through(thinned(rates, kMostCurvePoints), frame, axis), "fl-rate");
}

void draw_curve(Svg* svg, const CurveFrame& frame, const Curve& curve) {
  const std::vector<CurvePoint> points = finite_points(curve.points);
  if (points.empty()) return;
  svg->begin_group(colour_class(curve.style));
  if (curve.form == CurveForm::kSmoothed) {
    svg->path(line_through(thinned(points, kMostCurvePoints), frame, frame.y), "fl-thin");
    const std::vector<CurvePoint> mean = centred_mean(points, smoothing_of(curve));
    svg->path(line_through(thinned(mean, kMostCurvePoints), frame, frame.y), "fl-line");
    svg->end_group();
    return;
  }
  for (const CurvePoint& p : thinned(points, kMostCurvePoints)) {
    svg->marker(frame.at_x(p.step), frame.at_y(frame.y, p.value), 0,
                fmt::format("{}, step {:.0f}: {:.4f}", curve.label, p.step, p.value));
  }
  svg->end_group();
  const CurvePoint least =
      *std::min_element(points.begin(), points.end(),
                        [](const CurvePoint& a, const CurvePoint& b) { return a.value < b.value; });
  const double x = frame.at_x(least.step), y = frame.at_y(frame.y, least.value);
  const std::string words = fmt::format("least {:.4f} at step {:.0f}", least.value, least.step);
  // Above the dot, and never beyond the frame's sides.
  const double half = text_width(words, kCurveFont) / 2;
  const double middle = std::clamp(x, kCurveLeft + half + 4, kCurveWidth - kCurveRight - half - 4);
  svg->text(middle, std::max(y - 12, frame.top + 14), words, "fl-strong", Anchor::kMiddle);
}

double draw_legend(Svg* svg, const CurveChart& chart, double y) {
  double x = kCurveLeft;
  const auto next = [&](std::string_view label) {
    svg->text(x + 32, y, label, "");
    x += 32 + text_width(label, kCurveFont) + 24;
  };
  for (const Curve& curve : chart.curves) {
    if (curve.points.empty()) continue;
    const double width = 32 + text_width(curve.label, kCurveFont);
    if (x > kCurveLeft && x + width > kCurveWidth - 14) {
      x = kCurveLeft;
      y += 22;
    }
    svg->begin_group(colour_class(curve.style));
    if (curve.form == CurveForm::kDots) {
      svg->marker(x + 12, y - 4.5, 0);
    } else {
      svg->path(fmt::format("M{:.1f} {:.1f}h24", x, y - 4.5), "fl-line");
    }
    svg->end_group();
    next(curve.label);
  }
  if (!chart.learning_rate.empty()) {
    svg->path(fmt::format("M{:.1f} {:.1f}h24", x, y - 4.5), "fl-rate");
    next("learning rate (right)");
  }
  return y;
}

std::string described_curves(const CurveChart& chart) {
  std::string text = fmt::format("{}. {} over steps.", chart.subtitle, chart.y_label);
  for (const Curve& curve : chart.curves) {
    const std::vector<CurvePoint> points = finite_points(curve.points);
    if (points.empty()) continue;
    text += fmt::format(" {}: {:.4f} at step {:.0f}, {:.4f} at step {:.0f}.", curve.label,
                        points.front().value, points.front().step, points.back().value,
                        points.back().step);
  }
  return text;
}

}  // namespace

std::vector<CurvePoint> centred_mean(const std::vector<CurvePoint>& points, int half) {
  std::vector<CurvePoint> out;
  const auto count = static_cast<std::ptrdiff_t>(points.size());
  double sum = 0;
  std::ptrdiff_t begin = 0, end = 0;
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    // As many on either side, so that a slope does not move the ends. Both bounds only grow.
    const std::ptrdiff_t reach = std::min<std::ptrdiff_t>({half, i, count - 1 - i});
    for (; end < i + reach + 1; ++end) sum += points[end].value;
    for (; begin < i - reach; ++begin) sum -= points[begin].value;
    out.push_back({points[i].step, sum / static_cast<double>(2 * reach + 1)});
  }
  return out;
}

std::vector<CurvePoint> thinned(const std::vector<CurvePoint>& points, int most) {
  if (points.size() <= static_cast<std::size_t>(most)) return points;
  std::vector<CurvePoint> out;
  const std::size_t runs = static_cast<std::size_t>(most) / 2;
  for (std::size_t run = 0; run < runs; ++run) {
    const auto first = points.begin() + static_cast<std::ptrdiff_t>(run * points.size() / runs);
    const auto last =
        points.begin() + static_cast<std::ptrdiff_t>((run + 1) * points.size() / runs);
    const auto [low, high] = std::minmax_element(
        first, last, [](const CurvePoint& a, const CurvePoint& b) { return a.value < b.value; });
    out.push_back(*std::min(low, high));
    if (low != high) out.push_back(*std::max(low, high));
  }
  return out;
}

int smoothing_of(const Curve& curve) {
  return static_cast<int>(curve.points.size() / 50);
}

std::optional<CurveRange> range_of(const std::vector<Curve>& curves) {
  std::optional<CurveRange> out;
  for (const Curve& curve : curves) {
    const std::vector<CurvePoint> points = finite_points(curve.points);
    const std::vector<CurvePoint> bold =
        curve.form == CurveForm::kSmoothed ? centred_mean(points, smoothing_of(curve)) : points;
    for (const CurvePoint& p : bold) {
      if (!out) out = CurveRange{p.step, p.step, p.value, p.value};
      out->first_step = std::min(out->first_step, p.step);
      out->last_step = std::max(out->last_step, p.step);
      out->low = std::min(out->low, p.value);
      out->high = std::max(out->high, p.value);
    }
  }
  return out;
}

std::string render(const CurveChart& chart, SvgUse use) {
  Svg svg(kCurveWidth);
  svg.text(14, 26, fitted(chart.title, 15, kCurveWidth - 28), "fl-title");
  svg.text(14, 46, fitted(chart.subtitle, kCurveFont, kCurveWidth - 28), "fl-muted");
  const std::optional<CurveRange> range = range_of(chart.curves);
  if (!range) {
    svg.text(kCurveWidth / 2, 110, "nothing to plot", "fl-muted", Anchor::kMiddle);
    return svg.finish(150, chart.id, chart.title, described_curves(chart), use);
  }
  CurveFrame frame;
  frame.top = 104;
  frame.bottom = frame.top + kCurveHeight;
  frame.x = linear_axis(
      {.low = range->first_step, .high = range->last_step, .tight = true, .least_step = 1});
  frame.y = linear_axis({.low = range->low, .high = range->high});
  svg.text(14, frame.top - 32, chart.y_label, "fl-muted");
  draw_axes(&svg, frame, chart);
  draw_learning_rate(&svg, frame, finite_points(chart.learning_rate));
  for (const Curve& curve : chart.curves) draw_curve(&svg, frame, curve);
  const double end = draw_legend(&svg, chart, frame.bottom + 66);
  return svg.finish(end + 18, chart.id, chart.title, described_curves(chart), use);
}

}  // namespace flashlab::lab::report
