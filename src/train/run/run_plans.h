#pragma once

// The lists of a run, and whether their memory is there.

#include "flashlab/context.h"
#include "flashlab/status.h"
#include "train/parallel/data_parallel.h"
#include "train/plan/step_plan.h"
#include "train/run/memory_account.h"
#include "train/run/ranks.h"
#include "train/run/train_config.h"

namespace flashlab::train {

StepOptions options_on(const Context& context, const TrainConfig& config, const Ranks& ranks);
ParallelOptions parallel_of(const TrainConfig& config, const Ranks& ranks);

struct RunPlans {
  StepPlan step, validation;
  MemoryAccount account;
  bool decodes_on_gpu = false;  ///< samples are made where steps are, else on the host
};

/// Asks `admits` with the step alone first, which takes milliseconds, then with everything. `host`:
/// a CPU's context. Errors: those of the lists and of `admits`.
Result<RunPlans> admitted_plans(const Context& context, const Context& host,
                                const TrainConfig& config, const ModelConfig& model,
                                const Admission& admits, const Ranks& ranks);

/// What does not fit with one word in its vocabulary does not fit with those of the text either,
/// which may take minutes to learn.
Status admit_least(const Context& context, const TrainConfig& config, const Admission& admits,
                   const Ranks& ranks);

}  // namespace flashlab::train
