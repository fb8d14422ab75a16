// Completion scripts for bash, zsh and fish, out of the table.

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "cli/help.h"

namespace flashlab::cli {
namespace {

// First words only: "bench weighted-sum" is completed after "bench".
std::vector<std::string> first_words() {
  std::vector<std::string> out;
  for (const CommandSpec& spec : commands()) {
    if (spec.name.find(' ') == std::string_view::npos) out.emplace_back(spec.name);
  }
  return out;
}

std::vector<std::string> second_words(std::string_view first) {
  std::vector<std::string> out;
  for (const CommandSpec& spec : commands()) {
    if (spec.name.size() > first.size() && spec.name.starts_with(first) &&
        spec.name[first.size()] == ' ') {
      out.emplace_back(spec.name.substr(first.size() + 1));
    }
    if (spec.name == first && spec.positional_choices) {
      for (const std::string& word : spec.positional_choices()) out.push_back(word);
    }
  }
  return out;
}

// Every spelling of every flag with the values it takes: one entry per spelling.
struct Values {
  std::string spelling;
  std::vector<std::string> words;  // fixed choices
  bool file = false;
  bool folder = false;
};

std::vector<Values> flag_values() {
  std::vector<Values> out;
  for (const FlagSpec& flag : flags()) {
    if (flag.kind == FlagKind::kSwitch || flag.kind == FlagKind::kOptionalValue) continue;
    for (std::string_view spelling : {flag.name, flag.alias}) {
      if (spelling.empty()) continue;
      const bool known =
          std::ranges::any_of(out, [&](const Values& v) { return v.spelling == spelling; });
      if (known) continue;
      Values values{
          std::string(spelling), {}, flag.kind == FlagKind::kFile, flag.kind == FlagKind::kFolder};
      if (flag.choices) values.words = flag.choices();
      if (spelling == "--device") values.words = {"cpu", "cuda"};
      out.push_back(std::move(values));
    }
  }
  return out;
}

std::vector<std::string> spellings(CommandBit bit) {
  std::vector<std::string> out;
  for (const FlagSpec* flag : flags_of(bit)) {
    out.emplace_back(flag->name);
    if (flag->alias.starts_with("--")) out.emplace_back(flag->alias);
    if (flag->kind == FlagKind::kOptionalValue && flag->choices) {
      for (const std::string& word : flag->choices()) {
        out.push_back(fmt::format("{}={}", flag->name, word));
      }
    }
  }
  return out;
}

std::string bash_script() {
  std::string out =
      "# flashlab completion for bash:  source <(flashlab completion bash)\n"
      "_flashlab() {\n"
      "  local current=${COMP_WORDS[COMP_CWORD]} previous= command= i\n"
      "  (( COMP_CWORD > 0 )) && previous=${COMP_WORDS[COMP_CWORD-1]}\n"
      "  for (( i = 1; i < COMP_CWORD && i < 3; i++ )); do\n"
      "    [[ ${COMP_WORDS[i]} == -* ]] && break\n"
      "    command+=\"${command:+ }${COMP_WORDS[i]}\"\n"
      "  done\n"
      "  # Lists: only the part behind the last comma is completed.\n"
      "  local head=\n"
      "  [[ $current == *,* ]] && head=${current%,*},\n"
      "  case $previous in\n";
  for (const Values& values : flag_values()) {
    std::string action = "return";
    if (!values.words.empty()) {
      action = fmt::format(
          "COMPREPLY=( $(compgen -P \"$head\" -W \"{}\" -- \"${{current##*,}}\") ); return",
          base::join(values.words, " "));
    } else if (values.file) {
      action = "COMPREPLY=( $(compgen -f -- \"$current\") ); return";
    } else if (values.folder) {
      action = "COMPREPLY=( $(compgen -d -- \"$current\") ); return";
    }
    out += fmt::format("    {}) {} ;;\n", values.spelling, action);
  }
  out += "  esac\n  case $command in\n";
  for (const CommandSpec& spec : commands()) {
    std::vector<std::string> words = spellings(spec.bit);
    if (spec.name.find(' ') == std::string_view::npos) {
      for (const std::string& word : second_words(spec.name)) words.insert(words.begin(), word);
    }
    // Behind "completion bash" the words are taken as "completion" itself.
    const std::string pattern =
        spec.positional.empty() ? fmt::format("\"{}\"", spec.name) : fmt::format("{}*", spec.name);
    out += fmt::format("    {}) COMPREPLY=( $(compgen -W \"{}\" -- \"$current\") ) ;;\n", pattern,
                       base::join(words, " "));
  }
  out += fmt::format(
      "    \"\") COMPREPLY=( $(compgen -W \"{} --help --version\" -- \"$current\") ) ;;\n  "
      "esac\n}}\n"
      "complete -o bashdefault -F _flashlab flashlab\n",
      base::join(first_words(), " "));
  return out;
}

// Inside a zsh _arguments description: brackets, colons and quotes are special.
std::string zsh_text(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
    out += c == '\'' ? '`' : c;
  }
  return out;
}

std::string zsh_flag(const FlagSpec& flag, std::string_view spelling) {
  std::string value;
  if (flag.kind != FlagKind::kSwitch) {
    std::string action = " ";
    if (flag.choices) {
      action = flag.kind == FlagKind::kList
                   ? fmt::format("_sequence compadd - {}", base::join(flag.choices(), " "))
                   : fmt::format("({})", base::join(flag.choices(), " "));
    } else if (flag.kind == FlagKind::kFile) {
      action = "_files";
    } else if (flag.kind == FlagKind::kFolder) {
      action = "_files -/";
    }
    const char* colons = flag.kind == FlagKind::kOptionalValue ? "::" : ":";
    value = fmt::format("{}{}:{}", colons, zsh_text(flag.value), action);
  }
  const char* equals = flag.kind == FlagKind::kOptionalValue ? "=-" : "";
  return fmt::format("'{}{}[{}]{}'", spelling, equals, zsh_text(flag.help), value);
}

std::string zsh_script() {
  std::string out =
      "#compdef flashlab\n# flashlab completion for zsh\n_flashlab() {\n"
      "  local -a words_first=(\n";
  for (const CommandSpec& spec : commands()) {
    if (spec.name.find(' ') == std::string_view::npos) {
      out += fmt::format("    '{}:{}'\n", spec.name, zsh_text(spec.summary));
    }
  }
  out +=
      "  )\n  if (( CURRENT == 2 )); then\n    _describe 'command' words_first\n    return\n  fi\n"
      "  local command=$words[2]\n"
      "  case \"$words[2] $words[3]\" in\n";
  std::string two;
  for (const CommandSpec& spec : commands()) {
    if (spec.name.find(' ') == std::string_view::npos) continue;
    two += fmt::format("{}'{}'", two.empty() ? "" : "|", spec.name);
  }
  out += fmt::format("    {}) command=\"$words[2] $words[3]\" ;;\n  esac\n", two);
  out += "  case $command in\n";
  for (const CommandSpec& spec : commands()) {
    out += fmt::format("    '{}')\n      _arguments -S \\\n", spec.name);
    for (const FlagSpec* flag : flags_of(spec.bit)) {
      for (std::string_view spelling : {flag->name, flag->alias}) {
        if (!spelling.empty()) out += fmt::format("        {} \\\n", zsh_flag(*flag, spelling));
      }
    }
    const std::vector<std::string> words = spec.name.find(' ') == std::string_view::npos
                                               ? second_words(spec.name)
                                               : std::vector<std::string>{};
    // _arguments counts from the command itself: word 2 is the first behind it.
    out += words.empty() ? "        '*: :'\n"
                         : fmt::format("        '1: :' '2: :({})'\n", base::join(words, " "));
    out += "      ;;\n";
  }
  out +=
      "  esac\n}\n"
      "if [[ $funcstack[1] == _flashlab ]]; then _flashlab \"$@\"; "
      "else compdef _flashlab flashlab; fi\n";
  return out;
}

std::string fish_text(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string fish_flag(const FlagSpec& flag, const std::string& condition) {
  std::string line =
      fmt::format("complete -c flashlab -n '{}' -l {}", condition, flag.name.substr(2));
  if (flag.alias.starts_with("--"))
    line += fmt::format(" -l {}", flag.alias.substr(2));
  else if (!flag.alias.empty())
    line += fmt::format(" -s {}", flag.alias.substr(1));
  if (flag.kind == FlagKind::kFile || flag.kind == FlagKind::kFolder) {
    line += " -r -F";
  } else if (flag.kind != FlagKind::kSwitch && flag.kind != FlagKind::kOptionalValue) {
    line += " -x";
  }
  if (flag.choices && flag.kind != FlagKind::kOptionalValue) {
    line += fmt::format(" -a '{}'", base::join(flag.choices(), " "));
  }
  return line + fmt::format(" -d '{}'\n", fish_text(flag.help));
}

std::string fish_script() {
  std::string out = "# flashlab completion for fish\ncomplete -c flashlab -f\n";
  const std::string none =
      fmt::format("not __fish_seen_subcommand_from {}", base::join(first_words(), " "));
  for (const CommandSpec& spec : commands()) {
    const std::size_t space = spec.name.find(' ');
    if (space == std::string_view::npos) {
      out += fmt::format("complete -c flashlab -n '{}' -a {} -d '{}'\n", none, spec.name,
                         fish_text(spec.summary));
      for (const std::string& word : second_words(spec.name)) {
        out += fmt::format("complete -c flashlab -n '__fish_seen_subcommand_from {}' -a {}\n",
                           spec.name, word);
      }
    }
    std::string condition =
        fmt::format("__fish_seen_subcommand_from {}", spec.name.substr(0, space));
    if (space != std::string_view::npos) {
      condition += fmt::format("; and __fish_seen_subcommand_from {}", spec.name.substr(space + 1));
    }
    for (const FlagSpec* flag : flags_of(spec.bit)) out += fish_flag(*flag, condition);
  }
  return out;
}

}  // namespace

std::string completion_script(std::string_view shell) {
  if (shell == "zsh") return zsh_script();
  if (shell == "fish") return fish_script();
  return bash_script();
}

}  // namespace flashlab::cli
