#include "runtime/kernel_store/config.h"

namespace flashlab::cuda {

ConfigPrinter& ConfigPrinter::member(std::string_view type, std::string_view name,
                                     std::string_view value, std::string_view shown) {
  // Planning prints a dozen of them: appended pieces take a third of the time of a format string.
  for (const std::string_view piece :
       {std::string_view("  static constexpr "), type, std::string_view(" "), name,
        std::string_view(" = "), value, std::string_view(";\n")}) {
    members_ += piece;
  }
  if (!summary_.empty()) summary_ += " · ";
  summary_.append(name).append(" ").append(shown);
  return *this;
}

ConfigPrinter& ConfigPrinter::integer(std::string_view name, std::int64_t value) {
  const bool small = value >= INT32_MIN && value <= INT32_MAX;
  const std::string digits = std::to_string(value);
  return member(small ? "int" : "long long", name, small ? digits : digits + "LL", digits);
}

ConfigPrinter& ConfigPrinter::boolean(std::string_view name, bool value) {
  const std::string_view text = value ? "true" : "false";
  return member("bool", name, text, text);
}

ConfigPrinter& ConfigPrinter::choice(std::string_view name, std::string_view type,
                                     std::string_view value) {
  return member(type, name, std::string(type).append("::").append(value), value);
}

std::string ConfigPrinter::text() const {
  return "struct Config {\n" + members_ + "};\n";
}

}  // namespace flashlab::cuda
