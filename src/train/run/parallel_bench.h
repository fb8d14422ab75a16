#pragma once

// How long a step takes on several ranks, and what of it is communication.

#include <string>

#include "flashlab/context.h"
#include "flashlab/status.h"
#include "train/plan/memory_plan.h"
#include "train/run/ranks.h"

namespace flashlab::train {

/// Medians, in milliseconds.
struct ParallelTimes {
  double step_ms = 0;     ///< of the slowest rank
  double without_ms = 0;  ///< of the same list without collectives
  double forward_ms = 0, backward_ms = 0, optimizer_ms = 0;  ///< of rank 0, collectives apart
  double communication_ms = 0;                               ///< of rank 0's collectives
  double gradients_ms =
      0;                  ///< on GPUs: forward and backward with what is sent; of the slowest rank
  RoleBytes bytes{};      ///< of a rank at its peak
  std::int64_t held = 0;  ///< what a rank allocated
  std::int64_t predicted = 0;  ///< of it by plan
  std::int64_t scratch = 0;    ///< and the operations' workspace
  double exposed_ms() const { return step_ms > without_ms ? step_ms - without_ms : 0; }
};

/// What a GPU takes for a rank's part of the batch alone, while the others do the same.
struct OneRankTimes {
  double step_ms = 0, gradients_ms = 0;
};

struct BenchCounts {
  int warmup = 2, repeats = 10;
};

/// Steps of random tokens: all ranks begin each one together. Errors, the same on all ranks: those
/// of building and running.
Result<ParallelTimes> time_parallel(const Context& context, const Ranks& ranks,
                                    const ModelConfig& model, const StepOptions& options,
                                    const BenchCounts& counts);

/// The same of one rank on `options`' part of the batch that is this rank's.
Result<OneRankTimes> time_one_rank(const Context& context, const Ranks& ranks,
                                   const ModelConfig& model, const StepOptions& options,
                                   const BenchCounts& counts);

}  // namespace flashlab::train
