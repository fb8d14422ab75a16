#pragma once

// What a run says in a few sentences, with its numbers.

#include <string>
#include <string_view>
#include <vector>

#include "lab/results/measurement.h"

namespace flashlab::lab::report {

/// One figure large enough to be read first.
struct HeadlineTile {
  std::string figure;   ///< "8.7x"
  std::string caption;  ///< "cpu over naive, geometric mean of 4 measurements"
};

struct Headline {
  std::string title;  ///< "Attention on AMD EPYC 9R14, 2 threads"
  std::vector<HeadlineTile> tiles;
  std::vector<std::string> sentences;
};

Headline headline(const ResultFile& file, std::string_view relative_to);

}  // namespace flashlab::lab::report
