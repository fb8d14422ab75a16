#pragma once

// What a terminal shows. Strings only: whoever calls prints them.

#include <string>
#include <string_view>
#include <vector>

#include "lab/report/numbers.h"
#include "lab/results/subject.h"

namespace flashlab::lab::report {

struct TableOptions {
  std::string relative_to;  ///< an implementation of the results; empty: no ratios
  int width = 100;          ///< columns of the terminal; below 80 counts as 80
  bool colours = false;     ///< ANSI colours
};

/// One block per problem: a row per implementation with time, FLOP/s and share of the roof per
/// pass, peak memory (the larger pass) and error against fp64 (the larger pass); parts where a
/// implementation times them; why a row has no figures; ratios; the fastest, the leanest and the
/// most accurate.
std::string comparison_table(const ResultFile& file, const TableOptions& options);

/// `bench`: one line per result, the same columns for any file, nothing that changes from run to
/// run but the measured figures, so that grep and diff work on it. The header says the unit.
/// On a narrow terminal what all problems share stands once above the lines, and not in them; if
/// that does not suffice, columns of details go, then shares.
struct SharedLabels {
  std::vector<std::string_view> names;  ///< labels and columns without a cell in the lines
  std::string text;    ///< "cpu · dtype fp32 · B 1 · Sk = Sq"; empty: everything has its cell
  int name_width = 0;  ///< of the longest implementation's name, where it is known
};
SharedLabels shared_labels(const Subject& subject, const std::vector<Labels>& problems,
                           std::string_view device, int width);
std::string bench_table_header(const Subject& subject, RateUnit unit,
                               const SharedLabels& shared = {});
std::string bench_table_line(const Measurement& result, RateUnit unit,
                             const SharedLabels& shared = {});

/// From which S on each implementation is faster than `relative_to`, by d and B * H. Empty where
/// nothing was measured at two lengths.
std::string crossover_table(const ResultFile& file, std::string_view relative_to);

}  // namespace flashlab::lab::report
