#pragma once

#include <optional>

#include "flashlab/attention.h"
#include "lab/result.h"
#include "lab/statistics.h"

namespace flashlab::lab {

/// Fills in a result's times and the rates that follow from them, by the FLOPs and bytes of its
/// problem. Nothing where there are no samples: what was not measured stays empty.
void set_times(const std::optional<Statistics>& statistics, Pass pass, BenchResult& result);

}  // namespace flashlab::lab
