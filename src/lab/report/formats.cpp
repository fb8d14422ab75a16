#include "lab/report/formats.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <system_error>

#include "base/text.h"
#include "lab/report/cells.h"
#include "lab/report/group.h"
#include "lab/report/numbers.h"

namespace flashlab::lab::report {
namespace {

std::string number(std::optional<double> value) {
  if (!value) return {};
  return std::isnan(*value) ? "nan" : fmt::format("{}", *value);
}

std::string full_heading(const CellColumn& column) {
  return column.over.empty() ? column.name : column.over + " " + column.name;
}

std::string markdown_table(const CellTable& table) {
  std::string head = "| implementation |", rule = "|---|", body;
  for (const CellColumn& column : table.columns) {
    head += " " + base::escape_markdown(full_heading(column)) + " |";
    rule += "---:|";
  }
  for (const CellRow& row : table.rows) {
    body += "| " + base::escape_markdown(row.label) + " |";
    for (const Cell& cell : row.cells) {
      const std::string text = base::escape_markdown(cell.text);
      body += " " + (cell.best ? "**" + text + "**" : text) + " |";
    }
    body += '\n';
  }
  return head + '\n' + rule + '\n' + body;
}

std::string latex_table(const CellTable& table) {
  std::string out =
      "\\begin{table}[ht]\n  \\centering\\footnotesize\\setlength{\\tabcolsep}{3pt}\n  \\caption{" +
      base::escape_latex(table.title) + "}\n";
  out += "  \\begin{tabular}{l" + std::string(table.columns.size(), 'r') + "}\n    \\toprule\n";
  // Passes span their columns; the rule below them stops short of the neighbours.
  std::string spans = "    ", rules = "    ", names = "    implementation";
  for (std::size_t i = 0; i < table.columns.size();) {
    std::size_t end = i + 1;
    while (end < table.columns.size() && !table.columns[i].over.empty() &&
           table.columns[end].over == table.columns[i].over) {
      ++end;
    }
    if (table.columns[i].over.empty()) {
      spans += " &";
    } else {
      spans += fmt::format(" & \\multicolumn{{{}}}{{c}}{{{}}}", end - i,
                           base::escape_latex(table.columns[i].over));
      rules += fmt::format("\\cmidrule(lr){{{}-{}}}", i + 2, end + 1);
    }
    i = end;
  }
  for (const CellColumn& column : table.columns) names += " & " + base::escape_latex(column.name);
  out += spans + " \\\\\n" + rules + "\n" + names + " \\\\\n    \\midrule\n";
  for (const CellRow& row : table.rows) {
    out += "    " + base::escape_latex(row.label);
    for (const Cell& cell : row.cells) {
      const std::string text = cell.text == kAbsent ? "--" : base::escape_latex(cell.text);
      out += " & " + (cell.best ? "\\textbf{" + text + "}" : text);
    }
    out += " \\\\\n";
  }
  out += "    \\bottomrule\n  \\end{tabular}\n";
  for (const CellRow& row : table.rows) {
    for (const std::string& message : row.messages) {
      out += "  \\par\\footnotesize " + base::escape_latex(row.label + ", " + message) + "\n";
    }
  }
  return out + "\\end{table}\n";
}

Status append_error(const std::filesystem::path& path, int error) {
  std::string remedy = "choose another file";
  if (error == ENOSPC || error == EDQUOT) remedy = "free some space there, or choose another disk";
  if (error == EACCES || error == EPERM || error == EROFS)
    remedy = "choose a file you may write to";
  if (error == ENOENT || error == ENOTDIR) remedy = "make the folder first";
  if (error == EISDIR) remedy = "name a file in that folder";
  return {StatusCode::kIoError,
          {path.string(), std::generic_category().message(error), "a file to append to",
           std::move(remedy)}};
}

}  // namespace

std::string to_csv(const ResultFile& file) {
  // The labels and columns of every subject in the file, each once.
  std::vector<const LabelSpec*> labels;
  std::vector<Column> columns;
  std::vector<const Subject*> seen;
  for (const Measurement& r : file.results.empty() ? std::vector<Measurement>(1) : file.results) {
    const Subject& subject = subject_of(r);
    if (std::ranges::find(seen, &subject) != seen.end()) continue;
    seen.push_back(&subject);
    for (const LabelSpec& spec : subject.labels) {
      const auto same = [&](const LabelSpec* other) { return other->name == spec.name; };
      if (std::ranges::none_of(labels, same)) labels.push_back(&spec);
    }
    for (const ShownColumn& shown : subject.columns) {
      const auto same = [&](const Column& other) { return other.name == shown.column.name; };
      if (std::ranges::none_of(columns, same)) columns.push_back(shown.column);
    }
  }
  std::vector<std::string> head = {"implementation", "device", "pass"};
  for (const LabelSpec* spec : labels) head.emplace_back(spec->name);
  for (const char* name : {"status", "message", "samples"}) head.emplace_back(name);
  for (const Column& column : columns) head.emplace_back(column.name);
  for (const char* name : {"error_sample", "plan"}) head.emplace_back(name);
  std::string out = base::join(head, ",") + "\r\n";
  for (const Measurement& r : file.results) {
    std::vector<std::string> fields = {base::csv_field(r.implementation), base::csv_field(r.device),
                                       base::csv_field(r.pass)};
    for (const LabelSpec* spec : labels) {
      const LabelValue* value = r.labels.find(spec->name);
      fields.push_back(value != nullptr ? base::csv_field(lab::to_string(*value)) : std::string());
    }
    fields.insert(fields.end(), {lab::to_string(r.status), base::csv_field(r.message),
                                 fmt::format("{}", r.samples)});
    for (const Column& column : columns) fields.push_back(number(r[column]));
    fields.insert(fields.end(), {base::csv_field(r.error_sample), base::csv_field(r.plan)});
    out += base::join(fields, ",") + "\r\n";
  }
  if (file.interrupted()) {
    // A record of its own: programs that read the file see a status that is no result's.
    std::vector<std::string> fields(head.size());
    const std::size_t status = 3 + labels.size();
    if (status + 1 < fields.size()) {
      fields[status] = "interrupted";
      fields[status + 1] = base::csv_field(file.interruption());
    }
    out += base::join(fields, ",") + "\r\n";
  }
  return out;
}

std::string to_markdown(const ResultFile& file, std::string_view relative_to, int level) {
  const std::string hashes(static_cast<std::size_t>(std::clamp(level, 1, 5)), '#');
  std::string out = hashes + " " + heading_of(file) + ", measured\n";
  if (file.interrupted()) out += "\n**" + file.interruption() + "**\n";
  for (const Group& group : group_by_problem(file)) {
    const CellTable table = cells_of(group, relative_to);
    out += "\n" + hashes + "# " + base::escape_markdown(table.title) + "\n\n" +
           markdown_table(table) + "\n";
    for (const CellRow& row : table.rows) {
      for (const std::string& message : row.messages) {
        out +=
            "- " + base::escape_markdown(row.label) + ", " + base::escape_markdown(message) + "\n";
      }
    }
    for (const std::string& line : winners_of(group))
      out += "- " + base::escape_markdown(line) + "\n";
  }
  if (file.results.empty()) out += "\nNo results.\n";
  out += "\n" + hashes + "# Environment\n\n";
  if (!file.environment.command.empty()) {
    out += "- command: " + base::markdown_code(file.environment.command) + "\n";
  }
  for (const auto& [name, value] : environment_rows(file.environment)) {
    out += "- " + base::escape_markdown(name) + ": " + base::escape_markdown(value) + "\n";
  }
  for (const EnvironmentWarning& warning : file.environment.warnings) {
    out += "- **warning**: " + base::escape_markdown(warning.what);
    if (!warning.remedy.empty()) out += " (" + base::escape_markdown(warning.remedy) + ")";
    out += "\n";
  }
  return out;
}

std::string to_latex(const ResultFile& file, std::string_view relative_to) {
  std::string out = "% Needs \\usepackage{booktabs}\n";
  if (file.interrupted()) {
    out += "\\par\\footnotesize " + base::escape_latex(file.interruption()) + "\n";
  }
  for (const Group& group : group_by_problem(file)) {
    out += latex_table(cells_of(group, relative_to));
  }
  return out;
}

std::string log_section(const ResultFile& file, std::string_view relative_to) {
  const Environment& e = file.environment;
  std::string body = to_markdown(file, relative_to, 2);
  // The section's own heading carries the date, which a log is read by.
  body.erase(0, body.find('\n') + 1);
  return "## " + (e.date_utc.empty() ? "undated" : base::escape_markdown(e.date_utc)) + "\n" + body;
}

Status append_log(const std::filesystem::path& path, const ResultFile& file,
                  std::string_view relative_to) {
  std::string text = log_section(file, relative_to);
  const int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (descriptor < 0) return append_error(path, errno);
  const off_t before = lseek(descriptor, 0, SEEK_END);
  if (before > 0) {
    char last = '\n';
    if (pread(descriptor, &last, 1, before - 1) == 1 && last != '\n') text.insert(0, "\n");
    text.insert(0, "\n");
  }
  int error = 0;
  for (std::string_view rest = text; !rest.empty() && error == 0;) {
    const ssize_t written = write(descriptor, rest.data(), rest.size());
    if (written < 0 && errno != EINTR) error = errno;
    if (written > 0) rest.remove_prefix(static_cast<std::size_t>(written));
    if (written == 0) error = EIO;
  }
  if (error == 0 && fsync(descriptor) != 0 && errno != EINVAL && errno != EROFS) error = errno;
  // Half a section would be worse than none.
  if (error != 0 && before >= 0 && ftruncate(descriptor, before) != 0) {
    // The write error is the one to tell; the part written stays behind it.
  }
  if (close(descriptor) != 0 && error == 0) error = errno;
  return error == 0 ? Status() : append_error(path, error);
}

}  // namespace flashlab::lab::report
