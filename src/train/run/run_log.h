#pragma once

// What a run has done, for programs: log.jsonl (one object a line, each with its step), the numbers
// among it as log.csv, and where it is asked for TensorBoard's files.

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "flashlab/status.h"
#include "train/run/event_file.h"

namespace flashlab::train {

class RunLog {
 public:
  using Json = nlohmann::ordered_json;
  /// `silent`: of a rank beside rank 0, which writes nothing.
  RunLog(std::filesystem::path folder, bool silent);

  /// A resumed run writes the steps after `step` again: what stands there is dropped. Errors, of
  /// all calls: kIoError.
  Status keep_until(std::int64_t step);
  /// Event files from now on, too. `first_step`: the next one.
  Status add_tensorboard(std::int64_t first_step);
  Status write(const Json& line);
  /// Nothing where the line stands there already: of what a resumed run says again.
  Status write_once(const Json& line);

 private:
  Status write_row(const Json& line);
  std::filesystem::path lines_path_, rows_path_;
  bool silent_;
  std::ofstream lines_, rows_;
  std::optional<EventFile> events_;
};

}  // namespace flashlab::train
