#pragma once

// Numbers that describe a set of samples. Nothing here assumes a normal distribution: timings have
// a hard floor and a long tail, so medians and quartiles come first.

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace flashlab::lab {

/// A closed interval.
struct Interval {
  double low = 0;
  double high = 0;
};

struct Statistics {
  std::size_t count = 0;
  double min = 0;
  double q1 = 0;  ///< first quartile, linear between order statistics
  double median = 0;
  double mean = 0;
  double q3 = 0;  ///< third quartile
  double max = 0;
  double std = 0;  ///< sample standard deviation (n - 1); 0 for one sample
};

/// Empty when there are no samples or one of them is not finite. Cost: one sort.
std::optional<Statistics> summarize(std::span<const double> samples);

/// The p-quantile, p in [0, 1], of ascending `sorted` (not empty), linear between order statistics.
double quantile_of_sorted(std::span<const double> sorted, double p);

/// The median of `samples`; empty when there are none.
std::optional<double> median_of(std::span<const double> samples);

/// A 95% confidence interval of the median from its quartiles: median +- 1.57 (q3 - q1) / sqrt(n)
/// (McGill, Tukey and Larsen 1978), kept inside [min, max]. One slow outlier does not move it.
Interval median_interval(const Statistics& statistics);

/// Where the median of `samples`, in the order they were taken, would lie in another window of as
/// many: the interval that its quartiles give, widened to the medians of five stretches, so that a
/// machine that drifts while it is measured gets a wider interval than its quartiles say.
/// Precondition: not empty.
Interval window_interval(std::span<const double> samples);

}  // namespace flashlab::lab
