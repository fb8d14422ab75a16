#pragma once

// The one table of commands and flags: parsing, help, completion and docs/command-line.md come from
// it.

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace flashlab::cli {

/// One bit each, so that a flag can say where it belongs.
enum CommandBit : unsigned {
  kInfo = 1u << 0,
  kCheck = 1u << 1,
  kBench = 1u << 2,
  kCheckParallel = 1u << 3,
  kCompare = 1u << 4,
  kExplain = 1u << 5,
  kCompletion = 1u << 6,
  kPrecompile = 1u << 7,
  kCache = 1u << 8,
  kTrain = 1u << 9,
  kGenerate = 1u << 10,
  kExplainStep = 1u << 11,
  kExplainPrecision = 1u << 12,
  kAccumulate = 1u << 13,
  kProfileStep = 1u << 15,
  kProfileAttention = 1u << 16,
  kBenchStep = 1u << 14,
  kBenchPrecision = 1u << 18,
  kCheckStep = 1u << 19,
  kMonitor = 1u << 20,
  kLaunch = 1u << 21,
  kExplainParallel = 1u << 22,
  kBenchParallel = 1u << 23,
  kEvaluate = 1u << 17,
  kExport = 1u << 24,
  kTokenize = 1u << 25,
  kSweepTrain = 1u << 26,
  kFirstSubject = 1u << 27,  ///< and a bit each for the other subjects that have a `bench NAME`
};
constexpr unsigned kSubjects = ~(kFirstSubject - 1u);
/// Commands that train a model on a text.
constexpr unsigned kTrains = kTrain | kSweepTrain;
constexpr unsigned kRuns = kTrains | kBenchPrecision;

enum class FlagKind {
  kSwitch,         ///< takes no value
  kValue,          ///< takes one
  kList,           ///< takes values separated by commas
  kOptionalValue,  ///< --flag or --flag=VALUE, never the next word unless it is one of the choices
  kFile,           ///< a path, or "-" where the help says so
  kFolder,
  kRepeated,  ///< takes one, as often as it is given
};

struct FlagSpec {
  std::string_view name;   ///< "--seqlen"
  std::string_view alias;  ///< another spelling; empty: none
  std::string_view value;  ///< what stands for the value in help: "N[,N]"
  FlagKind kind = FlagKind::kValue;
  unsigned commands = 0;                            ///< CommandBits
  std::string_view group;                           ///< heading in help
  std::string_view help;                            ///< without a full stop at the end
  std::vector<std::string> (*choices)() = nullptr;  ///< the only values accepted
};

struct Example {
  std::string_view command;
  std::string_view what;
};

class Arguments;

struct CommandSpec {
  CommandBit bit;
  std::string_view name;         ///< "bench", "bench weighted-sum"
  int (*run)(const Arguments&);  ///< gives the exit code, or throws Failure
  std::string_view summary;      ///< one line
  std::string_view about;        ///< a paragraph
  std::vector<Example> examples;
  std::string_view positional = {};  ///< "SHELL"; empty: none
  std::vector<std::string> (*positional_choices)() = nullptr;
  bool takes_command = false;  ///< what stands behind its flags is another command's
  bool knows_ranks = false;    ///< several ranks may run it together
};

/// Commands in the order of help.
std::span<const CommandSpec> commands();
const CommandSpec* find_command(std::string_view name);
const CommandSpec& command(CommandBit bit);

/// All flags; a command's flags in the order of help.
std::span<const FlagSpec> flags();
std::vector<const FlagSpec*> flags_of(CommandBit bit);
/// By name or alias, whatever command it belongs to.
const FlagSpec* find_flag(std::string_view name);

/// Why what had this name is not there any more; empty for every other word.
std::string removed(std::string_view name);

/// Names of commands of later versions: known, and refused with a clear sentence.
std::span<const std::string_view> future_commands();

/// What was typed, checked against the table: known flags, each at most once, choices among those
/// offered. Numbers are still text: values.h reads them.
class Arguments {
 public:
  CommandBit command_bit() const { return command_; }
  bool has(std::string_view flag) const { return value(flag).has_value(); }
  /// The text after the flag; "" for a switch or a bare kOptionalValue; empty: not given.
  std::optional<std::string> value(std::string_view flag) const;
  /// Of a kRepeated, in the order in which they were given.
  std::vector<std::string> values(std::string_view flag) const;
  /// Parts between commas; none when not given.
  std::vector<std::string> list(std::string_view flag) const;
  const std::vector<std::string>& positionals() const { return positionals_; }
  /// As it was typed, for messages: the alias if that was used.
  std::string spelling(std::string_view flag) const;

  void set_command(CommandBit bit) { command_ = bit; }
  void add(const FlagSpec& flag, std::string spelling, std::string value);
  void add_positional(std::string value) { positionals_.push_back(std::move(value)); }

 private:
  struct Given {
    const FlagSpec* flag;
    std::string spelling;
    std::string value;
  };
  CommandBit command_ = kInfo;
  std::vector<Given> given_;
  std::vector<std::string> positionals_;
};

/// A value against the flag's choices, where it has any. Throws Failure.
void check_choices(const FlagSpec& flag, const std::string& spelling, const std::string& value);

/// argv[1] .. argv[argc - 1] after the command's words have been taken. Throws Failure.
Arguments parse_arguments(CommandBit bit, const std::vector<std::string>& words);

/// The candidate closest to a misspelled word, or empty when none is close.
std::string closest(std::string_view word, std::span<const std::string> candidates);

/// "1, 2, 4 or 8".
std::string join_or(std::span<const std::string> words);

}  // namespace flashlab::cli
