#pragma once

// UTF-8, decoded once: what is text and where it stops being text.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace flashlab::base {

struct CodePoint {
  std::uint32_t value = 0;
  std::size_t bytes = 1;
  bool valid = false;
};

/// The character at `at`. Overlong forms, surrogates and values past U+10FFFF are no characters:
/// each of their bytes is an invalid one by itself. Precondition: at < text.size().
CodePoint code_point_at(std::string_view text, std::size_t at);

/// Where the first byte stands that is no UTF-8.
std::optional<std::size_t> find_no_utf8(std::string_view text);

}  // namespace flashlab::base
