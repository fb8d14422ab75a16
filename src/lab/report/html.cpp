#include "lab/report/html.h"

#include <fmt/format.h>

#include <algorithm>

#include "lab/report/headline.h"
#include "lab/report/html_parts.h"
#include "lab/report/text.h"

namespace flashlab::lab::report {
namespace {

std::string page_head(const std::string& title) {
  // The style sheets hold no '<' and no '&', so they are the same text in HTML and in XML.
  return "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
         "<title>" +
         escape_xml(title) + " - FlashLab</title>\n<style>" + page_styles() + chart_styles() +
         "</style>\n</head>\n";
}

std::string top(const Headline& head, const Environment& e) {
  std::string out =
      "<header class=\"top\">\n<div class=\"wrap\">\n<p class=\"brand\">FlashLab report</p>\n";
  out += "<h1>" + escape_xml(head.title) + "</h1>\n";
  std::vector<std::string> meta;
  if (!e.date_utc.empty()) meta.push_back(clean(e.date_utc));
  if (!e.flashlab_version.empty()) meta.push_back("FlashLab " + clean(e.flashlab_version));
  if (!e.commit.empty()) meta.push_back("commit " + clean(e.commit));
  if (!e.cpu_isa.empty()) meta.push_back(clean(e.cpu_isa));
  if (!meta.empty()) out += "<p class=\"meta\">" + escape_xml(join(meta, " · ")) + "</p>\n";
  if (!head.tiles.empty()) {
    out += "<ul class=\"tiles\">\n";
    for (const HeadlineTile& tile : head.tiles) {
      out += fmt::format("<li><b>{}</b><span>{}</span></li>\n", escape_xml(tile.figure),
                         escape_xml(tile.caption));
    }
    out += "</ul>\n";
  }
  out += "<ul class=\"verdict\">\n";
  for (const std::string& sentence : head.sentences) {
    out += "<li>" + escape_xml(sentence) + "</li>\n";
  }
  return out + "</ul>\n</div>\n</header>\n";
}

}  // namespace

std::string to_html(const ResultFile& file, const HtmlOptions& options) {
  const Page page{file, options, group_by_problem(file), make_plots(file)};
  using Make = Section (*)(const Page&);
  std::vector<Make> makers = {comparison_section, baseline_section,  performance_section,
                              memory_section,     crossover_section, accuracy_section,
                              model_section,      details_section,   environment_section,
                              reproduce_section,  reading_section};
  // Of a sweep pictures say more than a hundred rows: its tables come after them.
  if (page.groups.size() > kFewProblems)
    std::rotate(makers.begin(), makers.begin() + 1, makers.begin() + 5);
  std::vector<Section> sections;
  for (const Make make : makers) {
    Section section = make(page);
    if (!section.body.empty()) sections.push_back(std::move(section));
  }

  const Headline head = headline(file, options.relative_to);
  std::string out = page_head(head.title);
  out +=
      "<body>\n<a class=\"skip\" href=\"#" + sections.front().id + "\">Skip to the results</a>\n";
  out += top(head, file.environment);
  out += "<nav class=\"contents\" aria-label=\"Contents\">\n<div class=\"wrap\">\n<ul>\n";
  for (const Section& s : sections) {
    out += fmt::format("<li><a href=\"#{}\">{}</a></li>\n", s.id, escape_xml(s.title));
  }
  out += "</ul>\n</div>\n</nav>\n<main class=\"wrap\">\n";
  for (const Section& s : sections) {
    out += fmt::format(
        "<section id=\"{0}\" aria-labelledby=\"{0}-h\">\n<h2 "
        "id=\"{0}-h\">{1}</h2>\n{2}</section>\n",
        s.id, escape_xml(s.title), s.body);
  }
  out += "</main>\n<footer class=\"wrap\">\nWritten by FlashLab" +
         (file.environment.flashlab_version.empty()
              ? std::string()
              : " " + escape_xml(file.environment.flashlab_version)) +
         ". This page is complete in itself; the same figures are in results.json and results.csv "
         "beside it.\n</footer>\n" +
         page_script() + "</body>\n</html>\n";
  return out;
}

}  // namespace flashlab::lab::report
