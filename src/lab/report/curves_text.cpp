#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/text.h"
#include "lab/report/curves.h"

namespace flashlab::lab::report {
namespace {

constexpr int kRows = 8, kWidest = 100, kNarrowest = 30;
constexpr std::size_t kFewestPoints = 10;  // a line between fewer says nothing

/// Dots of one picture, two across and four down in each character, as braille has them.
class Dots {
 public:
  explicit Dots(int columns) : columns_(columns) {
    for (std::vector<int>& row : cells_) row.assign(static_cast<std::size_t>(columns), 0);
  }
  int width() const { return 2 * columns_; }
  int height() const { return 4 * kRows; }

  void set(int x, int y) {
    // Bits of a braille character by column and row (Unicode, 2800 and following).
    constexpr int kBits[2][4] = {{0x01, 0x02, 0x04, 0x40}, {0x08, 0x10, 0x20, 0x80}};
    if (x < 0 || y < 0 || x >= width() || y >= height()) return;
    cells_[static_cast<std::size_t>(y / 4)][static_cast<std::size_t>(x / 2)] |= kBits[x % 2][y % 4];
  }
  void mark(int x, int y) {
    for (int dx = 0; dx < 2; ++dx) {
      for (int dy = 0; dy < 2; ++dy) set((x | 1) - dx, (y | 1) - dy);
    }
  }

  std::string row(int y) const {
    std::string out;
    for (const int bits : cells_[static_cast<std::size_t>(y)]) {
      if (bits == 0) {
        out += ' ';
      } else {
        const int code = 0x2800 + bits;
        out +=
            {static_cast<char>(0xE0 | (code >> 12)), static_cast<char>(0x80 | ((code >> 6) & 0x3F)),
             static_cast<char>(0x80 | (code & 0x3F))};
      }
    }
    return out;
  }

 private:
  int columns_;
  std::array<std::vector<int>, kRows> cells_;
};

/// The value of a line at a step between two of its points.
double value_at(const std::vector<CurvePoint>& line, double step) {
  const auto after = std::lower_bound(line.begin(), line.end(), step,
                                      [](const CurvePoint& p, double s) { return p.step < s; });
  if (after == line.begin()) return line.front().value;
  if (after == line.end()) return line.back().value;
  const CurvePoint &a = *(after - 1), &b = *after;
  return a.value + (b.value - a.value) * (step - a.step) / (b.step - a.step);
}

}  // namespace

std::vector<std::string> drawn_as_text(const CurveChart& chart, int columns) {
  const std::optional<CurveRange> range = range_of(chart.curves);
  const bool long_enough = std::ranges::any_of(
      chart.curves, [](const Curve& curve) { return curve.points.size() >= kFewestPoints; });
  if (!range || !long_enough || columns < kNarrowest) return {};
  if (range->last_step <= range->first_step) return {};
  const double low = range->low;
  const double high = range->high > low ? range->high : low + 1;
  constexpr int kLabel = 10;  // "   1.2345 "
  Dots dots(std::min(columns, kWidest) - kLabel - 1);
  const auto row_of = [&](double value) {
    const double share = std::clamp((value - low) / (high - low), 0.0, 1.0);
    return static_cast<int>(std::lround((1 - share) * (dots.height() - 1)));
  };
  const double steps = range->last_step - range->first_step;
  for (const Curve& curve : chart.curves) {
    if (curve.points.empty()) continue;
    if (curve.form == CurveForm::kDots) {
      for (const CurvePoint& p : curve.points) {
        if (!std::isfinite(p.value)) continue;
        const double share = (p.step - range->first_step) / steps;
        dots.mark(static_cast<int>(std::lround(share * (dots.width() - 1))), row_of(p.value));
      }
      continue;
    }
    std::vector<CurvePoint> known;
    for (const CurvePoint& p : curve.points) {
      if (std::isfinite(p.value)) known.push_back(p);
    }
    if (known.empty()) continue;
    const std::vector<CurvePoint> mean = centred_mean(known, smoothing_of(curve));
    for (int x = 0; x < dots.width(); ++x) {
      const double step = range->first_step + steps * x / (dots.width() - 1);
      if (step >= mean.front().step && step <= mean.back().step) {
        dots.set(x, row_of(value_at(mean, step)));
      }
    }
  }
  std::vector<std::string> lines;
  for (int y = 0; y < kRows; ++y) {
    const std::string label = y == 0           ? fmt::format("{:9.4g} ", high)
                              : y == kRows - 1 ? fmt::format("{:9.4g} ", low)
                                               : std::string(kLabel, ' ');
    std::string line = label + "\u2502" + dots.row(y);
    line.erase(line.find_last_not_of(' ') + 1);
    lines.push_back(line);
  }
  const std::string first = fmt::format("{:.0f}", range->first_step);
  const std::string last = fmt::format("step {:.0f}", range->last_step);
  const int room = dots.width() / 2 - static_cast<int>(first.size());
  lines.push_back(std::string(kLabel + 1, ' ') + first + fmt::format("{:>{}}", last, room));
  return lines;
}

}  // namespace flashlab::lab::report
