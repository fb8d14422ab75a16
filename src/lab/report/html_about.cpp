#include <fmt/format.h>

#include <algorithm>

#include "lab/report/cells.h"
#include "lab/report/html_parts.h"
#include "lab/report/numbers.h"
#include "lab/report/text.h"

namespace flashlab::lab::report {
namespace {

constexpr std::size_t kMostDetails = 400;

std::string definition(const std::string& term, const std::string& meaning) {
  return "<dt>" + escape_xml(term) + "</dt><dd>" + escape_xml(meaning) + "</dd>\n";
}

}  // namespace

Section details_section(const Page& page) {
  Section out{"details", "Every measurement", ""};
  std::vector<std::vector<HtmlCell>> rows;
  for (const BenchResult& r : page.file.results) {
    if (rows.size() == kMostDetails) break;
    const bool ok = r.status == RunStatus::kOk;
    rows.push_back({{problem_title(r.problem), "long", ""},
                    {clean(r.implementation), "", ""},
                    {clean(r.device), "", ""},
                    {clean(r.pass), "", ""},
                    {ok ? "ok" : failure_words(r), ok ? "" : "long", ""},
                    {fmt::format("{}", r.samples), "n", ""},
                    {format_ms(r.median_ms), "n", ""},
                    {format_ms(r.min_ms), "n", ""},
                    {format_ms(r.max_ms), "n", ""},
                    {format_ms(r.std_ms), "n", ""},
                    {r.gb_per_s ? format_significant(*r.gb_per_s, 3) : kAbsent, "n", ""},
                    {format_bytes(r.workspace_bytes), "n", ""},
                    {format_bytes(r.memory_before_backward_bytes), "n", ""},
                    {format_bytes(r.process_peak_bytes), "n", ""},
                    {r.plan.empty() ? kAbsent : clean(r.plan), "long", ""}});
  }
  if (rows.empty()) return out;
  out.body = "<details>\n<summary>Samples, spread, workspace and plan of " +
             fmt::format("{}{} measurements",
                         rows.size() < page.file.results.size() ? "the first " : "", rows.size()) +
             "</summary>\n" +
             html_table("Every measurement",
                        {"problem", "implementation", "device", "pass", "status", "samples",
                         "median ms", "min ms", "max ms", "std ms", "GB/s", "workspace",
                         "before backward", "process peak", "plan"},
                        rows) +
             "</details>\n";
  return out;
}

Section environment_section(const Page& page) {
  Section out{"environment", "Environment", ""};
  for (const EnvironmentWarning& warning : page.file.environment.warnings) {
    out.body += "<p class=\"warning\"><b>Warning</b> " + escape_xml(warning.what);
    if (!warning.remedy.empty()) out.body += "<br/>Remedy: " + escape_xml(warning.remedy);
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
  return out;
}

Section reproduce_section(const Page& page) {
  Section out{"reproduce", "Reproduce it", ""};
  const Environment& e = page.file.environment;
  if (e.command.empty()) return out;
  out.body = "<pre><code>" + escape_xml(e.command) + "</code></pre>\n";
  if (!e.commit.empty()) {
    out.body += "<p class=\"lead\">At commit " + escape_xml(e.commit) +
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
  out.body +=
      definition("GFLOP/s, TFLOP/s",
                 "Arithmetic the formula needs divided by the median time. Forward: 2 B H "
                 "pairs (D + Dv); backward: 2 B H pairs (3 D + 2 Dv); pairs are the (query, "
                 "key) pairs that the mask leaves visible.");
  out.body +=
      definition("roof",
                 "That rate as a share of the highest rate the machine reached with nothing but "
                 "multiply-adds, measured beside it. 100% cannot be passed by much; a clock that "
                 "changed in between can show a little more.");
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
    const std::string base = clean(page.options.relative_to);
    out.body += definition("vs " + base, "Time of " + base +
                                             " divided by the time of the row: 2.00x is twice as "
                                             "fast. For memory: the row's peak divided by " +
                                             base + "'s: 0.50x is half.");
  }
  out.body +=
      definition("S, d, B, H",
                 "Sequence length, head dimension, batch, heads. \"heads 16 over 4\": sixteen "
                 "query heads share four key heads. \"causal\": a query sees no later key.");
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
