#pragma once

// The main loop of the Hopper forward kernel, alone, as something that is measured: its labels and
// columns (measure/gpu_loop.h).

#include "case.h"
#include "lab/measure/gpu_loop.h"
#include "lab/results/subject.h"

namespace flashlab::lab {

/// Clocks of a step: median and quartiles over multiprocessors and launches.
inline constexpr Column kStepClocks{"step_clocks", "clocks", "clocks", Better::kLower, "fewest"};
inline constexpr Column kQ1StepClocks{"q1_step_clocks", "q1 clocks", "clocks", Better::kLower, ""};
inline constexpr Column kQ3StepClocks{"q3_step_clocks", "q3 clocks", "clocks", Better::kLower, ""};
/// What the products of a step need at the tensor cores' rate.
inline constexpr Column kProductClocks{"product_clocks", "products", "clocks", Better::kNeither,
                                       ""};
/// Product clocks over the clocks of a step.
inline constexpr Column kTensorShare{"tensor_share", "tensor cores", "share", Better::kHigher, ""};

/// Labels are the type, head dims and tiling. A loop has clocks and no times: those are null.
const Subject& loop_subject();

/// A reading as a result that files hold.
Measurement measurement_of(const cases::Case& problem, Device device, const LoopReading& reading);

}  // namespace flashlab::lab
