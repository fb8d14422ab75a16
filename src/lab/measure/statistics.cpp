#include "lab/measure/statistics.h"

#include <algorithm>
#include <cmath>

namespace flashlab::lab {

double quantile_of_sorted(std::span<const double> sorted, double p) {
  const double position = std::clamp(p, 0.0, 1.0) * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  const double fraction = position - static_cast<double>(below);
  return sorted[below] + fraction * (sorted[above] - sorted[below]);
}

std::optional<Statistics> summarize(std::span<const double> samples) {
  if (samples.empty()) return {};
  if (!std::ranges::all_of(samples, [](double x) { return std::isfinite(x); })) {
    return {};
  }
  std::vector<double> sorted(samples.begin(), samples.end());
  std::ranges::sort(sorted);

  Statistics out;
  out.count = sorted.size();
  out.min = sorted.front();
  out.max = sorted.back();
  out.q1 = quantile_of_sorted(sorted, 0.25);
  out.median = quantile_of_sorted(sorted, 0.5);
  out.q3 = quantile_of_sorted(sorted, 0.75);

  // Deviations from the median first: times far from zero keep their digits.
  const auto n = static_cast<double>(out.count);
  double shift = 0;
  for (double x : sorted) shift += x - out.median;
  out.mean = out.median + shift / n;
  if (out.count > 1) {
    double squares = 0;
    for (double x : sorted) squares += (x - out.mean) * (x - out.mean);
    out.std = std::sqrt(squares / (n - 1));
  }
  return out;
}

std::optional<double> median_of(std::span<const double> samples) {
  if (samples.empty()) return {};
  std::vector<double> sorted(samples.begin(), samples.end());
  std::ranges::sort(sorted);
  return quantile_of_sorted(sorted, 0.5);
}

Interval median_interval(const Statistics& statistics) {
  const double half =
      1.57 * (statistics.q3 - statistics.q1) / std::sqrt(static_cast<double>(statistics.count));
  return {std::max(statistics.min, statistics.median - half),
          std::min(statistics.max, statistics.median + half)};
}

Interval window_interval(std::span<const double> samples) {
  constexpr std::size_t kStretches = 5, kLeast = 3;
  const std::size_t stretches = std::clamp<std::size_t>(samples.size() / kLeast, 1, kStretches);
  Interval out = median_interval(*summarize(samples));
  for (std::size_t i = 0; i < stretches; ++i) {
    const std::size_t begin = i * samples.size() / stretches;
    const std::size_t end = (i + 1) * samples.size() / stretches;
    const double median = *median_of(samples.subspan(begin, end - begin));
    out = {std::min(out.low, median), std::max(out.high, median)};
  }
  return out;
}

}  // namespace flashlab::lab
