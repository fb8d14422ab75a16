#include "lab/report/numbers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace flashlab::lab::report {
namespace {

/// "nan", "inf", "-inf"; empty for a finite value.
std::string special(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return {};
}

template <std::size_t N>
std::string scaled(double value, double step, const std::array<const char*, N>& units) {
  if (const std::string word = special(value); !word.empty()) return word;
  std::size_t unit = 0;
  // 999.5 and not 1000: a value must not round up to four digits before it changes its unit.
  const double limit = step - 0.5;
  while (std::fabs(value) >= limit && unit + 1 < N) {
    value /= step;
    ++unit;
  }
  if (unit == 0 && value == std::floor(value)) return fmt::format("{:.0f} {}", value, units[unit]);
  return format_significant(value, 3) + " " + units[unit];
}

}  // namespace

std::string format_significant(double value, int digits) {
  if (const std::string word = special(value); !word.empty()) return word;
  if (value == 0) return "0";
  const double magnitude = std::fabs(value);
  if (magnitude < 1e-4 || magnitude >= 1e9) return fmt::format("{:.{}e}", value, digits - 1);
  int exponent = static_cast<int>(std::floor(std::log10(magnitude)));
  int decimals = std::max(0, digits - 1 - exponent);
  // 9.996 with three digits is 10.0, not 10.00.
  const double rounded =
      std::round(magnitude * std::pow(10.0, decimals)) / std::pow(10.0, decimals);
  if (rounded >= std::pow(10.0, exponent + 1)) decimals = std::max(0, decimals - 1);
  return fmt::format("{:.{}f}", value, decimals);
}

std::string format_ms(std::optional<double> milliseconds) {
  return milliseconds ? format_significant(*milliseconds, 4) : kAbsent;
}

std::string format_percent(std::optional<double> share) {
  if (!share) return kAbsent;
  if (const std::string word = special(*share); !word.empty()) return word;
  const double percent = *share * 100;
  if (percent > 0 && percent < 0.95) return fmt::format("{:.1f}%", percent);
  // Nothing is a thousand times the roof: such a figure is a mistake and must not fill a line.
  if (std::fabs(percent) >= 99999.5) return fmt::format("{:.0e}%", percent);
  return fmt::format("{:.0f}%", percent);
}

std::string format_bytes(std::optional<double> bytes) {
  if (!bytes) return kAbsent;
  static constexpr std::array<const char*, 6> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  return scaled(*bytes, 1024, kUnits);
}

std::string format_error(std::optional<double> error) {
  if (!error) return kAbsent;
  if (const std::string word = special(*error); !word.empty()) return word;
  return *error == 0 ? "0" : fmt::format("{:.1e}", *error);
}

std::string format_ratio(std::optional<double> ratio) {
  if (!ratio) return kAbsent;
  if (const std::string word = special(*ratio); !word.empty()) return word;
  // 0.996 has two decimals as its neighbours on both sides have: 1.00.
  const double magnitude = std::fabs(*ratio);
  if (magnitude >= 0.995 && magnitude < 1) return fmt::format("{:.2f}x", *ratio);
  return format_significant(*ratio, magnitude < 1 ? 2 : 3) + "x";
}

std::string format_flops(double flops) {
  static constexpr std::array<const char*, 6> kUnits = {"FLOP",  "kFLOP", "MFLOP",
                                                        "GFLOP", "TFLOP", "PFLOP"};
  return scaled(flops, 1000, kUnits);
}

std::string format_length(std::int64_t length) {
  if (length >= 1024 && length % 1024 == 0) return fmt::format("{}k", length / 1024);
  return fmt::format("{}", length);
}

const char* to_string(RateUnit unit) noexcept {
  return unit == RateUnit::kGflops ? "GFLOP/s" : "TFLOP/s";
}

RateUnit rate_unit_for(std::span<const Measurement* const> results) {
  double largest = 0;
  for (const Measurement* result : results) {
    if (result != nullptr) largest = std::max(largest, finite((*result)[kTflops]).value_or(0));
  }
  return largest < 1 ? RateUnit::kGflops : RateUnit::kTflops;
}

RateUnit rate_unit_for(const ResultFile& file) {
  std::vector<const Measurement*> all;
  for (const Measurement& result : file.results) all.push_back(&result);
  return rate_unit_for(all);
}

std::string format_rate(std::optional<double> tflops, RateUnit unit) {
  if (!tflops) return kAbsent;
  return format_significant(unit == RateUnit::kGflops ? *tflops * 1000 : *tflops, 3);
}

std::string format_figure(const Column& column, std::optional<double> value, RateUnit unit) {
  if (!value) return kAbsent;
  if (column.unit == "ms") return format_ms(value);
  if (column.unit == "TFLOP/s") return format_rate(value, unit);
  if (column.unit == "share") return format_percent(value);
  if (column.unit == "bytes") return format_bytes(value);
  if (column.unit == "error") return format_error(value);
  return format_significant(*value, 3);
}

std::string heading_of(const Column& column, RateUnit unit) {
  std::string out(column.heading);
  if (const auto at = out.find("TFLOP/s"); at != std::string::npos) out[at] = to_string(unit)[0];
  return out;
}

std::optional<double> finite(std::optional<double> value) {
  return value && std::isfinite(*value) ? value : std::nullopt;
}

}  // namespace flashlab::lab::report
