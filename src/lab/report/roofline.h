#pragma once

// Measured rates under a machine's roofs.

#include <string>
#include <vector>

#include "lab/report/svg.h"

namespace flashlab::lab::report {

struct RooflineDot {
  std::string name;  ///< beside the dot; empty: none
  int style = 0;     ///< colour and marker
  double intensity = 0, gflops = 0;
  std::string hover;  ///< what a pointer shows
};

/// FLOP/s over FLOPs per byte, both logarithmic. The roofs are arithmetic and copies; names stand
/// beside their dots, below each other where they would meet.
struct Roofline {
  std::string id = "roofline", title = "Roofline", subtitle, description;
  double width = 760, height = 420;
  double gflops = 0, gb_per_s = 0;
  std::vector<RooflineDot> dots;
};

/// Empty where a roof is not known or there is no dot.
std::string render(const Roofline& picture, SvgUse use);

}  // namespace flashlab::lab::report
