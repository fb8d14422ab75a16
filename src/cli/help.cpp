// Help and docs/command-line.md, out of the table.

#include "cli/help.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/text.h"
#include "flashlab/version.h"

namespace flashlab::cli {
namespace {

using base::pad_right;
using base::wrap;

constexpr int kFlagColumns = 30;
constexpr int kExampleColumns = 52;

// Choices with more words than this come after the help text on lines of their own.
std::string choices_of(const FlagSpec& flag) {
  if (!flag.choices) return "";
  std::string out;
  for (const std::string& word : flag.choices()) out += (out.empty() ? "" : "|") + word;
  return out;
}

std::string flag_left(const FlagSpec& flag) {
  std::string out(flag.name);
  if (!flag.alias.empty()) out += fmt::format(", {}", flag.alias);
  if (flag.kind == FlagKind::kOptionalValue) return out + fmt::format("[={}]", flag.value);
  if (!flag.value.empty()) out += fmt::format(" {}", flag.value);
  return out;
}

std::string flag_right(const FlagSpec& flag) {
  std::string out(flag.help);
  const std::string choices = choices_of(flag);
  if (!choices.empty()) {
    std::string spaced;
    for (char c : choices) spaced += c == '|' ? std::string(", ") : std::string(1, c);
    out += (out.empty() ? "" : ": one of ") + spaced;
  }
  return out;
}

std::string two_columns(std::string_view left, std::string_view right, int left_width, int width) {
  std::string out;
  const std::vector<std::string> lines = wrap(right, std::max(width - left_width - 2, 24));
  std::string margin = pad_right(left, left_width);
  if (static_cast<int>(left.size()) > left_width) {
    out += fmt::format("  {}\n", left);
    margin = std::string(static_cast<std::size_t>(left_width), ' ');
  }
  for (const std::string& line : lines) {
    out += fmt::format("  {}{}\n", margin, line);
    margin = std::string(static_cast<std::size_t>(left_width), ' ');
  }
  return out;
}

std::string paragraph(std::string_view text, int width) {
  std::string out;
  for (const std::string& line : wrap(text, width)) out += line + "\n";
  return out;
}

std::string examples(const CommandSpec& spec, int width) {
  std::string out = "\nExamples\n";
  for (const Example& example : spec.examples) {
    const std::string left = pad_right(example.command, kExampleColumns);
    if (static_cast<int>(left.size() + example.what.size()) + 4 > width) {
      out += fmt::format("  {}\n      {}\n", example.command, example.what);
    } else {
      out += fmt::format("  {}  {}\n", left, example.what);
    }
  }
  return out;
}

std::string usage(const CommandSpec& spec) {
  return fmt::format("flashlab {}{}{} [flags]", spec.name, spec.positional.empty() ? "" : " ",
                     spec.positional);
}

std::vector<std::string_view> groups_of(const std::vector<const FlagSpec*>& list) {
  std::vector<std::string_view> out;
  for (const FlagSpec* flag : list) {
    if (std::ranges::find(out, flag->group) == out.end()) out.push_back(flag->group);
  }
  return out;
}

constexpr const char* kExitCodes[][2] = {
    {"0", "all went well"},
    {"1", "something failed, or no case ended ok"},
    {"2", "the command line, or a file it names, cannot be used"},
    {"3", "slower than the baseline"},
    {"4", "check found a wrong result"},
    {"130", "interrupted: what was measured is kept"},
};

}  // namespace

std::string program_help(int width) {
  width = std::clamp(width, 60, 110);
  std::string out =
      fmt::format("flashlab {}: exact attention, and the instruments that prove it\n\n", version());
  out += "Usage: flashlab COMMAND [flags]      flashlab COMMAND --help\n\nCommands\n";
  for (const CommandSpec& spec : commands()) out += two_columns(spec.name, spec.summary, 22, width);
  out += "\nFlags\n" + two_columns("--version", "version and commit", 22, width) +
         two_columns("--help, -h", "this text", 22, width);
  out += "\nExamples\n";
  for (const CommandSpec& spec : commands()) {
    out += fmt::format("  {}\n", spec.examples.front().command);
  }
  out += "\nExit codes\n";
  for (const auto& [code, what] : kExitCodes) out += two_columns(code, what, 6, width);
  return out;
}

std::string command_help(const CommandSpec& spec, int width) {
  width = std::clamp(width, 60, 110);
  std::string out = fmt::format("{}: {}\n\nUsage: {}\n\n", spec.name, spec.summary, usage(spec));
  out += paragraph(spec.about, width) + examples(spec, width);
  if (spec.positional_choices) {
    const std::vector<std::string> words = spec.positional_choices();
    out += fmt::format("\n{}\n  {}\n", spec.positional, join_or(words));
  }
  const std::vector<const FlagSpec*> list = flags_of(spec.bit);
  for (std::string_view group : groups_of(list)) {
    out += fmt::format("\n{}\n", group);
    for (const FlagSpec* flag : list) {
      if (flag->group == group) {
        out += two_columns(flag_left(*flag), flag_right(*flag), kFlagColumns, width);
      }
    }
  }
  return out;
}

std::string markdown_help() {
  using base::escape_markdown;
  std::string out =
      "# The command line\n\n[中文](command-line.zh-CN.md)\n\n"
      "Written by `flashlab --help-markdown` out of the program's own table of flags; a test fails "
      "when the two differ.\n\n"
      "Lists are written with commas, `k` is 1024. Every command has `--help` with examples.\n";
  for (const CommandSpec& spec : commands()) {
    out += fmt::format(
        "\n## flashlab {}\n\n{}.\n\n{}\n\n```sh\n", spec.name,
        static_cast<char>(std::toupper(spec.summary[0])) + std::string(spec.summary.substr(1)),
        spec.about);
    for (const Example& example : spec.examples) {
      out += fmt::format("{}  # {}\n", example.command, example.what);
    }
    out += "```\n\n| flag | meaning |\n|---|---|\n";
    if (spec.positional_choices) {
      const std::vector<std::string> words = spec.positional_choices();
      out += fmt::format("| `{}` | {} |\n", spec.positional, join_or(words));
    }
    for (const FlagSpec* flag : flags_of(spec.bit)) {
      // The instruction sets and implementations are those of the build: names, not a list.
      out += fmt::format("| `{}` | {} |\n", flag_left(*flag), escape_markdown(flag_right(*flag)));
    }
  }
  out += "\n## Exit codes\n\n| code | meaning |\n|---|---|\n";
  for (const auto& [code, what] : kExitCodes) out += fmt::format("| {} | {} |\n", code, what);
  out += fmt::format(
      "\n## Later\n\nKnown by name and refused with exit code 2 until they are "
      "there: {}.\n",
      fmt::join(future_commands(), ", "));
  return out;
}

}  // namespace flashlab::cli
