#include "lab/report/roofline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "lab/report/axis.h"
#include "lab/report/numbers.h"

namespace flashlab::lab::report {
namespace {

constexpr double kPictureLeft = 76, kPictureRight = 24, kPictureBottom = 58;

struct PlotFrame {
  AxisRange x, y;
  double left, right, top, bottom;  ///< of the plot, in pixels
  double px(double intensity) const { return left + x.position(intensity) * (right - left); }
  double py(double gflops) const { return bottom - y.position(gflops) * (bottom - top); }
};

PlotFrame plot_frame(const Roofline& p, double top) {
  const double ridge = p.gflops / p.gb_per_s;
  double low_x = ridge, high_x = ridge, low_y = p.gflops, high_y = p.gflops;
  for (const RooflineDot& dot : p.dots) {
    low_x = std::min(low_x, dot.intensity);
    high_x = std::max(high_x, dot.intensity);
    low_y = std::min(low_y, dot.gflops);
    high_y = std::max(high_y, dot.gflops);
  }
  return {nice_axis(Scale::kLog, low_x / 2, high_x * 2),
          nice_axis(Scale::kLog, low_y / 2, high_y * 2),
          kPictureLeft,
          p.width - kPictureRight,
          top,
          p.height - kPictureBottom};
}

struct Label {
  double left, right, y;
};

// The height nearest below the label's own at which it touches none that stands already.
double place(Label label, std::vector<Label>& labels) {
  constexpr double kLine = 14;
  for (bool moved = true; moved;) {
    moved = false;
    for (const Label& other : labels) {
      const bool beside = label.right < other.left || other.right < label.left;
      // INVARIANT: y only grows, by more than rounding takes back, so that this ends.
      if (beside || std::abs(label.y - other.y) > kLine - 0.5) continue;
      label.y = other.y + kLine;
      moved = true;
    }
  }
  labels.push_back(label);
  return label.y;
}

void draw_axes(Svg& svg, const PlotFrame& frame) {
  for (const Tick& tick : frame.x.ticks) {
    svg.line(frame.px(tick.value), frame.top, frame.px(tick.value), frame.bottom, "fl-grid");
    svg.text(frame.px(tick.value), frame.bottom + 18, tick.label, "fl-muted", Anchor::kMiddle);
  }
  for (const Tick& tick : frame.y.ticks) {
    svg.line(frame.left, frame.py(tick.value), frame.right, frame.py(tick.value), "fl-grid");
    svg.text(frame.left - 8, frame.py(tick.value) + 4, tick.label, "fl-muted", Anchor::kEnd);
  }
  svg.text((frame.left + frame.right) / 2, frame.bottom + 44, "FLOPs per byte", "fl-muted",
           Anchor::kMiddle);
  svg.text(8, frame.top - 20, "GFLOP/s", "fl-muted");
}

void draw_roofs(Svg& svg, const PlotFrame& frame, const Roofline& p) {
  const double ridge = p.gflops / p.gb_per_s;
  const double left = std::max(frame.x.low, frame.y.low / p.gb_per_s);
  svg.path(fmt::format("M{:.2f} {:.2f}L{:.2f} {:.2f}L{:.2f} {:.2f}", frame.px(left),
                       frame.py(left * p.gb_per_s), frame.px(ridge), frame.py(p.gflops),
                       frame.px(frame.x.high), frame.py(p.gflops)),
           "fl-line");
  // Above the frame: dots lie on the roofs and above them.
  svg.text(frame.right, frame.top - 20,
           fmt::format("roofs {} GFLOP/s, {} GB/s", format_significant(p.gflops, 3),
                       format_significant(p.gb_per_s, 3)),
           "fl-muted", Anchor::kEnd);
}

void draw_dots(Svg& svg, const PlotFrame& frame, const Roofline& p) {
  std::vector<Label> labels;
  for (const RooflineDot& dot : p.dots) {
    svg.begin_group(colour_class(dot.style));
    const double x = frame.px(dot.intensity), y = frame.py(dot.gflops);
    svg.marker(x, y, dot.style, dot.hover);
    svg.end_group();
    if (dot.name.empty()) continue;
    const double width = text_width(dot.name, 12);
    const bool right = x + 9 + width < p.width;
    const double left = right ? x + 9 : x - 9 - width;
    svg.text(right ? left : x - 9, place({left, left + width, y + 4}, labels), dot.name, "fl-small",
             right ? Anchor::kStart : Anchor::kEnd);
  }
}

}  // namespace

std::string render(const Roofline& p, SvgUse use) {
  if (p.dots.empty() || !(p.gflops > 0) || !(p.gb_per_s > 0)) return {};
  Svg svg(p.width);
  double top = 40;
  if (!p.subtitle.empty()) {
    double y = 25;
    svg.text(14, y, p.title, "fl-title");
    for (const std::string& line : base::wrap(p.subtitle, 66))
      svg.text(14, y += 17, line, "fl-muted");
    top = y + 44;
  }
  const PlotFrame frame = plot_frame(p, top);
  draw_axes(svg, frame);
  svg.begin_group(colour_class(0));
  draw_roofs(svg, frame, p);
  svg.end_group();
  draw_dots(svg, frame, p);
  return svg.finish(p.height, p.id, p.title, p.description, use);
}

}  // namespace flashlab::lab::report
