#include "lab/report/axis.h"

#include <algorithm>
#include <cmath>

#include "lab/report/numbers.h"

namespace flashlab::lab::report {
namespace {

constexpr int kFewestTicks = 3, kMostTicks = 8;

std::string plain(double value) {
  if (value == 0) return "0";
  std::string text = format_significant(value, 3);
  if (text.find('.') != std::string::npos && text.find('e') == std::string::npos) {
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text.pop_back();
  }
  return text;
}

std::string with_time_unit(double milliseconds) {
  if (milliseconds >= 1000) return plain(milliseconds / 1000) + " s";
  if (milliseconds >= 1) return plain(milliseconds) + " ms";
  // Unrounded, 0.001 ms times 1000 is a little less than 1.
  if (milliseconds > 0.00099) return plain(milliseconds * 1e3) + " \u00b5s";
  return plain(milliseconds * 1e6) + " ns";
}

AxisRange linear(double high) {
  AxisRange axis;
  if (high <= 0) high = 1;
  const double decade = std::pow(10.0, std::floor(std::log10(high)));
  double step = decade;
  for (const double candidate : {0.1, 0.2, 0.5, 1.0, 2.0}) {
    step = candidate * decade;
    if (high / step <= 6) break;
  }
  axis.high = std::ceil(high / step * 1.0001) * step;
  const int count = static_cast<int>(std::lround(axis.high / step));
  for (int i = 0; i <= count; ++i) axis.ticks.push_back({i * step, plain(i * step)});
  return axis;
}

/// Multiples per decade, coarse to fine: the first set with enough ticks wins.
const std::vector<std::vector<double>> kLogSteps = {
    {1}, {1, 3}, {1, 2, 5}, {1, 1.5, 2, 3, 5, 7}, {1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 4, 5, 6, 8}};

AxisRange logarithmic(double low, double high) {
  AxisRange axis;
  axis.scale = Scale::kLog;
  const int first = static_cast<int>(std::floor(std::log10(low))) - 1;
  const int last = static_cast<int>(std::ceil(std::log10(high))) + 1;
  for (const std::vector<double>& steps : kLogSteps) {
    std::vector<double> values;
    for (int decade = first; decade <= last; ++decade) {
      for (const double step : steps) values.push_back(step * std::pow(10.0, decade));
    }
    // The range is the smallest span of ticks around the data.
    auto begin = std::upper_bound(values.begin(), values.end(), low * 1.0001);
    if (begin != values.begin()) --begin;
    auto end = std::lower_bound(begin, values.end(), high * 0.9999);
    if (end != values.end()) ++end;
    axis.ticks.clear();
    for (auto at = begin; at != end; ++at) axis.ticks.push_back({*at, plain(*at)});
    axis.low = axis.ticks.front().value;
    axis.high = axis.ticks.back().value;
    if (axis.ticks.size() > kFewestTicks) break;
  }
  if (axis.high <= axis.low) {  // one value that is itself a tick
    axis.high = axis.low * 10;
    axis.ticks.push_back({axis.high, plain(axis.high)});
  }
  // Many decades: every second or third one keeps its label's place.
  while (axis.ticks.size() > kMostTicks) {
    std::vector<Tick> kept;
    for (std::size_t i = 0; i < axis.ticks.size(); i += 2) kept.push_back(axis.ticks[i]);
    axis.ticks = std::move(kept);
  }
  return axis;
}

AxisRange bytes(double low, double high) {
  AxisRange axis;
  axis.scale = Scale::kLogBytes;
  const int first = static_cast<int>(std::floor(std::log2(low) + 1e-9));
  int last = static_cast<int>(std::ceil(std::log2(high) - 1e-9));
  if (last <= first) last = first + 1;
  int step = 1;
  while ((last - first) / step >= kMostTicks) ++step;
  last = first + (last - first + step - 1) / step * step;
  for (int power = first; power <= last; power += step) {
    const double value = std::exp2(power);
    std::string label = format_bytes(value);
    // "4.00 MiB" -> "4 MiB": ticks are powers of two.
    if (const std::size_t dot = label.find('.'); dot != std::string::npos) {
      const std::size_t space = label.find(' ');
      label.erase(dot, space - dot);
    }
    axis.ticks.push_back({value, label});
  }
  axis.low = std::exp2(first);
  axis.high = std::exp2(last);
  return axis;
}

}  // namespace

double AxisRange::position(double value) const {
  if (scale == Scale::kLinear) return (value - low) / (high - low);
  return std::log(value / low) / std::log(high / low);
}

AxisRange linear_axis(const LinearRange& range) {
  AxisRange axis;
  double low = range.low, high = range.high;
  if (high <= low) {  // one value: a range of its own size around it
    const double half = low == 0 ? 0.5 : std::fabs(low) / 2;
    low -= half;
    high += half;
  }
  // Round ends may add a tick at each end, and all of them must fit.
  const double least = std::max(
      range.least_step, (high - low) / std::max(1, range.most_ticks - (range.tight ? 1 : 2)));
  const double decade = std::pow(10.0, std::floor(std::log10(least)));
  double step = 10 * decade;
  for (const double candidate : {5.0, 2.0, 1.0}) {
    if (candidate * decade >= least * (1 - 1e-9)) step = candidate * decade;
  }
  const double first = range.tight ? std::ceil(low / step - 1e-9) : std::floor(low / step + 1e-9);
  const double last = range.tight ? std::floor(high / step + 1e-9) : std::ceil(high / step - 1e-9);
  axis.low = range.tight ? low : first * step;
  axis.high = range.tight ? high : last * step;
  // Counted by an integer: beyond 2^53 adding 1 to a double changes nothing.
  for (int i = 0; i <= last - first; ++i) {
    const double value = (first + i) * step;
    axis.ticks.push_back({value, plain(value)});
  }
  return axis;
}

AxisRange nice_axis(Scale scale, double low, double high) {
  switch (scale) {
    case Scale::kLinear:
      return linear(high);
    case Scale::kLog:
      return logarithmic(low, std::max(high, low));
    case Scale::kLogMs: {
      AxisRange axis = logarithmic(low, std::max(high, low));
      for (Tick& tick : axis.ticks) tick.label = with_time_unit(tick.value);
      return axis;
    }
    case Scale::kLogBytes:
      return bytes(low, std::max(high, low));
  }
  return linear(high);
}

}  // namespace flashlab::lab::report
