#pragma once

// Model + batch + options -> StepPlan.

#include "flashlab/status.h"
#include "train/model/config.h"
#include "train/plan/options.h"
#include "train/plan/step_plan.h"

namespace flashlab::train {

/// The whole step as a list. Nothing is allocated and no device is asked, so that any step can be
/// planned anywhere.
/// Errors: kInvalidArgument (the model's sizes, a batch or context below 1 or beyond what the model
/// sees, checkpoint groups with more layers than the model).
Result<StepPlan> build_step(const ModelConfig& model, const StepOptions& options);

}  // namespace flashlab::train
