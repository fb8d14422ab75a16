#include "train/run/run_log.h"

#include <cerrno>
#include <utility>
#include <vector>

#include "base/json.h"
#include "train/data/files.h"

namespace flashlab::train {
namespace {

namespace fs = std::filesystem;

struct Column {
  const char* name;
  const char* tag;  ///< in TensorBoard; null: not there
};
constexpr Column kColumns[] = {{"step", nullptr},
                               {"loss", "train/loss"},
                               {"gradient_norm", "train/gradient_norm"},
                               {"learning_rate", "train/learning_rate"},
                               {"ms", "train/milliseconds"},
                               {"loss_scale", "train/loss_scale"},
                               {"skipped", nullptr},
                               {"validation_loss", "validation/loss"}};

// Empty: a line without a number of its own.
std::string row_of(const RunLog::Json& line) {
  if (!line.contains("loss") && !line.contains("validation_loss")) return "";
  std::string out;
  for (const Column& column : kColumns) {
    if (column.name != kColumns[0].name) out += ',';
    if (line.contains(column.name)) out += base::json_text(line[column.name]);
  }
  return out + "\n";
}

std::string heading() {
  std::string out;
  for (const Column& column : kColumns) out += (out.empty() ? "" : ",") + std::string(column.name);
  return out + "\n";
}

Status append(std::ofstream& file, const fs::path& path, const std::string& text) {
  if (!file.is_open()) file.open(path, std::ios::app);
  errno = 0;
  file << text << std::flush;
  return file ? Status() : io_error(path, "written");
}

}  // namespace

RunLog::RunLog(fs::path folder, bool silent)
    : lines_path_(folder / "log.jsonl"), rows_path_(folder / "log.csv"), silent_(silent) {}

Status RunLog::keep_until(std::int64_t step) {
  std::error_code ignored;
  if (!fs::exists(lines_path_, ignored)) return {};
  Result<std::string> text = read_file(lines_path_);
  if (!text.ok()) return text.status();
  std::string kept, rows = heading();
  for (std::size_t at = 0; at < text->size();) {
    const std::size_t end = std::min(text->find('\n', at), text->size());
    const std::string line = text->substr(at, end - at);
    const auto json = base::read_json<Json>(line);
    at = end + 1;
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) continue;
    if (json["step"].get<std::int64_t>() > step) continue;
    kept += line + "\n";
    rows += row_of(json);
  }
  if (Status s = write_file(rows_path_, rows); !s.ok()) return s;
  return write_file(lines_path_, kept);
}

Status RunLog::add_tensorboard(std::int64_t first_step) {
  if (silent_) return {};
  Result<EventFile> events = EventFile::create(lines_path_.parent_path(), first_step);
  if (!events.ok()) return events.status();
  events_ = std::move(*events);
  return {};
}

Status RunLog::write(const Json& line) {
  if (silent_) return {};
  if (Status s = append(lines_, lines_path_, base::json_text(line) + "\n"); !s.ok()) return s;
  return write_row(line);
}

Status RunLog::write_once(const Json& line) {
  if (silent_) return {};
  const Result<std::string> text = read_file(lines_path_);
  const std::string whole = base::json_text(line) + "\n";
  if (text.ok() && ("\n" + *text).find("\n" + whole) != std::string::npos) return {};
  return write(line);
}

Status RunLog::write_row(const Json& line) {
  const std::string row = row_of(line);
  if (row.empty()) return {};
  std::error_code ignored;
  const bool first = !rows_.is_open() && !fs::exists(rows_path_, ignored);
  if (Status s = append(rows_, rows_path_, first ? heading() + row : row); !s.ok()) return s;
  if (!events_) return {};
  std::vector<EventFile::Scalar> scalars;
  for (const Column& column : kColumns) {
    if (column.tag != nullptr && line.contains(column.name) && line[column.name].is_number()) {
      scalars.push_back({column.tag, line[column.name].get<double>()});
    }
  }
  return events_->write(line["step"].get<std::int64_t>(), scalars);
}

}  // namespace flashlab::train
