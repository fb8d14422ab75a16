#include "cli/values.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "cli/failure.h"

namespace flashlab::cli {

namespace {

std::int64_t parse_thousands(std::string_view flag, std::string_view text, std::int64_t low,
                             std::int64_t high, std::int64_t thousand) {
  std::string_view digits = text;
  std::int64_t unit = 1;
  if (!digits.empty() && (digits.back() == 'k' || digits.back() == 'K')) {
    unit = thousand;
    digits.remove_suffix(1);
  }
  std::int64_t value = 0;
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, value);
  if (digits.empty() || stop != end || error == std::errc::invalid_argument) {
    fail_usage(fmt::format("{} \"{}\" is no whole number; give one such as {} or 4k (k is {})",
                           flag, text, thousand, thousand));
  }
  const bool overflow =
      error == std::errc::result_out_of_range || __builtin_mul_overflow(value, unit, &value);
  if (overflow || value < low || value > high) {
    fail_usage(fmt::format("{} {} is out of range; use {} to {}", flag, text, low, high));
  }
  return value;
}

}  // namespace

std::int64_t parse_whole(std::string_view flag, std::string_view text, std::int64_t low,
                         std::int64_t high) {
  return parse_thousands(flag, text, low, high, 1024);
}

std::int64_t parse_bytes(std::string_view flag, std::string_view text) {
  const struct {
    std::string_view suffix;
    double bytes;
  } kUnits[] = {{"GiB", 1024.0 * 1024 * 1024},
                {"MiB", 1024.0 * 1024},
                {"KiB", 1024},
                {"GB", 1e9},
                {"MB", 1e6},
                {"KB", 1e3}};
  double value = 0, unit = 1;
  std::string_view digits = text;
  for (const auto& each : kUnits) {
    if (!digits.ends_with(each.suffix)) continue;
    digits.remove_suffix(each.suffix.size());
    unit = each.bytes;
    break;
  }
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, value);
  if (digits.empty() || stop != end || error != std::errc() || !(value * unit >= 1) ||
      value * unit > 1e18) {
    fail_usage(fmt::format("{} \"{}\" is no amount of memory; give one such as 80GB, 40GiB or 4096",
                           flag, text));
  }
  return static_cast<std::int64_t>(value * unit);
}

float parse_real(std::string_view flag, std::string_view text) {
  std::string_view digits = text;
  if (digits.starts_with('+')) digits.remove_prefix(1);
  float value = 0;
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, value);
  if (error == std::errc::result_out_of_range) {
    fail_usage(fmt::format(
        "{} {} does not fit in a float; use 1e-38 to 3e38, 0, or their negatives", flag, text));
  }
  if (digits.empty() || stop != end || error != std::errc()) {
    fail_usage(fmt::format("{} \"{}\" is no number; give one such as 0.125 or 1", flag, text));
  }
  if (!std::isfinite(value)) {
    fail_usage(fmt::format("{} {} is not finite; give a number such as 0.125, 1 or 0", flag, text));
  }
  return value;
}

std::vector<std::int64_t> whole_list(const Arguments& arguments, std::string_view flag,
                                     std::vector<std::int64_t> fallback, std::int64_t low,
                                     std::int64_t high) {
  if (!arguments.has(flag)) return fallback;
  std::vector<std::int64_t> out;
  for (const std::string& text : arguments.list(flag)) {
    out.push_back(parse_whole(arguments.spelling(flag), text, low, high));
  }
  return out;
}

std::int64_t count(const Arguments& arguments, std::string_view flag, std::int64_t fallback,
                   std::int64_t low, std::int64_t high) {
  const std::optional<std::string> text = arguments.value(flag);
  return text ? parse_thousands(arguments.spelling(flag), *text, low, high, 1000) : fallback;
}

std::int64_t whole(const Arguments& arguments, std::string_view flag, std::int64_t fallback,
                   std::int64_t low, std::int64_t high) {
  const std::optional<std::string> text = arguments.value(flag);
  return text ? parse_whole(arguments.spelling(flag), *text, low, high) : fallback;
}

}  // namespace flashlab::cli
