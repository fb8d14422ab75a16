#pragma once

// A small reader of JSON, for the files that the library itself reads: it has no JSON library.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "flashlab/status.h"

namespace flashlab::runtime {

/// A value as it stands in a file.
struct Json {
  enum class Kind : std::uint8_t { kNull, kBool, kNumber, kText, kList, kObject };
  Kind kind = Kind::kNull;
  bool truth = false;
  double number = 0;
  std::string text;
  std::vector<std::string> names;  ///< of an object's values
  std::vector<Json> items;         ///< a list's or an object's values

  /// An object's value of that name; null if there is none.
  const Json* find(std::string_view name) const;
};

/// Reads one value and nothing behind it. Errors: kInvalidArgument with the place of what is no
/// JSON, of nesting deeper than 16, and of a character beyond \uD7FF that is written as two
/// escapes.
Result<Json> parse_json(std::string_view text);

}  // namespace flashlab::runtime
