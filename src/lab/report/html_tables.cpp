#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "lab/report/cells.h"
#include "lab/report/html_parts.h"
#include "lab/report/numbers.h"

namespace flashlab::lab::report {
namespace {

std::string scroll_open(const std::string& name) {
  // Focusable, so that a keyboard can scroll it; a region needs a name.
  return "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"" +
         base::escape_xml(name) + "\">\n<table>\n";
}

std::string meter(std::optional<double> share) {
  if (!share) return {};
  return fmt::format(
      "<span class=\"meter\" aria-hidden=\"true\"><i style=\"width:{:.0f}%\"></i></span>",
      *share * 100);
}

/// Two header rows: passes over their columns.
std::string comparison_head(const CellTable& table) {
  std::string over, names;
  for (std::size_t i = 0; i < table.columns.size();) {
    std::size_t end = i + 1;
    const std::string& pass = table.columns[i].over;
    while (end < table.columns.size() && table.columns[end].over == pass) ++end;
    over += fmt::format("<th class=\"over\" colspan=\"{}\" scope=\"colgroup\">{}</th>", end - i,
                        pass.empty() ? "overall" : base::escape_xml(pass));
    for (std::size_t c = i; c < end; ++c) {
      names += fmt::format("<th class=\"n{}\" scope=\"col\">{}</th>", c == i ? " first" : "",
                           base::escape_xml(table.columns[c].name));
    }
    i = end;
  }
  return "<thead>\n<tr><th rowspan=\"2\" scope=\"col\">implementation</th>" + over + "</tr>\n<tr>" +
         names + "</tr>\n</thead>\n";
}

std::string why_cell(const CellRow& row, std::size_t columns) {
  std::string out = fmt::format("<td class=\"first\" colspan=\"{}\">", columns);
  for (const std::string& message : row.messages) {
    out += "<span class=\"why\">" + base::escape_xml(message) + "</span>";
  }
  return out + "</td>";
}

std::string comparison_table_html(const Group& group, std::string_view relative_to) {
  const CellTable table = cells_of(group, relative_to);
  std::string out = scroll_open(table.title) + "<caption class=\"title\">" +
                    base::escape_xml(table.title) + "</caption>\n" + comparison_head(table) +
                    "<tbody>\n";
  for (const CellRow& row : table.rows) {
    out += "<tr><th scope=\"row\">" + base::escape_xml(row.label) + "</th>";
    // A row without a single figure has its reason in their place.
    const bool empty =
        std::ranges::all_of(row.cells, [](const Cell& cell) { return cell.text == kAbsent; });
    for (std::size_t i = 0; i < row.cells.size() && !empty; ++i) {
      const bool first = i == 0 || table.columns[i].over != table.columns[i - 1].over;
      const Cell& cell = row.cells[i];
      out += fmt::format("<td class=\"n{}{}\">{}{}</td>", first ? " first" : "",
                         cell.best ? " best" : "", base::escape_xml(cell.text), meter(cell.share));
    }
    if (empty) out += why_cell(row, table.columns.size());
    out += "</tr>\n";
    if (!empty && !row.messages.empty()) {
      out += "<tr class=\"note\">" + why_cell(row, table.columns.size() + 1) + "</tr>\n";
    }
  }
  out += "</tbody>\n</table>\n</div>\n<ul class=\"winners\">\n";
  for (const std::string& line : winners_of(group)) {
    const std::size_t colon = std::min(line.find(": "), line.size());
    out += "<li><b>" + base::escape_xml(line.substr(0, colon)) + "</b>" +
           base::escape_xml(line.substr(colon)) + "</li>\n";
  }
  return out + "</ul>\n";
}

/// All problems against all implementations: milliseconds of one pass.
std::string overview(const Page& page, const std::string& pass) {
  std::vector<std::string> header = {"problem"};
  for (const Group& group : page.groups) {
    for (const Row& row : group.rows) {
      if (std::find(header.begin() + 1, header.end(), row.label) == header.end()) {
        header.push_back(row.label);
      }
    }
  }
  std::vector<std::vector<HtmlCell>> rows;
  for (const Group& group : page.groups) {
    const auto at = std::ranges::find(group.passes, pass);
    if (at == group.passes.end()) continue;
    const auto index = static_cast<std::size_t>(at - group.passes.begin());
    const Best best = best_of(group, kMedianMs, index);
    std::vector<HtmlCell> cells = {{group.title(), "", ""}};
    for (std::size_t i = 1; i < header.size(); ++i) {
      HtmlCell cell{kAbsent, "n", ""};
      for (const Row& row : group.rows) {
        if (row.label != header[i] || row.by_pass[index] == nullptr) continue;
        const Measurement* r = row.ok(index);
        const RunStatus status = row.by_pass[index]->status;
        cell.text = r != nullptr                        ? format_ms((*r)[kMedianMs])
                    : status == RunStatus::kOutOfMemory ? "out of memory"
                                                        : lab::to_string(status);
        if (best.has(row) && group.rows.size() > 1) cell.css = "n best";
      }
      cells.push_back(std::move(cell));
    }
    rows.push_back(std::move(cells));
  }
  return html_table("Milliseconds, " + base::clean(pass), header, rows, true);
}

}  // namespace

std::string html_table(const std::string& caption, const std::vector<std::string>& header,
                       const std::vector<std::vector<HtmlCell>>& rows, bool show_caption) {
  std::string out = scroll_open(caption);
  if (show_caption) out += "<caption>" + base::escape_xml(caption) + "</caption>\n";
  out += "<thead>\n<tr>";
  for (std::size_t i = 0; i < header.size(); ++i) {
    // A column of figures has its head over them.
    const bool figures =
        !rows.empty() && i < rows.front().size() && rows.front()[i].css.substr(0, 1) == "n";
    out += fmt::format("<th{} scope=\"col\">{}</th>", figures ? " class=\"n\"" : "",
                       base::escape_xml(header[i]));
  }
  out += "</tr>\n</thead>\n<tbody>\n";
  for (const std::vector<HtmlCell>& row : rows) {
    out += "<tr>";
    for (std::size_t i = 0; i < row.size(); ++i) {
      const HtmlCell& cell = row[i];
      const std::string css = cell.css.empty() ? "" : " class=\"" + cell.css + "\"";
      out += i == 0 ? "<th scope=\"row\"" + css + ">" : "<td" + css + ">";
      out += base::escape_xml(cell.text) + cell.extra + (i == 0 ? "</th>" : "</td>");
    }
    out += "</tr>\n";
  }
  return out + "</tbody>\n</table>\n</div>\n";
}

Section comparison_section(const Page& page) {
  Section out{"comparison", "Comparison", ""};
  if (page.groups.empty()) {
    out.body = "<p class=\"lead\">There are no results.</p>\n";
    return out;
  }
  const std::string& base = page.options.relative_to;
  out.body =
      "<p class=\"lead\">Medians of one run on one machine; the best of a column is marked. " +
      (base.empty() ? std::string()
                    : "\"vs " + base::escape_xml(base) +
                          "\" is how many times faster an implementation is; for memory, the "
                          "multiple of what it needs. ") +
      "A dash means: not measured.</p>\n";
  const bool few = page.groups.size() <= kFewProblems;
  if (!few) {
    std::vector<std::string> passes;
    for (const Group& group : page.groups) {
      for (const std::string& pass : group.passes) {
        if (std::ranges::find(passes, pass) == passes.end()) passes.push_back(pass);
      }
    }
    for (const std::string& pass : passes) out.body += overview(page, pass);
    out.body += fmt::format("<h3>Every problem</h3>\n");
  }
  for (const Group& group : page.groups) {
    if (!few) {
      out.body += "<details>\n<summary>" + base::escape_xml(group.title()) + "</summary>\n";
    }
    out.body += comparison_table_html(group, base);
    if (!few) out.body += "</details>\n";
  }
  return out;
}

}  // namespace flashlab::lab::report
