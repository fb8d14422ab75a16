// Words of the command line into Arguments. The one place that includes CLI11.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <deque>

#include "cli/failure.h"
#include "cli/flags.h"

namespace flashlab::cli {
namespace {

// A bare --causal must not swallow the next word, which CLI11 would let it: it becomes --causal=,
// and --causal top-left becomes --causal=top-left.
std::vector<std::string> join_optional_values(CommandBit bit, std::vector<std::string> words) {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const FlagSpec* flag = find_flag(words[i]);
    if (!flag || flag->kind != FlagKind::kOptionalValue || (flag->commands & bit) == 0) {
      out.push_back(words[i]);
      continue;
    }
    const std::vector<std::string> choices = flag->choices();
    const bool valued = i + 1 < words.size() &&
                        std::find(choices.begin(), choices.end(), words[i + 1]) != choices.end();
    out.push_back(words[i] + "=" + (valued ? words[i + 1] : std::string("?")));
    i += valued;
  }
  return out;
}

[[noreturn]] void refuse_word(CommandBit bit, const std::string& word) {
  const CommandSpec& spec = command(bit);
  const std::string name = word.substr(0, word.find('='));
  if (name.size() < 2 || name[0] != '-') {
    const std::string lead = fmt::format("{} does not take the word \"{}\"; ", spec.name, word);
    std::vector<std::string> seconds;  // of commands of two words: "step" of "bench step"
    for (const CommandSpec& other : commands()) {
      const std::size_t size = spec.name.size() + 1;
      if (other.name.starts_with(fmt::format("{} ", spec.name)))
        seconds.emplace_back(other.name.substr(size));
    }
    const std::string near = closest(word, seconds);
    if (!near.empty()) fail_usage(fmt::format("{}did you mean {} {}?", lead, spec.name, near));
    fail_usage(lead + "lists are written with commas: --seqlen 1k,2k");
  }
  std::vector<std::string> owners;
  for (const CommandSpec& other : commands()) {
    for (const FlagSpec* flag : flags_of(other.bit)) {
      if (flag->name == name || flag->alias == name) owners.emplace_back(other.name);
    }
  }
  if (!owners.empty()) {
    fail_usage(
        fmt::format("{} does not take {}; it belongs to {}", spec.name, name, join_or(owners)));
  }
  std::vector<std::string> names;
  for (const FlagSpec* flag : flags_of(bit)) names.emplace_back(flag->name);
  const std::string near = closest(name, names);
  fail_usage(fmt::format("{} knows no flag {}; {}flashlab {} --help lists them", spec.name, name,
                         near.empty() ? "" : fmt::format("did you mean {}? ", near), spec.name));
}

// Values against the flag's choices; numbers and paths are read later.
void check_choices(const FlagSpec& flag, const std::string& spelling, const std::string& value) {
  if (!flag.choices) return;
  const std::vector<std::string> choices = flag.choices();
  std::size_t begin = 0;
  while (begin <= value.size()) {
    const std::size_t comma =
        flag.kind == FlagKind::kList ? value.find(',', begin) : std::string::npos;
    const std::size_t end = comma == std::string::npos ? value.size() : comma;
    const std::string word = value.substr(begin, end - begin);
    if (std::find(choices.begin(), choices.end(), word) == choices.end()) {
      const std::string near = closest(word, choices);
      fail_usage(fmt::format("{} \"{}\" is unknown; {}use {}", spelling, word,
                             near.empty() ? "" : fmt::format("did you mean {}? ", near),
                             join_or(choices)));
    }
    begin = end + 1;
  }
}

}  // namespace

Arguments parse_arguments(CommandBit bit, std::vector<std::string> words) {
  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  struct Bound {
    const FlagSpec* flag;
    CLI::Option* option;
    std::vector<std::string> values;
  };
  std::deque<Bound> bound;  // options keep pointers into it
  for (const FlagSpec* flag : flags_of(bit)) {
    std::string names(flag->name);
    if (!flag->alias.empty()) names += "," + std::string(flag->alias);
    Bound& entry = bound.emplace_back(Bound{flag, nullptr, {}});
    if (flag->kind == FlagKind::kSwitch) {
      entry.option = app.add_flag(names);
      entry.option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    } else {
      entry.option = app.add_option(names, entry.values)
                         ->expected(1)
                         ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
      entry.option->allow_extra_args(false);
    }
  }

  std::vector<std::string> joined = join_optional_values(bit, std::move(words));
  const std::vector<std::string> typed = joined;
  std::reverse(joined.begin(), joined.end());  // CLI11 takes them from the back
  try {
    app.parse(std::move(joined));
  } catch (const CLI::ArgumentMismatch&) {
    // The flag at the end has no value; which one, CLI11 says in words that we do not want to
    // parse.
    fail_usage(fmt::format("{} needs a value; flashlab {} --help shows which", typed.back(),
                           command(bit).name));
  } catch (const CLI::ParseError& error) {
    fail_usage(fmt::format("{}; flashlab {} --help shows what is accepted", error.what(),
                           command(bit).name));
  }

  Arguments out;
  out.set_command(bit);
  for (const Bound& entry : bound) {
    if (entry.flag->kind != FlagKind::kSwitch) continue;
    for (const std::string& word : typed) {
      if (word.starts_with(std::string(entry.flag->name) + "=")) {
        fail_usage(
            fmt::format("{} takes no value; write {} alone", entry.flag->name, entry.flag->name));
      }
    }
  }
  // First what misled the parser: a flag that took the next flag for its value.
  for (const Bound& entry : bound) {
    if (entry.values.empty() || !entry.values.front().starts_with("--")) continue;
    fail_usage(fmt::format("{0} needs a value: {0} {1}", entry.flag->name, entry.flag->value));
  }
  for (const std::string& word : app.remaining()) {
    if (word.size() > 1 && word[0] == '-') refuse_word(bit, word);
  }
  for (const std::string& word : app.remaining()) {
    if (command(bit).positional.empty()) refuse_word(bit, word);
    out.add_positional(word);
  }
  for (const Bound& entry : bound) {
    if (entry.option->count() == 0) continue;
    std::string spelling(entry.flag->name);
    for (const std::string& word : typed) {
      if (!entry.flag->alias.empty() && word.substr(0, word.find('=')) == entry.flag->alias) {
        spelling = word.substr(0, word.find('='));
      }
    }
    if (entry.flag->kind == FlagKind::kSwitch) {
      out.add(*entry.flag, spelling, "");
      continue;
    }
    if (entry.values.size() > 1) {
      fail_usage(fmt::format("{} is given twice; lists are written with commas: {} {},{}", spelling,
                             spelling, entry.values[0], entry.values[1]));
    }
    std::string value = entry.values.empty() ? "" : entry.values.front();
    if (entry.flag->kind == FlagKind::kOptionalValue && value == "?") {
      out.add(*entry.flag, spelling, "");
      continue;
    }
    if (value.empty()) {
      fail_usage(fmt::format("{} needs a value: {} {}", spelling, spelling, entry.flag->value));
    }
    check_choices(*entry.flag, spelling, value);
    out.add(*entry.flag, spelling, std::move(value));
  }
  return out;
}

void Arguments::add(const FlagSpec& flag, std::string spelling, std::string value) {
  given_.push_back({&flag, std::move(spelling), std::move(value)});
}

std::optional<std::string> Arguments::value(std::string_view flag) const {
  for (const Given& given : given_) {
    if (given.flag->name == flag) return given.value;
  }
  return std::nullopt;
}

std::vector<std::string> Arguments::list(std::string_view flag) const {
  std::vector<std::string> out;
  const std::optional<std::string> text = value(flag);
  if (!text) return out;
  std::size_t begin = 0;
  while (begin <= text->size()) {
    const std::size_t end = std::min(text->find(',', begin), text->size());
    out.push_back(text->substr(begin, end - begin));
    if (out.back().empty()) {
      fail_usage(
          fmt::format("{} {} has an empty place between its commas; write 1k,2k", flag, *text));
    }
    begin = end + 1;
  }
  return out;
}

std::string Arguments::spelling(std::string_view flag) const {
  for (const Given& given : given_) {
    if (given.flag->name == flag) return given.spelling;
  }
  return std::string(flag);
}

std::string closest(std::string_view word, std::span<const std::string> candidates) {
  std::string best;
  // Of three letters two are another word: fp8 is not fp64 misspelt.
  std::size_t best_distance = std::max<std::size_t>(word.size() < 4 ? 1 : 2, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    // Edit distance, one row at a time.
    std::vector<std::size_t> row(candidate.size() + 1);
    for (std::size_t j = 0; j <= candidate.size(); ++j) row[j] = j;
    for (std::size_t i = 1; i <= word.size(); ++i) {
      std::size_t diagonal = row[0];
      row[0] = i;
      for (std::size_t j = 1; j <= candidate.size(); ++j) {
        const std::size_t replaced = diagonal + (word[i - 1] != candidate[j - 1]);
        diagonal = row[j];
        row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
      }
    }
    if (row.back() < best_distance) {
      best_distance = row.back();
      best = candidate;
    }
  }
  return best;
}

std::string join_or(std::span<const std::string> words) {
  std::string out;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) out += i + 1 == words.size() ? " or " : ", ";
    out += words[i];
  }
  return out;
}

}  // namespace flashlab::cli
