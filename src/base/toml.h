#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace flashlab::base {

/// A TOML 1.0 text as the JSON object that says the same. Of its values dates and times, infinity
/// and NaN are refused.
struct Toml {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  /// What is wrong and where: "line 3: a value for \"steps\""; empty: nothing is.
  std::string error{};
};
Toml read_toml(std::string_view text);

/// A file of settings: TOML where its name ends with .toml, else JSON. Discarded where it is none;
/// `error` then says why, of TOML with the line.
nlohmann::ordered_json read_settings(std::string_view text, std::string_view name,
                                     std::string& error);

}  // namespace flashlab::base
