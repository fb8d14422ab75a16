#pragma once

// One page that a person opens: everything inside it, nothing fetched, readable without colours,
// on paper, on a telephone and by a screen reader.

#include <string>

#include "lab/results/baseline.h"
#include "lab/results/measurement.h"

namespace flashlab::lab::report {

struct HtmlOptions {
  std::string relative_to;                   ///< empty: no ratios
  const BaselineReport* baseline = nullptr;  ///< verdicts of a comparison, when there was one
  std::string baseline_name;                 ///< what it was compared with: a file name
};

/// The whole page. It is HTML and well-formed XML at once, so that anything can check it.
std::string to_html(const ResultFile& file, const HtmlOptions& options);

}  // namespace flashlab::lab::report
