#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace flashlab::base {

/// The deepest nesting of arrays and objects that is read.
inline constexpr int kMaxJsonDepth = 64;

/// Whether the text opens more than kMaxJsonDepth brackets inside each other, outside of strings.
///
/// Functions of the JSON library (dump, comparison) call themselves once for each level, so that
/// 160 KB of brackets overflow the stack.
bool is_nested_too_deeply(std::string_view text);

/// Text as JSON; discarded (is_discarded(), no object, no array) where it is none or nested too
/// deeply. Never throws.
template <typename Json = nlohmann::json>
Json read_json(std::string_view text) {
  if (is_nested_too_deeply(text)) return Json(Json::value_t::discarded);
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

/// JSON as text. Bytes that are no UTF-8 (a file's name, a process's) become U+FFFD: the library's
/// own dump would throw. `indent` -1: one line.
template <typename Json>
std::string json_text(const Json& json, int indent = -1, bool ascii = false) {
  return json.dump(indent, ' ', ascii, Json::error_handler_t::replace);
}

}  // namespace flashlab::base
