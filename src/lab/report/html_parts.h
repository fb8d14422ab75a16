#pragma once

// The sections of the page. Each returns its markup with an id to link to, or nothing where it has
// nothing to say.

#include <string>
#include <vector>

#include "lab/report/group.h"
#include "lab/report/headline.h"
#include "lab/report/html.h"
#include "lab/report/plots.h"

namespace flashlab::lab::report {

struct Page {
  const ResultFile& file;
  const HtmlOptions& options;
  std::vector<Group> groups;
  std::vector<Plot> plots;
};

struct Section {
  std::string id, title, body;
};

/// Above this many problems tables fold away and an overview takes their place.
inline constexpr std::size_t kFewProblems = 8;

std::string page_styles();
/// Tables sort by the column whose head is clicked. At the end of the page's body.
std::string page_script();

/// What stands around the sections. Every page of FlashLab is made of it: one file, complete in
/// itself, HTML and well-formed XML at once.
struct Frame {
  std::string brand;  ///< "FlashLab report"
  std::string title;
  std::vector<std::string> meta;  ///< one line under the title, with dots between
  std::vector<HeadlineTile> tiles;
  std::vector<std::string> sentences;
  std::string warning;  ///< "interrupted, 12 of 48 measured"; empty: none
  std::string styles;   ///< besides page_styles() and those of the pictures
  std::string footer;
};
/// Sections without a body are left out; the others are linked to at the top.
std::string render_page(const Frame& frame, const std::vector<Section>& sections);

/// What was measured, for a page that shows more than that: comparison, performance, accuracy and
/// every measurement.
std::vector<Section> result_sections(const ResultFile& file, const HtmlOptions& options);

Section comparison_section(const Page& page);
Section performance_section(const Page& page);
Section memory_section(const Page& page);
Section crossover_section(const Page& page);
Section model_section(const Page& page);
Section accuracy_section(const Page& page);
Section baseline_section(const Page& page);
Section details_section(const Page& page);
Section environment_section(const Page& page);
Section reproduce_section(const Page& page);
Section reading_section(const Page& page);

/// A table cell: text, and "n" for a figure, "best" for a winner.
struct HtmlCell {
  std::string text;
  std::string css;
  std::string extra;  ///< markup after the text
};

/// A table in a box that scrolls by itself. `caption` names it for everyone; the first column heads
/// its row.
std::string html_table(const std::string& caption, const std::vector<std::string>& header,
                       const std::vector<std::vector<HtmlCell>>& rows, bool show_caption = false);

}  // namespace flashlab::lab::report
