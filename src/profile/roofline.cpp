#include "profile/roofline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lab/report/axis.h"
#include "lab/report/numbers.h"
#include "lab/report/svg.h"
#include "profile/ledger.h"

namespace flashlab::profile {
namespace {

using lab::report::Anchor;
using lab::report::AxisRange;
using lab::report::format_significant;
using lab::report::Svg;

constexpr double kWidth = 760, kHeight = 420;
constexpr double kLeft = 76, kRight = 24, kTop = 40, kBottom = 58;

struct Frame {
  AxisRange x, y;
  double px(double intensity) const {
    return kLeft + x.position(intensity) * (kWidth - kLeft - kRight);
  }
  double py(double gflops) const {
    return kHeight - kBottom - y.position(gflops) * (kHeight - kTop - kBottom);
  }
};

struct Dot {
  const LedgerRow* row;
  double intensity, gflops;
};

std::vector<Dot> dots_of(const std::vector<LedgerRow>& rows) {
  std::vector<Dot> out;
  for (const LedgerRow& row : rows) {
    if (row.flops > 0 && row.bytes > 0 && row.gflops_per_s) {
      out.push_back({&row, row.flops / row.bytes, *row.gflops_per_s});
    }
  }
  return out;
}

Frame frame_of(const std::vector<Dot>& dots, double roof, double copy) {
  double low_x = roof / copy, high_x = low_x, low_y = roof, high_y = roof;
  for (const Dot& dot : dots) {
    low_x = std::min(low_x, dot.intensity);
    high_x = std::max(high_x, dot.intensity);
    low_y = std::min(low_y, dot.gflops);
    high_y = std::max(high_y, dot.gflops);
  }
  using lab::report::nice_axis;
  using lab::report::Scale;
  return {nice_axis(Scale::kLog, low_x / 2, high_x * 2),
          nice_axis(Scale::kLog, low_y / 2, high_y * 2)};
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

void draw_axes(Svg& svg, const Frame& frame) {
  for (const lab::report::Tick& tick : frame.x.ticks) {
    svg.line(frame.px(tick.value), kTop, frame.px(tick.value), kHeight - kBottom, "fl-grid");
    svg.text(frame.px(tick.value), kHeight - kBottom + 18, tick.label, "fl-muted", Anchor::kMiddle);
  }
  for (const lab::report::Tick& tick : frame.y.ticks) {
    svg.line(kLeft, frame.py(tick.value), kWidth - kRight, frame.py(tick.value), "fl-grid");
    svg.text(kLeft - 8, frame.py(tick.value) + 4, tick.label, "fl-muted", Anchor::kEnd);
  }
  svg.text((kLeft + kWidth - kRight) / 2, kHeight - 14, "FLOPs per byte", "fl-muted",
           Anchor::kMiddle);
  svg.text(8, 20, "GFLOP/s", "fl-muted");
}

void draw_roofs(Svg& svg, const Frame& frame, double roof, double copy) {
  const double ridge = roof / copy;
  const double left = std::max(frame.x.low, frame.y.low / copy);
  svg.path(fmt::format("M{:.2f} {:.2f}L{:.2f} {:.2f}L{:.2f} {:.2f}", frame.px(left),
                       frame.py(left * copy), frame.px(ridge), frame.py(roof),
                       frame.px(frame.x.high), frame.py(roof)),
           "fl-line");
  svg.text(
      kWidth - kRight, frame.py(roof) - 8,
      fmt::format("{} GFLOP/s, {} GB/s", format_significant(roof, 3), format_significant(copy, 3)),
      "fl-muted", Anchor::kEnd);
}

}  // namespace

std::string roofline_picture(const Recording& recording, bool inline_in_page) {
  if (!recording.roofs.gflops || !recording.roofs.gb_per_s) return {};
  const double roof = *recording.roofs.gflops, copy = *recording.roofs.gb_per_s;
  const std::vector<LedgerRow> rows = make_ledger(recording, {.key = LedgerKey::kKernel});
  const std::vector<Dot> dots = dots_of(rows);
  if (dots.empty() || roof <= 0 || copy <= 0) return {};
  const Frame frame = frame_of(dots, roof, copy);
  Svg svg(kWidth);
  draw_axes(svg, frame);
  svg.begin_group(lab::report::colour_class(0));
  draw_roofs(svg, frame, roof, copy);
  svg.end_group();
  int style = 1;
  std::vector<Label> labels;
  for (const Dot& dot : dots) {
    // Rows come with the longest first: the first seven have a colour of their own and a name.
    const bool named = style < lab::report::kChartColours;
    svg.begin_group(lab::report::colour_class(named ? style : 0));
    const double x = frame.px(dot.intensity), y = frame.py(dot.gflops);
    svg.marker(x, y, named ? style : 0,
               fmt::format("{}: {} GFLOP/s at {} FLOPs per byte, {:.1f}% of the time", dot.row->key,
                           format_significant(dot.gflops, 3), format_significant(dot.intensity, 3),
                           100 * dot.row->share));
    svg.end_group();
    if (named) {
      const double width = lab::report::text_width(dot.row->key, 12);
      const bool right = x + 9 + width < kWidth;
      const double left = right ? x + 9 : x - 9 - width;
      svg.text(right ? left : x - 9, place({left, left + width, y + 4}, labels), dot.row->key,
               "fl-small", right ? Anchor::kStart : Anchor::kEnd);
      ++style;
    }
  }
  return svg.finish(kHeight, "roofline", "Roofline",
                    "Rate of every kernel over its FLOPs per byte, below the machine's roofs.",
                    inline_in_page ? lab::report::SvgUse::kInline : lab::report::SvgUse::kFile);
}

}  // namespace flashlab::profile
