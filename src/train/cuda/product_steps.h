#pragma once

// Products of a step by cuBLASLt.

#include <vector>

#include "runtime/program/program.h"
#include "train/plan/step_plan.h"

namespace flashlab::train {

/// The products of an operation, with what they do on the way: one, or one a sequence with all of
/// its heads. `scratch` is a region of the operation's stream.
std::vector<runtime::ProductWork> products_of(const StepPlan& plan,
                                              const std::vector<runtime::Place>& places,
                                              int scratch, const Operation& operation);

}  // namespace flashlab::train
