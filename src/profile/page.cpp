// report.html of a profile.

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/text.h"
#include "lab/report/html_parts.h"
#include "lab/report/monitor_picture.h"
#include "lab/report/numbers.h"
#include "lab/report/svg.h"
#include "profile/folder.h"
#include "profile/ledger.h"
#include "profile/questions.h"
#include "profile/roofline.h"
#include "profile/trace.h"

namespace flashlab::profile {
namespace {

using base::escape_xml;
using lab::report::format_bytes;
using lab::report::format_significant;
using lab::report::HeadlineTile;
using lab::report::html_table;
using lab::report::HtmlCell;
using lab::report::Section;

// A page with more rows than this is slow to read; ledger.csv has all of them.
constexpr std::size_t kMostRows = 40;

// Pictures of a profile are wide: they take the page's width and scroll on a narrow one.
constexpr const char* kStyles =
    "figure.wide{max-width:none;overflow-x:auto;margin:0 0 12px}"
    "figure.wide .fl-chart{min-width:760px}figure.half{max-width:860px;margin:0 0 12px}";

std::string lead(const std::string& text) {
  return "<p class=\"lead\">" + escape_xml(text) + "</p>\n";
}

std::string figure(const std::string& svg, const char* css = "wide") {
  return fmt::format("<figure class=\"{}\">\n{}</figure>\n", css, svg);
}

std::string ledger_html(const Recording& r, LedgerKey key, const std::string& caption) {
  std::size_t left_out = 0;
  const std::vector<LedgerRow> ledger = make_ledger(r, {.key = key, .top = kMostRows}, &left_out);
  std::vector<std::vector<HtmlCell>> rows;
  const auto cell = [](std::optional<double> value) {
    return HtmlCell{value ? format_significant(*value, 3) : lab::report::kAbsent, "n", ""};
  };
  const bool host =
      std::ranges::any_of(ledger, [](const LedgerRow& row) { return row.host_ms > 0; });
  std::vector<std::string> head = {to_string(key), "calls", "ms",   "share", "ms/call",
                                   "GFLOP/s",      "GB/s",  "roof", "bound"};
  if (host) head.insert(head.begin() + 5, {"host ms", "host ms/op"});
  for (const LedgerRow& row : ledger) {
    rows.push_back({{row.key, "", ""},
                    {fmt::format("{:g}", row.calls), "n", ""},
                    cell(row.total_ms),
                    {fmt::format("{:.1f}%", 100 * row.share), "n", ""},
                    cell(row.mean_ms),
                    cell(row.gflops_per_s),
                    cell(row.gb_per_s),
                    {lab::report::format_percent(row.roof_share), "n", ""},
                    {row.bound, "", ""}});
    if (host) {
      // Later kernels of an operation are launched with its first.
      const bool known = row.host_ms > 0;
      rows.back().insert(rows.back().begin() + 5,
                         {cell(known ? std::optional(row.host_ms) : std::nullopt),
                          cell(known ? std::optional(row.host_mean_ms) : std::nullopt)});
    }
  }
  std::string out = html_table(caption, head, rows, true);
  if (left_out > 0) {
    out += lead(fmt::format("{} further rows are in ledger.csv beside this page.", left_out));
  }
  return out;
}

Section limits_section(const Profile& p) {
  Section out{"limits", "What limits it", ""};
  if (p.recording.events.empty()) return out;
  for (const Advice& advice : p.advice) {
    out.body += fmt::format("<p class=\"callout\"><b>{}</b> {}. {}.</p>\n", advice.rule,
                            escape_xml(advice.what), escape_xml(advice.remedy));
  }
  std::vector<std::vector<HtmlCell>> rows;
  for (const Judgement& j : judgements(p)) {
    rows.push_back({{j.metric, "", ""}, {j.text, j.verdict == Verdict::kPoor ? "bad" : "", ""}});
  }
  if (!rows.empty()) out.body += html_table("Verdicts", {"figure", "verdict"}, rows, true);
  return out;
}

Section answers_section(const Profile& p) {
  Section out{"answers", "Answers", ""};
  std::vector<std::vector<HtmlCell>> rows;
  for (const Answer& a : answers(p.recording)) {
    rows.push_back({{a.question, "", ""}, {a.answer, "long", ""}});
  }
  if (!rows.empty()) out.body = html_table("Answers", {"question", "answer"}, rows);
  return out;
}

// How kernels were launched, where a GPU ran them.
std::string launches_html(const Recording& r) {
  std::vector<std::vector<HtmlCell>> rows;
  const auto figure = [](const std::string& text) { return HtmlCell{text, "n", ""}; };
  for (const LedgerRow& row : make_ledger(r, {.key = LedgerKey::kKernel, .top = kMostRows})) {
    if (!row.launch) continue;
    const LaunchFacts& f = *row.launch;
    rows.push_back({{row.key, "", ""},
                    figure(fmt::format("{}", f.blocks)),
                    figure(fmt::format("{}", f.threads)),
                    figure(fmt::format("{}", f.registers)),
                    figure(format_bytes(f.shared_bytes)),
                    figure(lab::report::format_percent(f.occupancy)),
                    figure(format_significant(f.waves, 3))});
  }
  if (rows.empty()) return {};
  return html_table(
      "Launches: of each kernel's longest call",
      {"kernel", "blocks", "threads", "registers", "shared memory", "occupancy", "waves"}, rows,
      true);
}

std::string counters_table(const Profile& p, std::span<const NcuMetric> metrics,
                           const std::string& caption, bool waits) {
  std::vector<std::string> head = {"kernel", "calls"};
  for (const NcuMetric& metric : metrics) {
    head.push_back(fmt::format("{}, {}", metric.heading, metric.unit));
  }
  if (waits) head.emplace_back("warps wait for");
  std::vector<std::vector<HtmlCell>> rows;
  bool any = false;
  for (const KernelCounters& counters : p.counters) {
    rows.push_back({{counters.kernel, "long", ""}, {fmt::format("{}", counters.calls), "n", ""}});
    for (const NcuMetric& metric : metrics) {
      const auto found = counters.metrics.find(metric.name);
      const bool there = found != counters.metrics.end();
      any = any || there;
      rows.back().push_back(
          {there ? format_significant(found->second, 3) : lab::report::kAbsent, "n", ""});
    }
    if (waits) rows.back().push_back({longest_waits(counters), "long", ""});
  }
  return any ? html_table(caption, head, rows, true) : "";
}

// What Nsight Compute counted.
std::string counters_html(const Profile& p) {
  std::string out = counters_table(p, ncu_metrics(), "Counters by Nsight Compute", true);
  const std::string stalls = counters_table(
      p, ncu_stalls(), "What warps wait for, in warps per issued instruction", false);
  if (stalls.empty()) return out;
  return out + "<details><summary>What warps wait for</summary>\n" + stalls + "</details>\n";
}

// Sums of Nsight Systems.
std::string timeline_html(const Profile& p) {
  std::vector<std::vector<HtmlCell>> rows;
  for (std::size_t i = 0; i < p.timeline.size() && i < kMostRows; ++i) {
    const NsysKernel& row = p.timeline[i];
    rows.push_back({{row.kernel, "", ""},
                    {fmt::format("{}", row.calls), "n", ""},
                    {format_significant(row.total_ms, 3), "n", ""},
                    {fmt::format("{:.1f}%", 100 * row.share), "n", ""}});
  }
  if (rows.empty()) return {};
  return html_table("Kernels by Nsight Systems", {"kernel", "calls", "ms", "share"}, rows, true);
}

Section ledger_section(const Profile& p) {
  Section out{"ledger", "Ledger", ""};
  if (p.recording.events.empty()) return out;
  out.body = lead(
      "Times of one step. The roof is the least time that arithmetic and memory traffic "
      "allow, over the time taken; operands that come from caches can be faster than "
      "the memory's roof.");
  out.body += ledger_html(p.recording, LedgerKey::kClass, "By class");
  out.body += ledger_html(p.recording, LedgerKey::kKernel, "By kernel");
  out.body += launches_html(p.recording) + counters_html(p) + timeline_html(p);
  out.body += ledger_html(p.recording, LedgerKey::kPhase, "By phase");
  out.body += "<details><summary>By layer</summary>\n" +
              ledger_html(p.recording, LedgerKey::kLayer, "By layer") +
              "</details>\n<details><summary>By operation</summary>\n" +
              ledger_html(p.recording, LedgerKey::kOperation, "By operation") + "</details>\n";
  return out;
}

Section pictures_section(const Profile& p) {
  Section out{"pictures", "Flame graph and roofline", ""};
  if (p.recording.events.empty()) return out;
  out.body = figure(flame_graph(p.recording, /*inline_in_page=*/true));
  const std::string roofline = roofline_picture(p.recording, /*inline_in_page=*/true);
  if (!roofline.empty()) out.body += figure(roofline, "half");
  return out;
}

Section memory_section(const Profile& p) {
  Section out{"memory", "Memory", ""};
  if (!p.memory) return out;
  out.body =
      figure(timeline_picture(*p.memory, {.detail_bytes = p.detail_bytes, .inline_in_page = true}));
  std::vector<std::vector<HtmlCell>> rows;
  for (const auto& [each, count] : largest(*p.memory, kMostRows / 2)) {
    rows.push_back({{each.name, "", ""},
                    {fmt::format("{}", count), "n", ""},
                    {each.shape, "", ""},
                    {train::to_string(each.role), "", ""},
                    {format_bytes(each.bytes), "n", ""},
                    {each.allocated_by, "long", ""}});
  }
  out.body += html_table("Largest allocations of the arena",
                         {"tensor", "times", "shape", "role", "bytes", "since"}, rows, true);
  if (p.block && p.block->saved_bytes > 0) {
    rows.clear();
    for (const BlockMemory::Part& part : p.block->saved) {
      rows.push_back({{part.name, "", ""},
                      {format_bytes(part.bytes), "n", ""},
                      {fmt::format("{:.1f}%", 100 * part.share), "n", ""}});
    }
    out.body += html_table(fmt::format("Kept by layer {} for backward: {}", p.block->layer,
                                       format_bytes(p.block->saved_bytes)),
                           {"tensor", "bytes", "share"}, rows, true);
  }
  return out;
}

Section environment_section(const Profile& p) {
  Section out{"environment", "Where and how", ""};
  const lab::Environment& e = p.environment;
  out.body = "<dl>\n";
  for (const auto& [name, value] : environment_facts(p)) {
    out.body += fmt::format("<dt>{}</dt><dd>{}</dd>\n", name, escape_xml(value));
  }
  out.body += "</dl>\n";
  const std::string monitor = lab::report::monitor_picture(e.monitor, lab::report::SvgUse::kInline);
  if (!monitor.empty()) out.body += figure(monitor, "half");
  for (const lab::EnvironmentWarning& warning : e.warnings) {
    out.body += fmt::format("<p class=\"warning\"><b>{}</b>; {}</p>\n", escape_xml(warning.what),
                            escape_xml(warning.remedy));
  }
  for (const Profile::Missing& m : p.missing) {
    out.body += fmt::format("<p class=\"callout\"><b>Not there: {}.</b> {}</p>\n",
                            escape_xml(m.what), escape_xml(m.reason));
  }
  return out;
}

std::vector<HeadlineTile> tiles(const Profile& p) {
  const Recording& r = p.recording;
  std::vector<HeadlineTile> out;
  if (r.steps() > 0) {
    out.push_back({format_significant(r.step_ms(), 3) + " ms",
                   p.subject == "attention" ? std::string("all calls, one after another")
                                            : fmt::format("a step, median of {}", r.steps())});
    if (r.device_step_ms) {
      out.push_back({format_significant(*r.device_step_ms, 3) + " ms", "the GPU's time of it"});
    }
    if (const auto account = r.account()) {
      out.push_back({fmt::format("{:.0f}%", 100 * account->filled),
                     r.device_step_ms ? "of that inside kernels" : "of it inside operations"});
    }
    const std::vector<LedgerRow> top = make_ledger(r, {.key = LedgerKey::kClass, .top = 1});
    if (!top.empty()) {
      out.push_back({fmt::format("{:.0f}%", 100 * top[0].share), "in " + top[0].key});
    }
  }
  if (p.memory) {
    out.push_back({format_bytes(p.memory->peak_bytes()), "predicted peak of memory"});
  }
  return out;
}

}  // namespace

std::string report_html(const Profile& p) {
  lab::report::Frame frame;
  frame.brand = "FlashLab profile";
  frame.title = p.recording.title;
  frame.meta = {p.recording.device, p.environment.date_utc};
  frame.tiles = tiles(p);
  frame.styles = kStyles;
  frame.footer =
      "Written by FlashLab. This page is complete in itself; ledger, trace, stacks and snapshot "
      "lie beside it.";
  if (p.recording.interrupted) {
    frame.warning = fmt::format("Interrupted: {} step{} recorded", p.recording.steps(),
                                p.recording.steps() == 1 ? "" : "s");
  }
  std::vector<Section> sections;
  for (const auto make : {limits_section, answers_section, ledger_section, pictures_section,
                          memory_section, environment_section}) {
    sections.push_back(make(p));
  }
  if (!p.results.empty()) {
    lab::ResultFile file;
    file.environment = p.environment;
    file.results = p.results;
    std::vector<Section> measured = lab::report::result_sections(file, {});
    sections.insert(sections.begin() + 2, std::make_move_iterator(measured.begin()),
                    std::make_move_iterator(measured.end()));
  }
  return lab::report::render_page(frame, sections);
}

}  // namespace flashlab::profile
