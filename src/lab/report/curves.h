#pragma once

// Curves over the steps of a training run: a picture, and a small one for a terminal.

#include <optional>
#include <string>
#include <vector>

#include "lab/report/svg.h"

namespace flashlab::lab::report {

struct CurvePoint {
  double step = 0, value = 0;
};

/// How a curve is drawn. kSmoothed: what was measured as a thin line, and a bold one of its mean
/// over as many steps before as behind, so that it does not lag. kDots: a dot each, and the least
/// value named.
enum class CurveForm { kSmoothed, kDots };

struct Curve {
  std::string label;
  int style = 0;  ///< colour
  CurveForm form = CurveForm::kSmoothed;
  std::vector<CurvePoint> points;  ///< by step, ascending; values that are not finite are left out
};

struct CurveChart {
  std::string id, title, subtitle, y_label;
  std::vector<Curve> curves;
  std::vector<CurvePoint> learning_rate;  ///< a second axis at the right; empty: none
  double tokens_per_step = 0;             ///< a second axis above; 0: none
};

/// Points of a line in a picture at most: more are not seen, and make the file large.
inline constexpr int kMostCurvePoints = 500;

/// Mean over the points within `half` places of each: centred, narrower at both ends.
std::vector<CurvePoint> centred_mean(const std::vector<CurvePoint>& points, int half);

/// At most `most` points: of each equal run of them the lowest and the highest, so that a spike
/// stays.
std::vector<CurvePoint> thinned(const std::vector<CurvePoint>& points, int most);

/// 900 pixels wide; steps are linear, and at most eight ticks stand on an axis.
std::string render(const CurveChart& chart, SvgUse use);

/// The same curves as lines of braille characters, at most `columns` wide. Empty where no curve has
/// ten points, or with less than 30 columns.
std::vector<std::string> drawn_as_text(const CurveChart& chart, int columns);

/// The lowest and the highest value that a picture shows. A spike of one step, which only the thin
/// lines have, ends at the frame, so that it does not flatten everything else.
struct CurveRange {
  double first_step = 0, last_step = 0, low = 0, high = 0;
};
std::optional<CurveRange> range_of(const std::vector<Curve>& curves);

/// Half the width of a curve's mean: one in fifty of its points.
int smoothing_of(const Curve& curve);

}  // namespace flashlab::lab::report
