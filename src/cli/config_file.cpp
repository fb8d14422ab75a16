#include "cli/config_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/toml.h"
#include "cli/failure.h"
#include "train/data/files.h"
#include "train/run/train_config.h"

namespace flashlab::cli {
namespace {

using Settings = nlohmann::ordered_json;

// What reads a run's own configuration and its model's.
constexpr unsigned kReadsRuns = kRuns | kExplainStep | kProfileStep | kSweepTrain;

Settings settings_of(const std::string& path) {
  const Result<std::string> text = train::read_file(path);
  if (!text.ok()) fail_usage("--config " + text.status().message());
  std::string error;
  Settings out = base::read_settings(*text, path, error);
  if (!error.empty()) {
    const bool toml = path.ends_with(".toml");
    fail_usage(fmt::format("--config {}: {}", path,
                           toml ? error
                                : "got no JSON, expected a JSON object such as {\"steps\": 2000}, "
                                  "or TOML in a file *.toml"));
  }
  if (!out.is_object()) {
    fail_usage(fmt::format("--config {}: got no object, expected keys and values", path));
  }
  return out;
}

bool is_key(const std::vector<std::string>& keys, const std::string& key) {
  return std::ranges::find(keys, key) != keys.end();
}

bool is_run_key(unsigned command, const std::string& key, const Settings& value) {
  // A run has one rate; a list is the flag of a sweep.
  if (command == kSweepTrain && key == "learning_rate" && value.is_array()) return false;
  return (command & kReadsRuns) != 0 && is_key(train::run_config_keys(), key);
}

// As it would be typed. Lists are written with commas.
std::string typed(const std::string& path, const std::string& key, const Settings& value) {
  if (value.is_string() && value != "") return value.get<std::string>();
  if (value.is_number()) return base::json_text(value);
  std::string out;
  bool good = value.is_array() && !value.empty();
  for (const Settings& each : value.is_array() ? value : Settings::array()) {
    const bool plain = each.is_number() ||
                       (each.is_string() && each.get<std::string>().find(',') == std::string::npos);
    good = good && plain;
    if (!good) break;
    out += (out.empty() ? "" : ",") +
           (each.is_string() ? each.get<std::string>() : base::json_text(each));
  }
  if (!good) {
    fail_usage(
        fmt::format("--config {}: {}: got {}, expected text, a number, true, false or a "
                    "list of such",
                    path, key, base::json_text(value).substr(0, 60)));
  }
  return out;
}

}  // namespace

void read_config(Arguments& arguments) {
  const auto path = arguments.value("--config");
  if (!path) return;
  const CommandBit bit = arguments.command_bit();
  const std::vector<const FlagSpec*> known = flags_of(bit);
  const Settings settings = settings_of(*path);
  for (const auto& [key, value] : settings.items()) {
    if (is_run_key(bit, key, value)) continue;
    std::string name = "--" + key;
    std::ranges::replace(name, '_', '-');
    const auto flag = std::ranges::find_if(
        known, [&](const FlagSpec* one) { return one->name == name && name != "--config"; });
    if (flag == known.end()) {
      std::vector<std::string> names;
      if ((bit & kReadsRuns) != 0) names = train::run_config_keys();
      for (const FlagSpec* one : known) {
        names.emplace_back(one->name.substr(2));
        std::ranges::replace(names.back(), '-', '_');
      }
      const std::string near = closest(key, names);
      fail_usage(fmt::format("--config {}: key: got \"{}\", expected a flag of {}{}", *path, key,
                             command(bit).name,
                             near.empty() ? "" : fmt::format("; did you mean {}?", near)));
    }
    if (arguments.has((*flag)->name)) continue;
    const std::string spelling = fmt::format("--config {}: {}", *path, key);
    if (value.is_boolean()) {
      const bool bare =
          (*flag)->kind == FlagKind::kSwitch || (*flag)->kind == FlagKind::kOptionalValue;
      if (!bare) fail_usage(spelling + ": got true or false, expected a value");
      if (value.get<bool>()) arguments.add(**flag, spelling, "");
      continue;
    }
    if ((*flag)->kind == FlagKind::kSwitch) {
      fail_usage(fmt::format("{}: got {}, expected true or false", spelling,
                             base::json_text(value).substr(0, 60)));
    }
    if ((*flag)->kind == FlagKind::kRepeated && value.is_array()) {
      for (const Settings& each : value) {
        arguments.add(**flag, spelling, typed(*path, key, each));
      }
      continue;
    }
    std::string text = typed(*path, key, value);
    check_choices(**flag, spelling, text);
    arguments.add(**flag, spelling, std::move(text));
  }
}

std::string run_keys_of(const Arguments& arguments) {
  const auto path = arguments.value("--config");
  if (!path) return "{}";
  Settings out = Settings::object();
  const Settings settings = settings_of(*path);
  for (const auto& [key, value] : settings.items()) {
    if (is_run_key(arguments.command_bit(), key, value)) out[key] = value;
  }
  return base::json_text(out);
}

}  // namespace flashlab::cli
