#pragma once

// Numbers out of text, with messages that name the flag, what was given and what to give.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cli/flags.h"

namespace flashlab::cli {

/// The most that a size may be on the command line: products of sizes are checked apart.
inline constexpr std::int64_t kMaxSize = std::int64_t{1} << 40;

/// "1024", "4k" (k = 1024). Throws Failure when it is no whole number or outside [low, high].
std::int64_t parse_whole(std::string_view flag, std::string_view text, std::int64_t low,
                         std::int64_t high);

/// Bytes: "4096", "512MiB", "80GB" (10^9 each), "40GiB". Throws Failure for what is none.
std::int64_t parse_bytes(std::string_view flag, std::string_view text);

/// A finite number. Throws Failure for nan, inf, what overflows a float, and what is no number.
float parse_real(std::string_view flag, std::string_view text);

/// The flag's list; `fallback` when it was not given.
std::vector<std::int64_t> whole_list(const Arguments& arguments, std::string_view flag,
                                     std::vector<std::int64_t> fallback, std::int64_t low = 1,
                                     std::int64_t high = kMaxSize);

/// The flag's number of things that are counted: "5k" is 5000. `fallback` when it was not given.
std::int64_t count(const Arguments& arguments, std::string_view flag, std::int64_t fallback,
                   std::int64_t low, std::int64_t high);

/// The flag's number; `fallback` when it was not given.
std::int64_t whole(const Arguments& arguments, std::string_view flag, std::int64_t fallback,
                   std::int64_t low, std::int64_t high);

}  // namespace flashlab::cli
