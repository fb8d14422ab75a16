#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/text.h"
#include "lab/report/cells.h"
#include "lab/report/crossover.h"
#include "lab/report/html_parts.h"
#include "lab/report/model.h"
#include "lab/report/numbers.h"
#include "lab/subjects/attention/attention_subject.h"

namespace flashlab::lab::report {
namespace {

/// Longer lists are in results.json; a page must stay one that opens at once.
constexpr std::size_t kMostRows = 400;

std::string lead(const std::string& text) {
  return "<p class=\"lead\">" + base::escape_xml(text) + "</p>\n";
}

std::string figures(const Page& page, std::initializer_list<PlotKind> kinds) {
  std::vector<const Plot*> chosen;
  std::map<std::string, int> sizes;
  for (const Plot& plot : page.plots) {
    if (std::ranges::find(kinds, plot.kind) == kinds.end()) continue;
    chosen.push_back(&plot);
    ++sizes[plot.family];
  }
  std::string out;
  const std::string* before = nullptr;
  for (const Plot* plot : chosen) {
    // Pictures that stand alone in their family name it themselves and share a grid.
    const std::string none;
    const std::string& family = sizes[plot->family] > 1 ? plot->family : none;
    const bool starts = before == nullptr || (sizes[*before] > 1 ? *before : none) != family;
    if (starts && before != nullptr) out += "</div>\n";
    if (starts && !family.empty()) out += "<h3>" + base::escape_xml(family) + "</h3>\n";
    if (starts) out += "<div class=\"plots\">\n";
    out += "<figure>\n" + plot->inline_svg + "</figure>\n";
    before = &plot->family;
  }
  return chosen.empty() ? out : out + "</div>\n";
}

std::string seen_rows(std::size_t shown, std::size_t all) {
  if (shown == all) return {};
  return lead(fmt::format("The first {} of {}; all are in results.json.", shown, all));
}

}  // namespace

Section performance_section(const Page& page) {
  const std::string roof = figures(page, {PlotKind::kRoof});
  const std::string rates = figures(page, {PlotKind::kPerformance, PlotKind::kTime});
  // Over many problems the roof is the summary; beside one or two it is one more picture.
  const bool few = page.groups.size() <= kFewProblems;
  Section out{"performance", "Performance", few ? rates + roof : roof + rates};
  if (out.body.empty()) return out;
  out.body =
      lead(
          "FLOP/s count the work that the formula asks for (visible pairs only), so a slower "
          "algorithm cannot look busy. The roof is what this machine's arithmetic can do "
          "at its pace in the same run.") +
      out.body;
  return out;
}

Section memory_section(const Page& page) {
  Section out{"memory", "Memory", figures(page, {PlotKind::kMemory})};
  if (out.body.empty()) return out;
  out.body = lead(
                 "Inputs, outputs and the most that the call held beside them. Naive attention "
                 "writes its scores to memory, S x S per head; tiled attention grows with S.") +
             out.body;
  return out;
}

Section crossover_section(const Page& page) {
  Section out{"crossover", "Crossover", ""};
  const std::string& base = page.options.relative_to;
  if (base.empty()) return out;
  std::vector<std::vector<HtmlCell>> rows;
  const std::vector<Crossover> list = crossovers(page.file, base);
  for (const Crossover& c : list) {
    if (rows.size() == kMostRows) break;
    std::string problem = to_string(c.dtype);
    if (!c.variant.empty()) problem += ", " + c.variant;
    const auto ratio = [](double v) { return v > 0 ? format_ratio(v) : std::string(kAbsent); };
    rows.push_back({{c.implementation, "", ""},
                    {base::clean(c.pass), "", ""},
                    {problem, "", ""},
                    {fmt::format("{}", c.head_dim), "n", ""},
                    {fmt::format("{}", c.batch_heads), "n", ""},
                    {ratio(c.shortest_speed_up), "n", ""},
                    {ratio(c.longest_speed_up), "n", ""},
                    {to_string(c), "", ""}});
  }
  if (rows.empty()) return out;
  out.body = lead("From which length on an implementation is faster than " + base::clean(base) +
                  " at every length measured, by head dim and batch x heads.") +
             html_table("Crossover against " + base,
                        {"implementation", "pass", "problem", "d", "B x H", "speed at shortest",
                         "at longest both ran", "faster"},
                        rows) +
             seen_rows(rows.size(), list.size());
  return out;
}

Section model_section(const Page& page) {
  Section out{"model", "Modelled work", ""};
  std::vector<const Group*> shown;
  for (const Group& group : page.groups) shown.push_back(&group);
  if (shown.size() > kFewProblems) {
    const auto smaller = [](const Group* a, const Group* b) {
      return case_of(a->labels).flops(Pass::kForward) < case_of(b->labels).flops(Pass::kForward);
    };
    shown = {*std::ranges::max_element(shown, smaller)};
  }
  for (const Group* group : shown) {
    std::vector<std::vector<HtmlCell>> rows;
    for (const ModelRow& row : model_rows(*group, caches_of(page.file.environment))) {
      rows.push_back({{row.label, "", ""},
                      {base::clean(row.pass), "", ""},
                      {format_flops(row.cost.flops), "n", ""},
                      {format_bytes(row.cost.read_bytes), "n", ""},
                      {format_bytes(row.cost.written_bytes), "n", ""},
                      {format_significant(row.cost.intensity(), 3), "n", ""}});
    }
    if (rows.empty()) continue;
    out.body += html_table(group->title(),
                           {"implementation", "pass", "arithmetic", "read", "written", "FLOP/byte"},
                           rows, true);
  }
  if (out.body.empty()) return out;
  const std::string pictures = figures(page, {PlotKind::kRoofline});
  out.body += pictures;
  out.body = lead(std::string("Counted, not measured: matrix arithmetic, and the traffic that each "
                              "algorithm causes beyond the caches. Few FLOP per byte means that "
                              "memory, not arithmetic, sets the pace.") +
                  (page.groups.size() > shown.size() ? " Shown for the largest problem." : "") +
                  (pictures.empty() ? ""
                                    : " The picture puts the measured rates over these counts, "
                                      "below the measured roofs of arithmetic and of copies.")) +
             out.body;
  return out;
}

Section accuracy_section(const Page& page) {
  Section out{"accuracy", "Accuracy", ""};
  std::vector<std::vector<HtmlCell>> rows;
  for (const Accuracy& a : accuracies(page.groups)) {
    rows.push_back({{a.label, "", ""},
                    {a.dtype, "", ""},
                    {base::clean(a.pass), "", ""},
                    {fmt::format("{}", a.problems), "n", ""},
                    {format_error(a.error), std::isfinite(a.error) ? "n" : "n bad", ""},
                    {format_error(a.naive), "n", ""},
                    {format_ratio(a.ratio), "n", ""},
                    {a.sample.empty() ? kAbsent : base::clean(a.sample), "long", ""}});
  }
  if (rows.empty()) return out;
  out.body =
      lead(
          "Largest absolute difference from the same formula computed in fp64, over every "
          "output of the pass, the worst of all problems. Naive's error is that of the plain "
          "formula rounding to the same type: an exact algorithm stays within about twice "
          "of it.") +
      html_table("Worst errors against fp64",
                 {"implementation", "type", "pass", "problems", "error", "naive's error", "ratio",
                  "compared"},
                 rows);
  return out;
}

Section baseline_section(const Page& page) {
  Section out{"baseline", "Against the baseline", ""};
  const BaselineReport* report = page.options.baseline;
  if (report == nullptr) return out;
  out.body =
      fmt::format("<p class=\"callout{}\">{}{}</p>\n", report->regression() ? " regression" : "",
                  page.options.baseline_name.empty()
                      ? std::string()
                      : "<b>" + base::escape_xml(page.options.baseline_name) + "</b>: ",
                  base::escape_xml(report->summary()));
  for (const std::string& caution : report->cautions) {
    out.body += "<p class=\"warning\">" + base::escape_xml(caution) + "</p>\n";
  }
  std::vector<std::vector<HtmlCell>> rows;
  for (const CaseChange& c : report->changes) {
    if (rows.size() == kMostRows) break;
    const char* css = c.change == Change::kSlower   ? "bad"
                      : c.change == Change::kFaster ? "best"
                                                    : "";
    rows.push_back({{c.title, "long", ""},
                    {base::clean(c.implementation), "", ""},
                    {base::clean(c.pass), "", ""},
                    {lab::to_string(c.change), css, ""},
                    {format_ms(c.old_ms), "n", ""},
                    {format_ms(c.new_ms), "n", ""},
                    {format_ratio(c.speed_ratio), "n", ""},
                    {c.note.empty() ? kAbsent : base::clean(c.note), "long", ""}});
  }
  if (!rows.empty()) {
    out.body += html_table("Verdict per measurement",
                           {"problem", "implementation", "pass", "verdict", "then, ms", "now, ms",
                            "speed", "note"},
                           rows) +
                seen_rows(rows.size(), report->changes.size());
  }
  return out;
}

}  // namespace flashlab::lab::report
