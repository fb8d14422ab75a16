// Words of the command line into Arguments.

#include <fmt/format.h>

#include <algorithm>

#include "cli/failure.h"
#include "cli/flags.h"

namespace flashlab::cli {
namespace {

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

[[noreturn]] void fail_without_value(const FlagSpec& flag, const std::string& spelling) {
  fail_usage(fmt::format("{0} needs a value: {0} {1}", spelling, flag.value));
}

// The words of one flag, words[i] and perhaps the next one. Returns the index of its last.
std::size_t take_flag(const FlagSpec& flag, const std::vector<std::string>& words, std::size_t i,
                      Arguments& out) {
  const std::size_t equals = words[i].find('=');
  const std::string spelling = words[i].substr(0, equals);
  const bool joined = equals != std::string::npos;
  if (flag.kind == FlagKind::kSwitch) {
    if (joined) fail_usage(fmt::format("{0} takes no value; write {0} alone", spelling));
    if (!out.has(flag.name)) out.add(flag, spelling, "");
    return i;
  }
  std::string value = joined ? words[i].substr(equals + 1) : "";
  bool bare = false;
  if (!joined && flag.kind == FlagKind::kOptionalValue) {
    // A bare --causal must not swallow the next word, unless that is one of its choices.
    const auto choices = flag.choices ? flag.choices() : std::vector<std::string>{};
    bare = i + 1 == words.size() || std::ranges::find(choices, words[i + 1]) == choices.end();
  }
  if (!joined && !bare) {
    if (i + 1 == words.size() || words[i + 1].starts_with("--")) fail_without_value(flag, spelling);
    value = words[++i];
  }
  if (value.empty() && !bare) fail_without_value(flag, spelling);
  const std::optional<std::string> first = out.value(flag.name);
  if (first && flag.kind != FlagKind::kRepeated) {
    fail_usage(fmt::format("{0} is given twice; lists are written with commas: {0} {1},{2}",
                           spelling, *first, value));
  }
  if (!bare) check_choices(flag, spelling, value);
  out.add(flag, spelling, std::move(value));
  return i;
}

}  // namespace

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
    if (std::ranges::find(choices, word) == choices.end()) {
      if (const std::string gone = removed(word); !gone.empty()) fail_usage(gone);
      const std::string near = closest(word, choices);
      fail_usage(fmt::format("{} \"{}\" is unknown; {}use {}", spelling, word,
                             near.empty() ? "" : fmt::format("did you mean {}? ", near),
                             join_or(choices)));
    }
    begin = end + 1;
  }
}

Arguments parse_arguments(CommandBit bit, const std::vector<std::string>& words) {
  const std::vector<const FlagSpec*> known = flags_of(bit);
  Arguments out;
  out.set_command(bit);
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (command(bit).takes_command && (word == "--" || word[0] != '-')) {
      for (; i < words.size(); ++i) out.add_positional(words[i]);
      break;
    }
    if (word.size() < 2 || word[0] != '-') {
      if (command(bit).positional.empty()) refuse_word(bit, word);
      out.add_positional(word);
      continue;
    }
    const std::string name = word.substr(0, word.find('='));
    const auto flag = std::ranges::find_if(
        known, [&](const FlagSpec* one) { return one->name == name || one->alias == name; });
    if (flag == known.end()) refuse_word(bit, word);
    i = take_flag(**flag, words, i, out);
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

std::vector<std::string> Arguments::values(std::string_view flag) const {
  std::vector<std::string> out;
  for (const Given& given : given_) {
    if (given.flag->name == flag) out.push_back(given.value);
  }
  return out;
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
