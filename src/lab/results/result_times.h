#pragma once

#include <optional>

#include "flashlab/attention.h"
#include "lab/measure/statistics.h"
#include "lab/results/result.h"

namespace flashlab::lab {

/// The figures that results of every kind have, in milliseconds.
template <class Result>
void set_statistics(const Statistics& statistics, Result& result) {
  result.samples = static_cast<int>(statistics.count);
  result.median_ms = statistics.median;
  result.min_ms = statistics.min;
  result.mean_ms = statistics.mean;
  result.max_ms = statistics.max;
  result.std_ms = statistics.std;
}

/// Fills in a result's times and the rates that follow from them, by the FLOPs and bytes of its
/// problem. Nothing where there are no samples: what was not measured stays empty.
void set_times(const std::optional<Statistics>& statistics, Pass pass, BenchResult& result);

}  // namespace flashlab::lab
