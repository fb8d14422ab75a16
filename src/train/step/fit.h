#pragma once

// Which activations to keep so that a step fits a device.

#include <cstdint>
#include <functional>
#include <string>

#include "flashlab/status.h"
#include "train/model/config.h"
#include "train/plan/options.h"
#include "train/plan/step_plan.h"

namespace flashlab::train {

struct Fit {
  std::string checkpoint;         ///< as parse_checkpoint reads it; empty: everything is kept
  std::int64_t device_bytes = 0;  ///< what the step then takes
  double repeated_flops = 0;
};

/// The way that repeats the least work and fits `limit_bytes` by the memory planner: rungs of the
/// ladder from the cheapest on, as few layers as possible a rung further than the others, then
/// groups of layers of which only the input is kept. `options.checkpoint` is not read.
/// `build` makes the lists: build_step, where none is given.
/// Errors: those of `build`; kOutOfMemory where nothing fits, with the least there is.
using BuildStep = std::function<Result<StepPlan>(const ModelConfig&, const StepOptions&)>;
Result<Fit> fit_step(const ModelConfig& model, const StepOptions& options, std::int64_t limit_bytes,
                     const BuildStep& build = {});

}  // namespace flashlab::train
