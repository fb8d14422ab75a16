#pragma once

#include <string_view>

namespace flashlab::lab {

/// The deepest nesting of arrays and objects that is read from a file.
inline constexpr int kMaxJsonDepth = 64;

/// Whether the text opens more than kMaxJsonDepth brackets inside each other, outside of strings.
///
/// Asked before a file is parsed: functions of the JSON library (dump, comparison) call themselves
/// once for each level, so that 160 KB of brackets overflow the stack.
inline bool is_nested_too_deeply(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxJsonDepth) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

}  // namespace flashlab::lab
