#include "runtime/kernel_store/config.h"

#include <fmt/format.h>

namespace flashlab::cuda {

ConfigPrinter& ConfigPrinter::member(std::string_view type, std::string_view name,
                                     std::string_view value, std::string_view shown) {
  members_ += fmt::format("  static constexpr {} {} = {};\n", type, name, value);
  summary_ += fmt::format("{}{} {}", summary_.empty() ? "" : " · ", name, shown);
  return *this;
}

ConfigPrinter& ConfigPrinter::integer(std::string_view name, std::int64_t value) {
  const bool small = value >= INT32_MIN && value <= INT32_MAX;
  return member(small ? "int" : "long long", name, fmt::format("{}{}", value, small ? "" : "LL"),
                fmt::format("{}", value));
}

ConfigPrinter& ConfigPrinter::boolean(std::string_view name, bool value) {
  const std::string_view text = value ? "true" : "false";
  return member("bool", name, text, text);
}

ConfigPrinter& ConfigPrinter::choice(std::string_view name, std::string_view type,
                                     std::string_view value) {
  return member(type, name, fmt::format("{}::{}", type, value), value);
}

std::string ConfigPrinter::text() const {
  return "struct Config {\n" + members_ + "};\n";
}

}  // namespace flashlab::cuda
