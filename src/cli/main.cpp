// flashlab: exact attention, and the instruments that prove it.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/config_file.h"
#include "cli/failure.h"
#include "cli/help.h"
#include "cli/idle_flags.h"
#include "cli/ranks.h"
#include "cli/terminal.h"
#include "flashlab/version.h"
#include "lab/lab.h"
#include "train/cpu/product.h"

namespace flashlab::cli {
namespace {

std::string g_typed_command;

bool is_help(const std::string& word) {
  return word == "--help" || word == "-h";
}

bool asks_for_help(const std::vector<std::string>& words) {
  return std::ranges::any_of(words, is_help);
}

[[noreturn]] void refuse_command(const std::string& name) {
  if (const std::string gone = removed(name); !gone.empty()) fail_usage(gone);
  for (std::string_view future : future_commands()) {
    if (name == future) {
      fail_usage(
          fmt::format("the command {} is planned and not part of version {}; flashlab --help "
                      "lists what there is",
                      name, version()));
    }
  }
  if (name.starts_with('-')) {
    const FlagSpec* flag = find_flag(name.substr(0, name.find('=')));
    fail_usage(
        flag ? fmt::format("{} stands before the command; write flashlab COMMAND {}", name,
                           flag->name)
             : fmt::format("there is no flag {} without a command; flashlab --help lists what "
                           "there is",
                           name));
  }
  std::vector<std::string> names, longer;
  for (const CommandSpec& spec : commands()) {
    names.emplace_back(spec.name);
    if (spec.name.starts_with(name + " ")) longer.emplace_back(spec.name);
  }
  if (!longer.empty()) {
    fail_usage(fmt::format("{} takes a second word; write flashlab {}", name,
                           fmt::join(longer, " or flashlab ")));
  }
  const std::string near = closest(name, names);
  fail_usage(fmt::format("there is no command \"{}\"; {}flashlab --help lists what there is", name,
                         near.empty() ? "" : fmt::format("did you mean {}? ", near)));
}

// The command that the first words name; they are taken from `words`.
const CommandSpec& take_command(std::vector<std::string>& words) {
  if (words.size() > 1) {
    if (const CommandSpec* two = find_command(words[0] + " " + words[1])) {
      words.erase(words.begin(), words.begin() + 2);
      return *two;
    }
  }
  const CommandSpec* one = find_command(words[0]);
  if (!one) refuse_command(words[0]);
  words.erase(words.begin());
  return *one;
}

int dispatch(std::vector<std::string> words) {
  if (words.empty()) {
    std::fputs(program_help(terminal_width()).c_str(), stderr);
    return kExitUsage;
  }
  if (words[0] == "--version") {
    print_line(fmt::format("flashlab {} ({})", version(), build_commit()));
    return kExitOk;
  }
  if (words[0] == "--help-markdown") {
    print(markdown_help());
    return kExitOk;
  }
  if (words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
    words.erase(words.begin());
    if (words.empty()) {
      print(program_help(terminal_width()));
      return kExitOk;
    }
    words.emplace_back("--help");
  }
  const CommandSpec& spec = take_command(words);
  if (!spec.takes_command ? asks_for_help(words) : !words.empty() && is_help(words[0])) {
    print(command_help(spec, terminal_width()));
    return kExitOk;
  }
  Arguments arguments = parse_arguments(spec.bit, words);
  read_config(arguments);
  // Of a training run a file of --config decides, too: model_flags.cpp asks when it is read.
  if ((spec.bit & kRuns) == 0) refuse_idle_flags(arguments);
  return spec.run(arguments);
}

// Once, and only to a person: what reads a pipe would take it for an error.
void tell_of_compilations() {
  if (::isatty(STDERR_FILENO) != 1) return;
  lab::when_compiling_takes_long([] {
    note("compiling kernels for this GPU, about a second each; they are kept for later calls");
  });
}

int run(int argc, char** argv) {
  train::cpu::give_back_environment();
  catch_interrupts();
  tell_of_compilations();
  g_typed_command = lab::command_line(argc, argv);
  try {
    return dispatch(std::vector<std::string>(argv + 1, argv + std::max(argc, 1)));
  } catch (const Failure& failure) {
    tell_of(failure);
    return failure.exit_code;
  } catch (const std::bad_alloc&) {
    note("out of memory outside any measurement; use a smaller problem or end other programs");
  } catch (const std::exception& error) {
    note(fmt::format("internal error: {}; please report it with the command", error.what()));
  }
  return kExitFailure;
}

}  // namespace

const std::string& typed_command() {
  return g_typed_command;
}

int run_completion(const Arguments& arguments) {
  const std::vector<std::string> shells = command(kCompletion).positional_choices();
  if (arguments.positionals().empty()) {
    fail_usage(
        fmt::format("completion needs a shell; use flashlab completion {}", join_or(shells)));
  }
  const std::string& shell = arguments.positionals().front();
  if (arguments.positionals().size() > 1) {
    fail_usage(
        fmt::format("completion takes one shell, not also \"{}\"", arguments.positionals()[1]));
  }
  if (std::ranges::find(shells, shell) == shells.end()) {
    fail_usage(fmt::format("completion for \"{}\" is unknown; use {}", shell, join_or(shells)));
  }
  print(completion_script(shell));
  return kExitOk;
}

}  // namespace flashlab::cli

int main(int argc, char** argv) {
  return flashlab::cli::run(argc, argv);
}
