#include "cli/outputs.h"

#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "base/json.h"
#include "cli/execution.h"
#include "cli/failure.h"
#include "cli/terminal.h"
#include "lab/lab.h"
#include "train/data/files.h"

namespace flashlab::cli {
namespace {

constexpr const char* kFileFlags[] = {"--json", "--csv", "--markdown", "--latex"};
constexpr const char* kReportParent = "results";
constexpr double kSampledEverySeconds = 0.5;

}  // namespace

void make_folder(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error || !std::filesystem::is_directory(path, error)) {
    fail_usage(fmt::format("--output {} cannot be made: {}; name a folder that you may write",
                           path.string(),
                           error ? error.message() : "there is a file of that name"));
  }
}

void write_json(const std::string& path, const nlohmann::ordered_json& json, int indent) {
  const std::string text = base::json_text(json, indent) + "\n";
  if (path == "-") return print(text);
  if (const Status s = train::write_file(path, text); !s.ok()) fail("--json " + s.message());
}

std::string dated_folder(std::string_view kind) {
  const std::time_t now = std::time(nullptr);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d-%H%M%S", std::localtime(&now));
  return fmt::format("results/{}-{}", kind, text);
}

Outputs::Outputs(const Arguments& arguments, bool report) : arguments_(arguments) {
  for (const char* flag : kFileFlags) {
    if (arguments.value(flag).value_or("") != "-") continue;
    if (!stdout_flag_.empty()) {
      fail_usage(fmt::format("{} - and {} - both ask for stdout; write one of them to a file",
                             stdout_flag_, flag));
    }
    stdout_flag_ = flag;
  }
  relative_to_ = arguments.value("--relative-to").value_or("");
  check_files();
  if (const std::optional<std::string> path = arguments.value("--baseline")) {
    Result<lab::ResultFile> baseline = lab::read_results(*path);
    if (!baseline.ok()) throw Failure{kExitUsage, "--baseline " + baseline.status().message()};
    baseline_ = std::move(*baseline);
  }
  if (const std::optional<std::string> path = arguments.value("--output")) {
    make_folder(*path);
    folder_ = *path;
  } else if (report) {
    // A current folder that cannot be written costs the report, not the measurement.
    Result<std::filesystem::path> folder =
        lab::report::make_output_folder(kReportParent, lab::utc_now());
    if (folder.ok()) {
      folder_ = folder->string();
    } else {
      report_failure("--output DIR is needed for a report:", folder.status());
    }
  }
}

// What would fail after the measurement: a folder in a file's place, a place that may not be
// written, two results for one file.
void Outputs::check_files() const {
  namespace fs = std::filesystem;
  std::map<fs::path, std::string> taken;
  for (const char* flag : {"--json", "--csv", "--markdown", "--latex", "--log"}) {
    const std::string text = arguments_.value(flag).value_or("");
    if (text.empty() || (text == "-" && std::string_view(flag) != "--log")) continue;
    std::error_code error;
    const fs::path path = fs::weakly_canonical(text, error);
    if (fs::is_directory(path, error)) {
      fail_usage(fmt::format("{} {} is a folder; name a file in it", flag, text));
    }
    const bool special = fs::exists(path, error) && !fs::is_regular_file(path, error);
    const fs::path parent = path.has_parent_path() ? path.parent_path() : fs::path(".");
    const fs::path& written = special ? path : parent;
    if (::access(written.c_str(), W_OK) != 0) {
      fail_usage(
          fmt::format("{} {} cannot be written: {}; name a file in a folder that you may "
                      "write",
                      flag, text, std::generic_category().message(errno)));
    }
    if (special) continue;
    const auto [first, fresh] = taken.emplace(path, flag);
    if (!fresh) {
      fail_usage(fmt::format("{} and {} both write {}; name two files", first->second, flag, text));
    }
  }
}

bool Outputs::undecided(const std::vector<lab::Measurement>& results) const {
  if (!baseline_) return false;
  lab::ResultFile now;
  now.environment = file_.environment;
  now.results = results;
  const lab::BaselineReport report = lab::compare_with_baseline(*baseline_, now);
  return std::ranges::any_of(report.changes, [](const auto& change) {
    return change.speed_ratio &&
           (change.change == lab::Change::kAmbiguous || change.change == lab::Change::kSlower);
  });
}

void Outputs::require_relative_to(const std::vector<std::string>& names) const {
  const auto& name = relative_to_;
  if (name.empty() || std::ranges::find(names, name) != names.end()) return;
  fail_usage(
      fmt::format("--relative-to {} is not among what will be measured: {}; add it to "
                  "--implementation, or choose one of these",
                  name, join_or(names)));
}

void Outputs::start_writer(const std::string& flag, const std::string& path) {
  Result<lab::ResultWriter> writer = lab::ResultWriter::create(path, file_);
  if (!writer.ok()) throw Failure{kExitUsage, flag + " " + writer.status().message()};
  saved_.push_back({flag, std::move(writer).value()});
}

void Outputs::begin(lab::Environment environment, std::size_t planned) {
  file_.environment = std::move(environment);
  file_.planned = planned;
  const bool gpu = !file_.environment.gpu.empty();
  const Device device = gpu ? device_of(arguments_, DefaultDevice::kGpuIfThere) : Device{};
  monitor_ = std::make_unique<lab::MonitorThread>(device, kSampledEverySeconds);
  const std::string json = arguments_.value("--json").value_or("");
  if (!json.empty() && json != "-") start_writer("--json", json);
  if (!folder_.empty()) start_writer("--output", folder_ + "/results.json");
  for (const char* flag : {"--csv", "--markdown", "--latex"}) {
    const std::string path = arguments_.value(flag).value_or("");
    // An empty file now says "no permission" before anything is measured, not after.
    if (path.empty() || path == "-" || std::filesystem::exists(path)) continue;
    if (Status status = train::write_file(path, ""); !status.ok()) {
      throw Failure{kExitUsage, std::string(flag) + " " + status.message()};
    }
  }
}

void Outputs::add(const lab::Measurement& result) {
  file_.results.push_back(result);
  for (Saved& saved : saved_) {
    // A disk that is full for a moment costs nothing: the next add writes everything again.
    if (Status status = saved.writer.add(result); !status.ok()) {
      report_failure(saved.flag, status);
    } else {
      failures_.erase(saved.flag);
    }
  }
}

void Outputs::report_failure(const std::string& flag, const Status& status) {
  const std::string message = status.message();
  const std::string text = message.starts_with(flag) ? message : flag + " " + message;
  if (std::exchange(failures_[flag], text) != text) note(text + "; what was measured goes on");
}

void Outputs::write(const char* flag, const std::string& text) {
  const std::string path = arguments_.value(flag).value_or("");
  if (path == "-") {
    print(text);
  } else if (Status status = train::write_file(path, text); !status.ok()) {
    report_failure(flag, status);
  }
}

void Outputs::write_report(const lab::BaselineReport* baseline) {
  lab::report::WriteOptions options;
  options.html.relative_to = relative_to_;
  options.html.baseline = baseline;
  options.html.baseline_name = arguments_.value("--baseline").value_or("");
  const lab::report::WrittenFiles written = lab::report::write_report(folder_, file_, options);
  if (!written.status.ok()) report_failure("--output", written.status);
  if (stdout_taken()) return;
  const std::string page = (std::filesystem::path(folder_) / "report.html").string();
  const bool there =
      std::ranges::any_of(written.files, [&](const auto& file) { return file == page; });
  if (there) print_line(fmt::format("\nreport   {}   (json, csv, plots beside it)", page));
  for (const std::string& text : written.notes) print_line("         " + text);
}

void Outputs::print_verdicts(const lab::BaselineReport& report) const {
  if (stdout_taken()) {
    note("baseline: " + report.summary());
    return;
  }
  print_line("");
  for (const lab::CaseChange& change : report.changes) {
    if (change.change == lab::Change::kSame) continue;
    print_line(fmt::format("{:<10} {:<10} {:<8} {}{}{}", to_string(change.change),
                           change.implementation, change.pass, change.title,
                           change.speed_ratio ? fmt::format("  {:.2f}x", *change.speed_ratio) : "",
                           change.note.empty() ? "" : "  (" + change.note + ")"));
  }
  for (const std::string& caution : report.cautions) print_line("caution    " + caution);
  print_line("baseline   " + report.summary());
}

int Outputs::finish() {
  if (monitor_) file_.environment.monitor = monitor_->stop();
  // Names without a result are told here, before they would silently give no ratios.
  const Result<std::string> base = lab::report::resolve_relative_to(file_, relative_to_);
  if (base.ok()) {
    relative_to_ = *base;
  } else {
    report_failure("--relative-to", base.status());
    relative_to_.clear();
  }
  std::optional<lab::BaselineReport> verdicts;
  if (baseline_) verdicts = lab::compare_with_baseline(*baseline_, file_);

  for (Saved& saved : saved_) {
    saved.writer.environment() = file_.environment;
    if (Status status = saved.writer.finish(); !status.ok()) {
      report_failure(saved.flag, status);
    } else {
      failures_.erase(saved.flag);
    }
  }

  if (stdout_flag_ == "--json") print(lab::to_json(file_));
  if (arguments_.has("--csv")) write("--csv", lab::report::to_csv(file_));
  if (arguments_.has("--markdown")) {
    write("--markdown", lab::report::to_markdown(file_, relative_to_));
  }
  if (arguments_.has("--latex")) write("--latex", lab::report::to_latex(file_, relative_to_));
  if (const std::optional<std::string> path = arguments_.value("--log")) {
    if (Status status = lab::report::append_log(*path, file_, relative_to_); !status.ok()) {
      report_failure("--log", status);
    }
  }
  if (verdicts) print_verdicts(*verdicts);
  if (!folder_.empty()) write_report(verdicts ? &*verdicts : nullptr);
  if (!failures_.empty()) return kExitFailure;
  return verdicts ? verdicts->exit_code() : kExitOk;
}

}  // namespace flashlab::cli
