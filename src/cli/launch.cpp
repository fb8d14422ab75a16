// `launch`: a command as several ranks.

#include "dist/launch/launcher.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "cli/command.h"
#include "cli/failure.h"
#include "cli/terminal.h"
#include "cli/values.h"

namespace flashlab::cli {
namespace {

// This program, wherever it was started from.
std::string own_path() {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) fail(fmt::format("/proc/self/exe cannot be read: {}", error.message()));
  return path.string();
}

std::vector<std::string> names_of_rank_commands() {
  std::vector<std::string> out;
  for (const CommandSpec& spec : commands()) {
    if (spec.knows_ranks) out.emplace_back(spec.name);
  }
  return out;
}

// What each rank runs: this program with a command that knows ranks, or any other program.
std::vector<std::string> command_of(std::vector<std::string> words) {
  if (words.empty()) {
    fail_usage(
        "launch needs a command: flashlab launch -n 2 bench collective, or a program behind "
        "--: flashlab launch -n 2 -- python train.py");
  }
  if (words[0] == "--") {
    words.erase(words.begin());
    if (words.empty()) fail_usage("launch -- needs a program: flashlab launch -n 2 -- PROGRAM");
    return words;
  }
  const CommandSpec* spec =
      words.size() > 1 ? find_command(fmt::format("{} {}", words[0], words[1])) : nullptr;
  if (spec == nullptr) spec = find_command(words[0]);
  if (spec == nullptr || !spec->knows_ranks) {
    const std::vector<std::string> known = names_of_rank_commands();
    fail_usage(
        fmt::format("{} does not run as several ranks; launch takes {}, or any program "
                    "behind --: flashlab launch -n 2 -- {}",
                    spec != nullptr ? std::string(spec->name) : words[0], join_or(known),
                    spec != nullptr ? "flashlab " + words[0] : words[0]));
  }
  words.insert(words.begin(), own_path());
  return words;
}

}  // namespace

std::vector<std::string> own_words_without(std::string_view flag) {
  std::vector<std::string> out;
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  bool skip = false;
  for (std::string word; std::getline(file, word, '\0');) {
    if (!skip && word != flag && !word.starts_with(std::string(flag) + "=")) out.push_back(word);
    skip = word == flag;
  }
  if (!out.empty()) out.front() = own_path();
  return out;
}

int launch_ranks(int ranks, std::vector<std::string> command, bool ours) {
  dist::LaunchOptions options;
  options.ranks = ranks;
  options.command = std::move(command);
  // Slower than a baseline, wrong, or stopped by all together: said by a command that ran to its
  // end.
  static constexpr int kVerdicts[] = {kExitRegression, kExitCheckFailed, kExitInterrupted};
  if (ours) {
    options.verdicts = kVerdicts;
    options.grace_s = 0;  // without the lost rank there is nothing to finish, only more to say
  }
  options.interrupted = &interrupted();
  options.line = note_of_rank;
  const Result<dist::LaunchEnd> end = dist::launch(options);
  if (!end.ok()) fail(end.status());
  if (!end->message.empty()) throw Failure{end->exit_code, end->message};
  return end->exit_code;
}

int run_launch(const Arguments& arguments) {
  if (!arguments.has("--ranks"))
    fail_usage("launch needs the number of ranks: flashlab launch -n 2 ...");
  const auto ranks = static_cast<int>(whole(arguments, "--ranks", 1, 1, kMostRanks));
  std::vector<std::string> command = command_of(arguments.positionals());
  return launch_ranks(ranks, std::move(command), arguments.positionals().front() != "--");
}

}  // namespace flashlab::cli
