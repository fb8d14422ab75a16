#pragma once

// The order between streams: what must wait for what, by the bytes that operations touch.

#include "flashlab/status.h"
#include "train/plan/memory_plan.h"
#include "train/plan/step_plan.h"

namespace flashlab::train {

/// Streams of the list, counted.
int streams_of(const StepPlan& plan);

/// Makes each operation wait for the latest ones of other streams that touch bytes it touches, one
/// of the two writing: as results and their readers do, and where the memory plan gives a place to
/// something else. What earlier waits imply is left out. Nobody else writes such a wait.
void order_streams(StepPlan& plan, const MemoryPlan& memory);

/// Looks at every two operations of different streams as an adversary who runs what may run: where
/// they touch common bytes and one writes, one must wait for the other.
/// Errors: kInternal, naming the first two that are not ordered.
Status check_order(const StepPlan& plan, const MemoryPlan& memory);

}  // namespace flashlab::train
