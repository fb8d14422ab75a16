#pragma once

// Results as files, schema "flashlab.bench/1". What was not measured is null, never 0.

#include <filesystem>
#include <string>
#include <string_view>

#include "flashlab/status.h"
#include "lab/results/measurement.h"

namespace flashlab::lab {

inline constexpr const char* kResultSchema = "flashlab.bench/1";

/// The whole file as text, keys in the schema's order. `indent` < 0: one line.
std::string to_json(const ResultFile& file, int indent = 2);

/// Reads what to_json wrote, or another program wrote by the schema. Unknown keys are ignored;
/// everything the schema lists must be there, with its type. `source` names the text in errors.
/// Errors: kInvalidArgument naming the place ("results[3][kMedianMs]"), what stands there and what
/// should. Nothing is guessed: a truncated or malformed file gives no results.
Result<ResultFile> parse_results(std::string_view text, std::string_view source = "results");

/// Errors: kIoError (cannot be read), kInvalidArgument as parse_results.
Result<ResultFile> read_results(const std::filesystem::path& path);

/// train::write_file of to_json.
Status write_results(const std::filesystem::path& path, const ResultFile& file);

/// Results saved as they come: after every `add` the file on disk holds all of them, so that an
/// interruption, a crash or a full disk loses at most the last. Into a pipe or a device, which
/// cannot be rewritten, everything goes at `finish`.
class ResultWriter {
 public:
  /// Writes `file`, which has no results yet: a path that cannot be written fails here, before
  /// anything is measured.
  static Result<ResultWriter> create(std::filesystem::path path, ResultFile file);

  /// On an error the result is kept in memory: a later add or finish tries to write it again.
  Status add(Measurement result);

  /// Writes everything once more, with roofs and warnings that `environment()` got meanwhile.
  Status finish();

  const ResultFile& file() const noexcept { return file_; }
  Environment& environment() noexcept { return file_.environment; }

 private:
  ResultWriter(std::filesystem::path path, bool rewritable) noexcept
      : path_(std::move(path)), rewritable_(rewritable) {}

  std::filesystem::path path_;
  bool rewritable_ = true;
  ResultFile file_;
};

}  // namespace flashlab::lab
