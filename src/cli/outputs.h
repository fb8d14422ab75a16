#pragma once

// Where results go: files by the flags, a report folder, a baseline's verdicts.

#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/flags.h"
#include "lab/lab.h"

namespace flashlab::cli {

/// A folder that --output names, with its parents. Throws Failure when it cannot be made.
void make_folder(const std::filesystem::path& path);

/// The text of --json, at `path` or, for "-", on stdout. Throws Failure when it cannot be written.
void write_json(const std::string& path, const nlohmann::ordered_json& json, int indent = 1);

/// "results/train-2026-11-23-101500": a new folder's name by the clock.
std::string dated_folder(std::string_view kind);

/// Everything that can be told before measuring is checked when it is made: a target that cannot be
/// written, two results for stdout, a baseline that cannot be read.
class Outputs {
 public:
  /// `report`: whether a report is written without --output, into results/<date>.
  Outputs(const Arguments& arguments, bool report);

  /// Whether a result file goes to stdout, so that nothing else may.
  bool stdout_taken() const { return !stdout_flag_.empty(); }

  /// Begins the JSON files: from now on they hold what was measured, whatever happens. Throws
  /// Failure when one cannot be written.
  /// `planned`: how many results there will be, so that a run cut short can be told from a whole
  /// one.
  void begin(lab::Environment environment, std::size_t planned);
  void add(const lab::Measurement& result);

  /// Whether the baseline has a time for one of them that does not decide: another window may.
  bool undecided(const std::vector<lab::Measurement>& results) const;
  /// Refuses a --relative-to that is not among what will be measured. Throws Failure.
  void require_relative_to(const std::vector<std::string>& names) const;

  const lab::ResultFile& file() const { return file_; }
  /// Warnings and roofs that are known only at the end.
  lab::Environment& environment() { return file_.environment; }
  const std::string& relative_to() const { return relative_to_; }

  /// Writes everything that the flags ask for; one target's failure does not stop the others.
  /// Returns the exit code: 0, 1 (a target could not be written), 3 (slower than the baseline).
  int finish();

 private:
  struct Saved {
    std::string flag;  ///< stands in messages
    lab::ResultWriter writer;
  };
  void check_files() const;
  void start_writer(const std::string& flag, const std::string& path);
  void report_failure(const std::string& flag, const Status& status);
  void write(const char* flag, const std::string& text);
  void write_report(const lab::BaselineReport* baseline);
  void print_verdicts(const lab::BaselineReport& report) const;

  const Arguments& arguments_;
  std::string folder_;  ///< of the report; empty: none
  std::string stdout_flag_;
  std::string relative_to_;
  std::optional<lab::ResultFile> baseline_;
  std::vector<Saved> saved_;
  lab::ResultFile file_;
  std::unique_ptr<lab::MonitorThread> monitor_;  ///< of the device, from begin() to finish()
  std::map<std::string, std::string> failures_;  ///< by flag: what could not be written
};

}  // namespace flashlab::cli
