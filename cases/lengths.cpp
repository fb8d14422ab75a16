// Mixes of sequence lengths: the same for bench, compare and baselines, by a seed.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "case.h"

namespace flashlab::cases {
namespace {

// Beside those of length_mixes: 1 to 16k, as the caches of a server are.
constexpr std::string_view kAnyLength = "any";
constexpr std::size_t kMostSequences = std::size_t{1} << 20;

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
  if (mix == kAnyLength) return between(1, 16384, u);
  return 2048;  // equal
}

// "MIX" or "MIX:TOKENS" of known mixes; no name: it is neither.
struct Mix {
  std::string_view name;
  std::int64_t tokens = kLengthTokens;
};

Mix parse_mix(std::string_view text) {
  Mix out{text.substr(0, text.find(':'))};
  const auto& known = length_mixes();
  const bool there =
      out.name == kAnyLength || std::find(known.begin(), known.end(), out.name) != known.end();
  if (!there) return {};
  if (out.name.size() < text.size()) {
    const char* end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data() + out.name.size() + 1, end, out.tokens);
    if (error != std::errc() || at != end) return {};
  }
  if (out.tokens < 1 || out.tokens > kMostLengthTokens) return {};
  return out;
}

// A number with 1024 as k at the start of the text, which then begins behind it.
std::optional<std::int64_t> take_number(std::string_view& text) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || value < 0 || value > kMostLengthTokens) return {};
  text.remove_prefix(static_cast<std::size_t>(at - text.data()));
  if (text.starts_with('k') || text.starts_with('K')) {
    text.remove_prefix(1);
    value *= 1024;
  }
  return value;
}

// "4k+63x1": one of 4096, then 63 of 1. Empty: the text is no list, or one of too many tokens.
std::vector<std::int64_t> parse_list(std::string_view text) {
  std::vector<std::int64_t> out;
  std::int64_t tokens = 0;
  while (true) {
    std::int64_t count = 1;
    std::optional<std::int64_t> length = take_number(text);
    if (length && text.starts_with('x')) {
      text.remove_prefix(1);
      count = *length;
      length = take_number(text);
    }
    if (!length || count < 1 || count > static_cast<std::int64_t>(kMostSequences)) return {};
    tokens += count * *length;
    out.insert(out.end(), static_cast<std::size_t>(count), *length);
    if (tokens > kMostLengthTokens || out.size() > kMostSequences) return {};
    if (text.empty()) return out;
    if (!text.starts_with('+')) return {};
    text.remove_prefix(1);
  }
}

}  // namespace

const std::vector<std::string>& length_mixes() {
  static const std::vector<std::string> kNames = {"documents", "one-long", "chat", "half", "equal"};
  return kNames;
}

bool set_lengths(Case& c, std::string_view text) {
  const Mix mix = parse_mix(text);
  std::vector<SequenceLengths> list;
  for (const std::int64_t length : parse_list(text)) list.push_back({length, length});
  if (mix.name.empty() && list.empty()) return false;
  for (std::int64_t left = mix.name.empty() ? 0 : mix.tokens; left > 0;) {
    const std::int64_t wanted = length_of(mix.name, mix.tokens, c.seed, list.size());
    const std::int64_t length = std::clamp<std::int64_t>(wanted, 1, left);
    list.push_back({length, length});
    left -= length;
  }
  c.set_sequences(std::move(list));
  c.lengths = mix.name.empty() ? std::string(text) : fmt::format("{}:{}", mix.name, mix.tokens);
  return true;
}

bool set_key_lengths(Case& c, std::string_view text) {
  constexpr std::uint64_t kOfKeys = 0x5bd1e995;  // other numbers than the queries'
  const Mix mix = parse_mix(text);
  const std::vector<std::int64_t> given = parse_list(text);
  const auto count = static_cast<std::size_t>(std::max<std::int64_t>(c.batch, 0));
  if (count > kMostSequences || (mix.name.empty() && given.size() != count)) return false;
  std::vector<SequenceLengths> list = c.sequences;
  if (list.empty()) list.resize(count, {c.seqlen_q, 0});
  for (std::size_t n = 0; n < list.size(); ++n) {
    list[n].k = mix.name.empty() ? given[n] : length_of(mix.name, mix.tokens, c.seed ^ kOfKeys, n);
  }
  c.set_sequences(std::move(list));
  c.lengths_k = text;
  return true;
}

}  // namespace flashlab::cases
