#pragma once

// A group's comparison as a grid of cells, before it becomes Markdown, LaTeX or HTML.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lab/report/group.h"

namespace flashlab::lab::report {

struct CellColumn {
  std::string over;  ///< the pass it belongs to; empty for columns about the row
  std::string name;  ///< with its unit
};

struct Cell {
  std::string text;
  bool best = false;            ///< the best of its column
  std::optional<double> share;  ///< 0..1, for a bar behind the figure
};

struct CellRow {
  std::string label;
  std::vector<Cell> cells;            ///< one per column
  std::vector<std::string> messages;  ///< why figures are missing; separately timed parts
};

struct CellTable {
  std::string title;
  std::vector<CellColumn> columns;  ///< without the one of labels
  std::vector<CellRow> rows;
};

/// `relative_to` adds columns of ratios; empty or without results in this group: none.
CellTable cells_of(const Group& group, std::string_view relative_to);

/// "fastest: forward cpu (1.23 ms)", "least memory: ...", "most accurate: ...".
std::vector<std::string> winners_of(const Group& group);

/// Parts that an implementation times separately, in words: "scores 1.20 + softmax 0.80 ms".
std::string parts_words(const Measurement& result);

/// Name and value of everything the environment knows, absent parts left out.
std::vector<std::pair<std::string, std::string>> environment_rows(const Environment& environment);

}  // namespace flashlab::lab::report
