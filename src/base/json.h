#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace flashlab::base {

/// JSON as text. Bytes that are no UTF-8 (a file's name, a process's) become U+FFFD: the library's
/// own dump would throw. `indent` -1: one line.
template <typename Json>
std::string json_text(const Json& json, int indent = -1, bool ascii = false) {
  return json.dump(indent, ' ', ascii, Json::error_handler_t::replace);
}

}  // namespace flashlab::base
