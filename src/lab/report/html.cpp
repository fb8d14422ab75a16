#include "lab/report/html.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "lab/report/headline.h"
#include "lab/report/html_parts.h"

namespace flashlab::lab::report {
namespace {

std::string page_head(const std::string& title, const std::string& styles) {
  // The style sheets hold no '<' and no '&', so they are the same text in HTML and in XML.
  return "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
         "<title>" +
         base::escape_xml(title) + " - FlashLab</title>\n<style>" + page_styles() + chart_styles() +
         styles + "</style>\n</head>\n";
}

std::string top(const Frame& frame) {
  std::string out = "<header class=\"top\">\n<div class=\"wrap\">\n<p class=\"brand\">" +
                    base::escape_xml(frame.brand) + "</p>\n<h1>" + base::escape_xml(frame.title) +
                    "</h1>\n";
  if (!frame.meta.empty()) {
    out += "<p class=\"meta\">" + base::escape_xml(base::join(frame.meta, " · ")) + "</p>\n";
  }
  if (!frame.warning.empty()) {
    out += "<p class=\"warning\"><b>" + base::escape_xml(frame.warning) + "</b></p>\n";
  }
  if (!frame.tiles.empty()) {
    out += "<ul class=\"tiles\">\n";
    for (const HeadlineTile& tile : frame.tiles) {
      out += fmt::format("<li><b>{}</b><span>{}</span></li>\n", base::escape_xml(tile.figure),
                         base::escape_xml(tile.caption));
    }
    out += "</ul>\n";
  }
  if (!frame.sentences.empty()) {
    out += "<ul class=\"verdict\">\n";
    for (const std::string& sentence : frame.sentences) {
      out += "<li>" + base::escape_xml(sentence) + "</li>\n";
    }
    out += "</ul>\n";
  }
  return out + "</div>\n</header>\n";
}

Frame frame_of(const ResultFile& file, const HtmlOptions& options) {
  const Headline head = headline(file, options.relative_to);
  const Environment& e = file.environment;
  Frame out;
  out.brand = "FlashLab report";
  out.title = head.title;
  if (!e.date_utc.empty()) out.meta.push_back(base::clean(e.date_utc));
  if (!e.flashlab_version.empty())
    out.meta.push_back("FlashLab " + base::clean(e.flashlab_version));
  if (!e.commit.empty()) out.meta.push_back("commit " + base::clean(e.commit));
  if (!e.cpu_isa.empty()) out.meta.push_back(base::clean(e.cpu_isa));
  out.tiles = head.tiles;
  out.sentences = head.sentences;
  out.footer = "Written by FlashLab" +
               (e.flashlab_version.empty() ? std::string() : " " + e.flashlab_version) +
               ". This page is complete in itself; the same figures are in results.json and "
               "results.csv beside it.";
  return out;
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
  for (const Make make : makers) sections.push_back(make(page));
  return render_page(frame_of(file, options), sections);
}

std::vector<Section> result_sections(const ResultFile& file, const HtmlOptions& options) {
  const Page page{file, options, group_by_problem(file), make_plots(file)};
  return {comparison_section(page), performance_section(page), accuracy_section(page),
          details_section(page)};
}

std::string render_page(const Frame& frame, const std::vector<Section>& all) {
  std::vector<const Section*> sections;
  for (const Section& section : all) {
    if (!section.body.empty()) sections.push_back(&section);
  }
  std::string out = page_head(frame.title, frame.styles) + "<body>\n";
  if (!sections.empty()) {
    out += "<a class=\"skip\" href=\"#" + sections.front()->id + "\">Skip to the results</a>\n";
  }
  out += top(frame);
  if (!sections.empty()) {
    out += "<nav class=\"contents\" aria-label=\"Contents\">\n<div class=\"wrap\">\n<ul>\n";
    for (const Section* s : sections) {
      out += fmt::format("<li><a href=\"#{}\">{}</a></li>\n", s->id, base::escape_xml(s->title));
    }
    out += "</ul>\n</div>\n</nav>\n";
  }
  out += "<main class=\"wrap\">\n";
  for (const Section* s : sections) {
    out += fmt::format(
        "<section id=\"{0}\" aria-labelledby=\"{0}-h\">\n<h2 "
        "id=\"{0}-h\">{1}</h2>\n{2}</section>\n",
        s->id, base::escape_xml(s->title), s->body);
  }
  return out + "</main>\n<footer class=\"wrap\">\n" + base::escape_xml(frame.footer) +
         "\n</footer>\n" + page_script() + "</body>\n</html>\n";
}

}  // namespace flashlab::lab::report
