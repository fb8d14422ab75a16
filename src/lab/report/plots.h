#pragma once

// Which pictures a set of results gives, and what they are called.

#include <map>
#include <string>
#include <vector>

#include "lab/report/svg.h"
#include "lab/results/measurement.h"

namespace flashlab::lab::report {

enum class PlotKind : std::uint8_t { kTime, kPerformance, kMemory, kRoof, kRoofline };

/// One picture, in both its uses.
struct Plot {
  PlotKind kind = PlotKind::kTime;
  std::string name;    ///< file name without its ending: "performance_B8_H8_d32_fp32_forward"
  std::string family;  ///< for a person, what its problems share; empty: all of them
  std::string file_svg;
  std::string inline_svg;
};

/// Per (batch, heads, d, dtype, mask, pass) with two lengths or more: time, FLOP/s and memory
/// against the length, one line per implementation. Problems alone in their family get bars of
/// FLOP/s and of memory. With a measured roof, bars of shares of it first, and a roofline of each
/// family's longest problem: measured rates over modelled FLOPs per byte.
std::vector<Plot> make_plots(const ResultFile& file);

/// A colour for every row label of a file, the same in all its pictures: 0 is naive's.
std::map<std::string, int> chart_colours(const ResultFile& file);

}  // namespace flashlab::lab::report
