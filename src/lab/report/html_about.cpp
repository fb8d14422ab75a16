#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "lab/report/cells.h"
#include "lab/report/html_parts.h"
#include "lab/report/ladder.h"
#include "lab/report/monitor_picture.h"
#include "lab/report/numbers.h"
#include "lab/subjects/attention/attention_subject.h"

namespace flashlab::lab::report {
namespace {

constexpr std::size_t kMostDetails = 400;

std::string definition(const std::string& term, const std::string& meaning) {
  return "<dt>" + base::escape_xml(term) + "</dt><dd>" + base::escape_xml(meaning) + "</dd>\n";
}

/// What each name in the page's tables is, by the rungs' ideas and the peers' libraries.
std::string names_of_implementations(const Page& page) {
  std::vector<std::string> seen;
  std::string out;
  for (const Measurement& r : page.file.results) {
    if (r.subject != attention_subject().name) continue;
    const std::string name = base::clean(r.implementation);
    if (std::ranges::find(seen, name) != seen.end()) continue;
    seen.push_back(name);
    const DeviceKind kind = r.device == "cpu" ? DeviceKind::kCpu : DeviceKind::kCuda;
    const std::string idea = idea_of(r.implementation, kind);
    if (!idea.empty()) out += definition(name, idea);
  }
  return out;
}

}  // namespace

Section details_section(const Page& page) {
  Section out{"details", "Every measurement", ""};
  std::vector<std::string> header = {"problem", "implementation", "device",
                                     "pass",    "status",         "samples"};
  std::vector<Column> columns;
  for (const Group& group : page.groups) {
    for (const ShownColumn& shown : group.subject->columns) {
      const auto same = [&](const Column& other) { return other.name == shown.column.name; };
      // A row's own table has these already.
      if (shown.place == Place::kRow || shown.column.unit == "share" ||
          std::ranges::any_of(columns, same)) {
        continue;
      }
      columns.push_back(shown.column);
      header.push_back(heading_of(shown.column, RateUnit::kTflops));
    }
  }
  header.push_back("plan");
  std::vector<std::vector<HtmlCell>> rows;
  for (const Measurement& r : page.file.results) {
    if (rows.size() == kMostDetails) break;
    const bool ok = r.status == RunStatus::kOk;
    std::vector<HtmlCell> row = {{title_of(r), "long", ""},
                                 {base::clean(r.implementation), "", ""},
                                 {base::clean(r.device), "", ""},
                                 {base::clean(r.pass), "", ""},
                                 {ok ? "ok" : failure_words(r), ok ? "" : "long", ""},
                                 {fmt::format("{}", r.samples), "n", ""}};
    for (const Column& column : columns) {
      row.push_back({format_figure(column, r[column], RateUnit::kTflops), "n", ""});
    }
    row.push_back({r.plan.empty() ? kAbsent : base::clean(r.plan), "long", ""});
    rows.push_back(std::move(row));
  }
  if (rows.empty()) return out;
  out.body = "<details>\n<summary>Samples, spread, workspace and plan of " +
             fmt::format("{}{} measurements",
                         rows.size() < page.file.results.size() ? "the first " : "", rows.size()) +
             "</summary>\n" + html_table("Every measurement", header, rows) + "</details>\n";
  return out;
}

Section environment_section(const Page& page) {
  Section out{"environment", "Environment", ""};
  for (const EnvironmentWarning& warning : page.file.environment.warnings) {
    out.body += "<p class=\"warning\"><b>Warning</b> " + base::escape_xml(warning.what);
    if (!warning.remedy.empty()) out.body += "<br/>Remedy: " + base::escape_xml(warning.remedy);
    out.body += "</p>\n";
  }
  const auto rows = environment_rows(page.file.environment);
  if (rows.empty()) {
    out.body += "<p class=\"lead\">Nothing was recorded about the machine.</p>\n";
    return out;
  }
  out.body += "<dl>\n";
  for (const auto& [name, value] : rows) out.body += definition(name, value);
  out.body += "</dl>\n";
  const std::string monitor = monitor_picture(page.file.environment.monitor, SvgUse::kInline);
  if (!monitor.empty()) out.body += "<figure>\n" + monitor + "</figure>\n";
  return out;
}

Section reproduce_section(const Page& page) {
  Section out{"reproduce", "Reproduce it", ""};
  const Environment& e = page.file.environment;
  if (e.command.empty()) return out;
  out.body = "<pre><code>" + base::escape_xml(e.command) + "</code></pre>\n";
  if (!e.commit.empty()) {
    out.body += "<p class=\"lead\">At commit " + base::escape_xml(e.commit) +
                ". Figures of another machine or day differ; ratios within one run are what "
                "carries over.</p>\n";
  }
  return out;
}

Section reading_section(const Page& page) {
  Section out{"reading", "How to read this", "<dl>\n"};
  out.body +=
      definition("ms",
                 "Median time of one call. Minimum, maximum and standard deviation are under Every "
                 "measurement.");
  std::vector<const Subject*> seen;
  for (const Group& group : page.groups) {
    if (std::ranges::find(seen, group.subject) != seen.end()) continue;
    seen.push_back(group.subject);
    out.body +=
        definition(fmt::format("GFLOP/s, TFLOP/s of {}", group.subject->name),
                   fmt::format("Arithmetic the formula needs divided by the median time. {}",
                               group.subject->work));
    out.body += definition(fmt::format("letters of {}", group.subject->name),
                           std::string(group.subject->names));
  }
  out.body += names_of_implementations(page);
  out.body +=
      definition("roof",
                 "That rate as a share of the most the machine can do: on a CPU the highest rate "
                 "of nothing but multiply-adds, measured beside it; on a GPU the units of the type "
                 "at the clock measured around the samples, fp32 as a third of fp16, or reads. "
                 "Older records of GPUs, and unknown ones, have a loop of mma.sync or FMA, which "
                 "wgmma and split fp32 pass. A clock that changed can show a little above 100%.");
  out.body +=
      definition("peak memory",
                 "Inputs, outputs and the most the call held at any time, the larger of its "
                 "passes.");
  out.body +=
      definition("error vs fp64",
                 "Largest absolute difference from fp64 arithmetic over all outputs. Where a "
                 "problem is large, a seeded sample of rows is compared, and Accuracy says "
                 "which.");
  if (!page.options.relative_to.empty()) {
    const std::string base = base::clean(page.options.relative_to);
    out.body += definition("vs " + base, "Time of " + base +
                                             " divided by the time of the row: 2.00x is twice as "
                                             "fast. For memory: the row's peak divided by " +
                                             base + "'s: 0.50x is half.");
  }
  out.body +=
      definition("a dash",
                 "Not measured, never zero. Out of memory and unsupported are results, with their "
                 "reason below the name.");
  out.body +=
      definition("differences",
                 "Rows of one table were measured in one run on one machine and may be "
                 "compared. Times of different days or machines may not; shares of the roof "
                 "and ratios may, with care.");
  out.body += "</dl>\n";
  return out;
}

}  // namespace flashlab::lab::report
