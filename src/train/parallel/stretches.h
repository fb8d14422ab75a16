#pragma once

// Where the gradients of a list are whole, so that ranks can add them.

#include <vector>

#include "train/plan/step_plan.h"

namespace flashlab::train {

/// Operations whose gradients ranks add together: a step's, or a micro-batch's.
struct Stretch {
  int last = 0;                   ///< before what reads the sums
  std::vector<int> writers = {};  ///< of each parameter that learns the last one of its gradient
};

/// Those before the operation `optimizer`, in order.
std::vector<Stretch> stretches_of(const StepPlan& plan, int optimizer);
/// The first operation of the optimizer; behind the last one where there is none.
int optimizer_of(const StepPlan& plan);

}  // namespace flashlab::train
