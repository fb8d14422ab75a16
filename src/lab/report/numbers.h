#pragma once

// How figures are written everywhere: an absent value is "-", a NaN is "nan", never a 0.

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "lab/results/measurement.h"

namespace flashlab::lab::report {

inline constexpr const char* kAbsent = "-";

/// `digits` significant digits without an exponent between 1e-4 and 1e9: "0.0123", "12.3", "12345".
std::string format_significant(double value, int digits);

std::string format_ms(std::optional<double> milliseconds);  ///< "12.34"
std::string format_percent(std::optional<double> share);    ///< 0.874 -> "87%"
std::string format_bytes(std::optional<double> bytes);      ///< "1.50 GiB"
std::string format_error(std::optional<double> error);      ///< "1.2e-07"
std::string format_ratio(std::optional<double> ratio);      ///< "8.71x"
std::string format_flops(double flops);                     ///< "17.2 GFLOP"
std::string format_length(std::int64_t length);             ///< 16384 -> "16k", 1000 -> "1000"

/// TFLOP/s, or GFLOP/s where the largest figure is below 1 TFLOP/s. One unit per table.
enum class RateUnit : std::uint8_t { kGflops, kTflops };
const char* to_string(RateUnit unit) noexcept;  ///< "GFLOP/s", "TFLOP/s"
RateUnit rate_unit_for(std::span<const Measurement* const> results);
RateUnit rate_unit_for(const ResultFile& file);
std::string format_rate(std::optional<double> tflops, RateUnit unit);

/// A figure as its column's unit is written; the heading of that column.
std::string format_figure(const Column& column, std::optional<double> value, RateUnit unit);
std::string heading_of(const Column& column, RateUnit unit);

/// The value when present and finite.
std::optional<double> finite(std::optional<double> value);

}  // namespace flashlab::lab::report
