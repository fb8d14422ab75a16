#pragma once

// Where the ticks of an axis go.

#include <string>
#include <vector>

#include "lab/report/chart.h"

namespace flashlab::lab::report {

struct Tick {
  double value = 0;
  std::string label;
};

struct AxisRange {
  double low = 0, high = 1;
  Scale scale = Scale::kLinear;
  std::vector<Tick> ticks;
  /// 0 at low, 1 at high.
  double position(double value) const;
};

/// A range with round ends around [low, high] and three to eight ticks in it. On a linear scale it
/// starts at 0. `low` and `high` are finite, on logarithmic scales positive.
AxisRange nice_axis(Scale scale, double low, double high);

/// A linear range that need not start at 0: [low, high] itself where `tight`, else with round ends
/// around it; at most `most_ticks` round ticks lie in it, `least_step` or more from one to the
/// next. `low` and `high` are finite.
struct LinearRange {
  double low = 0, high = 1;
  bool tight = false;
  int most_ticks = 8;
  double least_step = 0;
};
AxisRange linear_axis(const LinearRange& range);

}  // namespace flashlab::lab::report
