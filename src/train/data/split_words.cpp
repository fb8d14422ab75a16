#include "train/data/split_words.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "base/utf8.h"

namespace flashlab::train {
namespace {

struct Range {
  std::uint32_t first, last;
};
#include "train/data/unicode_ranges.inc"

constexpr Range kSpaces[] = {{0x9, 0xd},       {0x20, 0x20},     {0x85, 0x85},     {0xa0, 0xa0},
                             {0x1680, 0x1680}, {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f},
                             {0x205f, 0x205f}, {0x3000, 0x3000}};

template <std::size_t N>
bool within(const Range (&ranges)[N], std::uint32_t code) {
  const Range* at = std::upper_bound(std::begin(ranges), std::end(ranges), code,
                                     [](std::uint32_t c, const Range& r) { return c < r.first; });
  return at != std::begin(ranges) && code <= std::prev(at)->last;
}

enum class Class : unsigned char { kEnd, kLetter, kNumber, kSpace, kNewline, kOther };

struct Sign {
  Class kind = Class::kEnd;
  std::size_t bytes = 0;
};

// The character at the front; a byte that begins none is one by itself.
Sign sign_at(std::string_view text) {
  if (text.empty()) return {};
  const auto [code, bytes, valid] = base::code_point_at(text, 0);
  if (!valid) return {Class::kOther, 1};
  if (code == '\n' || code == '\r') return {Class::kNewline, bytes};
  if (within(kSpaces, code)) return {Class::kSpace, bytes};
  if (within(kLetters, code)) return {Class::kLetter, bytes};
  return {within(kNumbers, code) ? Class::kNumber : Class::kOther, bytes};
}

// Bytes of the run of `kind` at `from`, of at most `most` characters.
std::size_t run_of(std::string_view text, std::size_t from, Class kind, int most = 1 << 30) {
  std::size_t at = from;
  for (int count = 0; count < most; ++count) {
    const Sign sign = sign_at(text.substr(at));
    if (sign.kind != kind) break;
    at += sign.bytes;
  }
  return at - from;
}

bool is_space(Class kind) {
  return kind == Class::kSpace || kind == Class::kNewline;
}

std::size_t contraction(std::string_view text, bool any_case) {
  if (text[0] != '\'') return 0;
  for (const std::string_view tail : {"s", "t", "re", "ve", "m", "ll", "d"}) {
    if (text.size() <= tail.size()) continue;
    const bool same = std::equal(tail.begin(), tail.end(), text.begin() + 1, [&](char a, char b) {
      return a == b || (any_case && b >= 'A' && b <= 'Z' && a == b + ('a' - 'A'));
    });
    if (same) return 1 + tail.size();
  }
  return 0;
}

// White space: all of it at the end of the text, else all but the last character, which belongs to
// what follows; a single one is a word.
std::size_t spaces(std::string_view text) {
  std::size_t end = 0, last = 0;
  while (end < text.size()) {
    const Sign sign = sign_at(text.substr(end));
    if (!is_space(sign.kind)) return last > 0 ? last : end;
    last = end;
    end += sign.bytes;
  }
  return end;
}

std::size_t gpt2_word(std::string_view text) {
  if (const std::size_t bytes = contraction(text, false)) return bytes;
  const std::size_t space = text[0] == ' ' ? 1 : 0;
  const Class kind = sign_at(text.substr(space)).kind;
  if (kind == Class::kLetter || kind == Class::kNumber || kind == Class::kOther) {
    return space + run_of(text, space, kind);
  }
  return spaces(text);
}

// Up to and with the last newline of the white space at the front; 0: there is none.
std::size_t newlines(std::string_view text) {
  std::size_t end = 0, after = 0;
  while (end < text.size()) {
    const Sign sign = sign_at(text.substr(end));
    if (!is_space(sign.kind)) break;
    end += sign.bytes;
    if (sign.kind == Class::kNewline) after = end;
  }
  return after;
}

std::size_t gpt4_word(std::string_view text, int digits) {
  if (const std::size_t bytes = contraction(text, true)) return bytes;
  const Sign first = sign_at(text);
  if (first.kind == Class::kLetter) return run_of(text, 0, Class::kLetter);
  if (first.kind == Class::kNumber) return run_of(text, 0, Class::kNumber, digits);
  if (first.kind != Class::kNewline) {
    const std::size_t letters = run_of(text, first.bytes, Class::kLetter);
    if (letters > 0) return first.bytes + letters;
  }
  const std::size_t space = text[0] == ' ' ? 1 : 0;
  if (const std::size_t others = run_of(text, space, Class::kOther)) {
    return space + others + run_of(text, space + others, Class::kNewline);
  }
  if (const std::size_t bytes = newlines(text)) return bytes;
  return spaces(text);
}

constexpr std::string_view kGpt4Head = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)";
constexpr std::string_view kGpt4Tail = R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

}  // namespace

std::optional<WordRule> word_rule(std::string_view expression) {
  if (expression == kGpt2Words) return WordRule{WordRule::Kind::kGpt2, 1};
  if (!expression.starts_with(kGpt4Head) || !expression.ends_with(kGpt4Tail)) return std::nullopt;
  expression.remove_prefix(kGpt4Head.size());
  expression.remove_suffix(kGpt4Tail.size());
  if (expression == R"(\p{N})") return WordRule{WordRule::Kind::kGpt4, 1};
  if (expression == R"(\p{N}{1,3})") return WordRule{WordRule::Kind::kGpt4, 3};
  return std::nullopt;
}

void split_words(std::string_view text, const WordRule& rule,
                 const std::function<void(std::string_view)>& word) {
  while (!text.empty()) {
    const std::size_t bytes = rule.kind == WordRule::Kind::kWhole  ? text.size()
                              : rule.kind == WordRule::Kind::kGpt2 ? gpt2_word(text)
                                                                   : gpt4_word(text, rule.digits);
    word(text.substr(0, bytes));
    text.remove_prefix(bytes);
  }
}

}  // namespace flashlab::train
