#pragma once

// What a GPU does in one kernel: two operations of the list become one.

#include "train/plan/step_plan.h"

namespace flashlab::train {

/// Every pair of neighbours on one stream whose work one launch does becomes an operation of a kind
/// of its own: a product and the GELU of its result; backward of a norm or of GELU and the sum of
/// the columns that it writes; a norm of heads and the RoPE of what it writes, both ways. What
/// stands between two operations keeps them apart. Fusing twice changes nothing.
/// AdamW's traffic is what a GPU keeps of the values (StepPlan::keeps_low_halves).
void fuse(StepPlan& plan);

}  // namespace flashlab::train
