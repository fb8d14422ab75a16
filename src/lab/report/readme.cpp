#include "lab/report/readme.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <vector>

#include "lab/report/group.h"
#include "lab/report/numbers.h"
#include "lab/report/text.h"
#include "lab/results_json.h"

namespace flashlab::lab::report {
namespace {

namespace fs = std::filesystem;

std::string figure(const Row& row, std::size_t pass, RateUnit unit) {
  const BenchResult* r = row.ok(pass);
  if (r == nullptr) {
    if (row.by_pass[pass] == nullptr) return kAbsent;
    const RunStatus status = row.by_pass[pass]->status;
    return status == RunStatus::kOutOfMemory ? "out of memory" : lab::to_string(status);
  }
  std::string text = format_rate(r->tflops, unit);
  if (finite(r->roof_share)) text += " (" + format_percent(r->roof_share) + ")";
  return text;
}

std::string table_of(const ResultFile& file) {
  const std::vector<Group> groups = group_by_problem(file);
  const RateUnit unit = rate_unit_for(file);
  std::vector<std::string> names;
  for (const Group& group : groups) {
    for (const Row& row : group.rows) {
      if (std::find(names.begin(), names.end(), row.label) == names.end()) {
        names.push_back(row.label);
      }
    }
  }
  const bool naive = std::find(names.begin(), names.end(), "naive") != names.end();
  std::string out = fmt::format("| {} (share of roof) | pass |", to_string(unit));
  std::string rule = "|---|---|";
  for (const std::string& name : names) {
    out += fmt::format(" {} |", escape_markdown(name));
    rule += "---:|";
  }
  if (naive && names.size() > 1) {
    out += " fastest vs naive |";
    rule += "---:|";
  }
  out += "\n" + rule + "\n";
  for (const Group& group : groups) {
    for (std::size_t pass = 0; pass < group.passes.size(); ++pass) {
      const Best best = fastest(group, pass);
      out += "| " + escape_markdown(problem_title(group.problem)) + " | " +
             escape_markdown(group.passes[pass]) + " |";
      for (const std::string& name : names) {
        const auto row = std::find_if(group.rows.begin(), group.rows.end(),
                                      [&](const Row& r) { return r.label == name; });
        if (row == group.rows.end()) {
          out += std::string(" ") + kAbsent + " |";
          continue;
        }
        const bool wins = names.size() > 1 &&
                          std::find(best.rows.begin(), best.rows.end(), &*row) != best.rows.end();
        const std::string text = figure(*row, pass, unit);
        out += wins ? fmt::format(" **{}** |", text) : fmt::format(" {} |", text);
      }
      if (naive && names.size() > 1) {
        const Row* base = group.find("naive");
        const auto ratio = base == nullptr || best.rows.empty()
                               ? std::nullopt
                               : speed_up(base->ok(pass), best.rows.front()->ok(pass));
        out += fmt::format(" {} |", format_ratio(ratio));
      }
      out += '\n';
    }
  }
  return out;
}

std::string provenance(const RecordedResults& recorded) {
  const Environment& e = recorded.file.environment;
  std::vector<std::string> parts;
  if (!e.gpu.empty()) parts.push_back(escape_markdown(e.gpu));
  if (!e.cpu_model.empty()) {
    std::string cpu = escape_markdown(e.cpu_model);
    if (e.threads_used > 0) {
      cpu += fmt::format(", {} {}", e.threads_used, e.threads_used == 1 ? "thread" : "threads");
    }
    if (!e.cpu_isa.empty()) cpu += ", " + escape_markdown(e.cpu_isa);
    parts.push_back(cpu);
  }
  if (!e.date_utc.empty()) parts.push_back(escape_markdown(e.date_utc.substr(0, 10)));
  if (!e.commit.empty()) parts.push_back("commit " + escape_markdown(e.commit));
  std::string out =
      "Measured on " + (parts.empty() ? "an unrecorded machine" : join(parts, "; ")) + ".";
  if (!e.command.empty()) out += " Command: " + markdown_code(e.command) + ".";
  if (!recorded.name.empty()) out += " All figures: " + markdown_code(recorded.name) + ".";
  return out + "\n";
}

Status marker_error(std::string got) {
  return Status::invalid(
      {"README", std::move(got),
       std::string(kReadmeBegin) + " and after it " + std::string(kReadmeEnd) + ", each once",
       "add the two lines where the tables belong"});
}

}  // namespace

std::string readme_tables(std::span<const RecordedResults> recorded) {
  std::string out;
  for (const RecordedResults& one : recorded) {
    if (one.file.results.empty()) continue;
    if (!out.empty()) out += '\n';
    out += table_of(one.file) + "\n" + provenance(one);
  }
  return out;
}

Result<std::string> readme_tables_of(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> paths;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (at->path().extension() == ".json") paths.push_back(at->path());
  }
  if (error) {
    return Status(StatusCode::kIoError, {folder.string(), error.message(),
                                         "a folder of recorded results", "name another folder"});
  }
  std::sort(paths.begin(), paths.end());
  std::vector<RecordedResults> recorded;
  for (const fs::path& path : paths) {
    Result<ResultFile> file = read_results(path);
    if (!file.ok()) return file.status();
    recorded.push_back({(folder / path.filename()).generic_string(), std::move(*file)});
  }
  return readme_tables(recorded);
}

Result<std::string> with_readme_tables(std::string_view readme, std::string_view tables) {
  const std::size_t begin = readme.find(kReadmeBegin), end = readme.find(kReadmeEnd);
  if (begin == std::string_view::npos || end == std::string_view::npos) {
    return marker_error("a marker is missing");
  }
  if (readme.find(kReadmeBegin, begin + 1) != std::string_view::npos ||
      readme.find(kReadmeEnd, end + 1) != std::string_view::npos) {
    return marker_error("a marker that stands there twice");
  }
  if (end < begin) return marker_error("the end before the beginning");
  std::string out(readme.substr(0, begin + kReadmeBegin.size()));
  out += "\n\n";
  out += tables;
  out += '\n';
  return out.append(readme.substr(end));
}

}  // namespace flashlab::lab::report
