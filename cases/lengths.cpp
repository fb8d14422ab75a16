// Mixes of sequence lengths: the same for bench, compare and baselines, by a seed.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "case.h"

namespace flashlab::cases {
namespace {

std::uint64_t mixed(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// In (0, 1).
double uniform(std::uint64_t seed, std::uint64_t n) {
  return (static_cast<double>(mixed(mixed(seed) + n) >> 11) + 0.5) * 0x1p-53;
}

std::int64_t between(std::int64_t low, std::int64_t high, double u) {
  return low + static_cast<std::int64_t>(u * static_cast<double>(high - low + 1));
}

std::int64_t length_of(std::string_view mix, std::int64_t tokens, std::uint64_t seed,
                       std::uint64_t n) {
  const double u = uniform(seed, 2 * n);
  if (mix == "documents") {  // log-normal, median 600
    constexpr double kTurn = 6.283185307179586;
    const double normal = std::sqrt(-2 * std::log(u)) * std::cos(kTurn * uniform(seed, 2 * n + 1));
    return std::clamp<std::int64_t>(std::llround(600 * std::exp(normal)), 16, 8192);
  }
  if (mix == "one-long") return n == 0 ? tokens / 2 : 256;
  if (mix == "chat") return between(16, 512, u);
  if (mix == "half") return between(1, 4096, u);
  return 2048;  // equal
}

}  // namespace

const std::vector<std::string>& length_mixes() {
  static const std::vector<std::string> kNames = {"documents", "one-long", "chat", "half", "equal"};
  return kNames;
}

bool set_lengths(Case& c, std::string_view text) {
  const std::string_view mix = text.substr(0, text.find(':'));
  const auto& known = length_mixes();
  if (std::find(known.begin(), known.end(), mix) == known.end()) return false;
  std::int64_t tokens = kLengthTokens;
  if (mix.size() < text.size()) {
    const char* end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data() + mix.size() + 1, end, tokens);
    if (error != std::errc() || at != end) return false;
  }
  if (tokens < 1 || tokens > kMostLengthTokens) return false;
  std::vector<SequenceLengths> list;
  for (std::int64_t left = tokens; left > 0;) {
    const std::int64_t wanted = length_of(mix, tokens, c.seed, list.size());
    const std::int64_t length = std::clamp<std::int64_t>(wanted, 1, left);
    list.push_back({length, length});
    left -= length;
  }
  c.set_sequences(std::move(list));
  c.lengths = fmt::format("{}:{}", mix, tokens);
  return true;
}

}  // namespace flashlab::cases
