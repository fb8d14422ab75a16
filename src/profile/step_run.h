#pragma once

// Runs a training step with a clock on what it consists of.

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "flashlab/context.h"
#include "flashlab/status.h"
#include "profile/recording.h"
#include "runtime/communicator/communicator.h"
#include "train/plan/step_plan.h"

namespace flashlab::profile {

struct StepRunOptions {
  int warmup = 2;           ///< steps before the first recorded one; the first of all is among them
  int steps = 5;            ///< recorded ones, each beside one that nobody records
  double max_total_ms = 0;  ///< no new pair after this long, once one exists; 0: never
  std::uint64_t seed = 1337;                  ///< of weights and tokens
  const std::atomic<bool>* cancel = nullptr;  ///< set by somebody else: stop after this step
  std::function<void(int done, int planned, std::string_view what)> progress;
};

struct StepRun {
  Recording recording;  ///< without roofs
  /// By how much memory grew since before the executor was made: on a CPU the process' highest
  /// resident size, on a GPU what the device lacks. Empty where the system does not tell.
  std::optional<std::int64_t> measured_bytes;
  std::string why_not_better;  ///< why times are not those of CUPTI; empty where they are, on CPUs
};

/// Steps on random tokens. Every step has the same batch, so that recorded and plain ones do the
/// same work, and the learning rate is 0. Ranks of `group` all call it, with equal options that end
/// nothing early. Errors: the executor's.
Result<StepRun> record_step(const Context& context, const train::StepPlan& plan,
                            const StepRunOptions& options, runtime::Communicator* group = nullptr);

}  // namespace flashlab::profile
