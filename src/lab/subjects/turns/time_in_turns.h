#pragma once

// The step that every subject shares: what can run takes turns under the clock, and the times and
// failures become figures of its measurements.

#include <span>

#include "lab/measure/measure.h"
#include "lab/results/measurement.h"

namespace flashlab::lab {

/// One measurement to be timed, and the work that one call of it is.
struct Contestant {
  Measurement* result = nullptr;
  TimedCall call;
  double flops = 0;
  double bytes = 0;  ///< that must move, read and written once
};

/// Times all of them in alternating rounds. A call that fails becomes its measurement's failure;
/// the others go on. `so_far` is told before samples that take long, when the measurements have
/// the times that there are.
void time_in_turns(const MeasureOptions& options, std::span<const Contestant> contestants,
                   const std::function<void()>& so_far = {});

}  // namespace flashlab::lab
