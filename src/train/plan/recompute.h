#pragma once

// Activation checkpointing as rewrites of the list: a forward operation runs again just before
// backward first needs what it gave, on tensors of its own. The first results are then read by
// forward alone, and the memory planner reuses their place.

#include <functional>
#include <string_view>
#include <vector>

#include "flashlab/status.h"
#include "train/plan/options.h"
#include "train/plan/step_plan.h"

namespace flashlab::train {

/// Wherever a target reads a tensor that a source writes, it reads a second copy of it instead.
/// Sources that no target needs are not repeated (a group's last product). Repeated operations are
/// bit for bit the first ones.
void recompute(StepPlan& plan, const std::function<bool(const Operation&)>& source,
               const std::function<bool(const Operation&)>& target);

/// Consecutive groups of layers from layer 0: only a group's input is kept until its backward. A
/// nested group is repeated once more inside the repetition of its parent; the last nested group is
/// not, because its backward follows at once. At a rung below kBlock each layer repeats what the
/// rung names.
void checkpoint(StepPlan& plan, const std::vector<CheckpointGroup>& groups);

/// "4": groups of 4 layers, the last one smaller; "14,14,6": these groups; "12/3": groups of 12,
/// each split again into groups of 3; "qkv": this rung in every layer; "mlp*10,norms*2": 10 layers
/// at one rung, then 2 at another. A rung without a number takes the layers that are left. A + is
/// read as a comma. Errors: kInvalidArgument.
Result<std::vector<CheckpointGroup>> parse_checkpoint(std::string_view text, std::int64_t layers);

}  // namespace flashlab::train
