#pragma once

// A training step under the clock: forward alone, with backward, with the optimizer.

#include <atomic>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "flashlab/context.h"
#include "lab/results/measurement.h"
#include "train/model/config.h"
#include "train/plan/memory_plan.h"
#include "train/plan/options.h"
#include "train/run/ranks.h"

namespace flashlab::lab {

/// One way of making a step.
struct StepProblem {
  train::ModelConfig model;    ///< its context is the step's
  train::StepOptions options;  ///< mode and context are not read
  std::string variant;         ///< what tells it from others: "naive", "checkpoint=4"; or empty
  int warmup = 5;              ///< steps before the first sample
  train::Ranks ranks{};        ///< several: all time the same problems, in the same order
};

struct StepBenchOptions {
  int repeats = 10;                    ///< timed steps, each waited for
  std::int64_t limit_bytes = 0;        ///< memory that a step may take; 0: what is there
  std::uint64_t seed = 1;              ///< of weights and tokens
  std::vector<train::StepMode> modes;  ///< none: forward, with backward, and the full step
  const std::atomic<bool>* cancel = nullptr;
  /// Told before every step: what is done, steps done, of.
  std::function<void(std::string_view, int, int)> stage;
};

/// "flashlab", "flashlab.naive", ...
std::string name_of(const StepProblem& problem);

/// The options' modes, or all three.
std::vector<train::StepMode> modes_of(const StepBenchOptions& options);

/// "forward", "forward+backward", "step".
const char* pass_name(train::StepMode mode) noexcept;

/// A measurement of `problem` without figures: what is known before it runs.
Measurement empty_step(const StepProblem& problem, const std::string& implementation,
                       const std::string& device, const std::string& pass);

/// "165 GiB (parameters 12.7 GiB, ..., the largest tensor layer 0 / attention / scores fp32 [...]
/// of 2 GiB)": where a step's memory goes, without running it.
std::string memory_account(const train::StepPlan& plan, const train::MemoryPlan& memory);

/// Whether the planned arenas fit what the device has left (or the limit; 0: none), and on a GPU
/// what the host keeps of them, too. Executors' own buffers are in no plan. Errors: kOutOfMemory.
Status fits_memory(const Context& context, const train::StepPlan& plan,
                   std::int64_t limit_bytes = 0);

/// One measurement per mode. Every mode begins with a fresh executor, so that its first step is a
/// first step; a step that does not fit, or that the device cannot run, is a result with the
/// reason. The full step's parts are forward, backward and optimizer as differences of medians.
std::vector<Measurement> bench_step(const Context& context, const StepProblem& problem,
                                    const StepBenchOptions& options);

/// The largest power of two that fits `available_bytes` as the full step's context, by the memory
/// planner; 0 where none does.
std::int64_t largest_context(StepProblem problem, std::int64_t available_bytes);

/// What the context's device has left, less a reserve for the driver and other programs.
std::int64_t bytes_for_a_step(const Context& context);

}  // namespace flashlab::lab
