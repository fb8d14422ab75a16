#include "lab/subjects/step/step_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "lab/data/case_data.h"
#include "lab/machine/device_memory.h"
#include "lab/machine/memory.h"
#include "lab/subjects/step/step_subject.h"
#include "train/run/step_executor.h"
#include "train/step/step.h"

namespace flashlab::lab {
namespace {

using train::Role;
using train::StepMode;

std::string bytes_words(std::int64_t bytes) {
  return format_bytes(bytes);
}

double since_ms(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

// The work of a step: what is made again is no part of it.
double work_of(const train::StepPlan& plan) {
  double flops = 0;
  for (const train::Operation& operation : plan.operations) {
    if (operation.generation == 0) flops += operation.flops;
  }
  return flops;
}

struct Timed {
  Measurement& result;
  const StepBenchOptions& options;
  int warmup;
};

// Warm-up, then the samples; a failure, or Ctrl-C, keeps what there is.
Status time_steps(train::StepExecutor& executor, const Timed& timed) {
  const StepBenchOptions& options = timed.options;
  const int all = timed.warmup + options.repeats;
  std::vector<double> samples;
  double bytes = 0;
  for (const train::Operation& operation : executor.plan().operations) {
    bytes += static_cast<double>(operation.bytes);
  }
  constexpr double kRate = 1e-4;
  executor.set_scalar(train::kLearningRate, kRate);
  if (timed.result.pass == pass_name(StepMode::kFull)) timed.result[kStepRate] = kRate;
  for (int step = 0; step < all; ++step) {
    if (options.cancel && options.cancel->load()) break;
    if (options.stage) options.stage(timed.result.pass, step, all);
    executor.set_scalar(train::kStepIndex, step + 1);
    const auto begin = std::chrono::steady_clock::now();
    if (Status s = executor.run(); !s.ok()) return s;
    if (Status s = executor.wait(); !s.ok()) return s;
    const double ms = since_ms(begin);
    if (step == 0) {
      timed.result[kFirstMs] = ms;
      timed.result[kFirstLoss] = executor.number(executor.plan().loss);
    }
    if (step >= timed.warmup) samples.push_back(ms);
  }
  timed.result.set_times(samples, work_of(executor.plan()), bytes);
  if (timed.result[kMedianMs]) {
    const auto& labels = timed.result.labels;
    const double tokens =
        static_cast<double>(labels.whole("batch") * labels.whole("context") *
                            std::max<std::uint64_t>(labels.whole("accumulate"), 1));
    timed.result[kTokensPerS] = tokens / *timed.result[kMedianMs] * 1e3;
  }
  timed.result[kPeakBytes] = static_cast<double>(executor.held_bytes());
  return {};
}

Status run_mode(const Context& context, const StepProblem& problem, const StepBenchOptions& options,
                StepMode mode, Measurement& result) {
  train::StepOptions step = problem.options;
  step.mode = mode;
  step.context = 0;
  Result<train::StepPlan> plan =
      train::build_parallel_step(problem.model, step, problem.ranks.parallel);
  if (!plan.ok()) return plan.status();
  const train::MemoryPlan memory = train::plan_memory(*plan);
  result[kPredictedBytes] = static_cast<double>(memory.device_bytes());
  result.plan = fmt::format("{} operations", plan->operations.size());
  const Status fits = fits_memory(context, *plan, options.limit_bytes);
  if (Status s = problem.ranks.agree(fits); !s.ok()) {
    result[kPeakBytes] = static_cast<double>(memory.device_bytes());
    return s;
  }
  Result<train::BoundStep> bound =
      train::bind_step(context, std::move(*plan), options.seed, problem.ranks.of_steps());
  if (Status s = problem.ranks.agree(bound.status()); !s.ok()) return s;
  return time_steps(*bound->executor, {result, options, problem.warmup});
}

// Each phase as what it adds.
void add_parts(std::vector<Measurement>& results) {
  std::optional<double> forward, backward;
  for (Measurement& result : results) {
    const std::optional<double> ms = result[kMedianMs];
    if (result.pass == pass_name(StepMode::kForward)) forward = ms;
    if (result.pass == pass_name(StepMode::kBackward)) backward = ms;
    if (result.pass != pass_name(StepMode::kFull) || !forward || !backward || !ms) continue;
    result.parts = {{"forward", *forward},
                    {"backward", std::max(0.0, *backward - *forward)},
                    {"optimizer", std::max(0.0, *ms - *backward)}};
  }
}

}  // namespace

std::vector<StepMode> modes_of(const StepBenchOptions& options) {
  if (!options.modes.empty()) return options.modes;
  return {StepMode::kForward, StepMode::kBackward, StepMode::kFull};
}

const char* pass_name(StepMode mode) noexcept {
  return mode == StepMode::kForward    ? "forward"
         : mode == StepMode::kBackward ? "forward+backward"
                                       : "step";
}

Measurement empty_step(const StepProblem& problem, const std::string& implementation,
                       const std::string& device, const std::string& pass) {
  Measurement out;
  out.subject = "step";
  out.implementation = implementation;
  out.device = device;
  out.pass = pass;
  const train::ModelConfig& model = problem.model;
  const auto whole = [&](std::string_view name, std::int64_t value) {
    out.labels.set(name, static_cast<std::uint64_t>(value));
  };
  out.labels.set("model", model.name);
  out.labels.set("dtype", std::string(train::to_string(problem.options.precision)));
  whole("batch", problem.options.batch);
  whole("context", model.context);
  whole("warmup", problem.warmup);
  whole("accumulate", problem.options.accumulate);
  whole("layers", model.layers);
  whole("width", model.width);
  whole("hidden", model.hidden);
  whole("heads", model.heads);
  whole("vocabulary", model.vocabulary);
  return out;
}

std::string memory_account(const train::StepPlan& plan, const train::MemoryPlan& memory) {
  std::string out = fmt::format("{} (", bytes_words(memory.device_bytes()));
  for (const Role role : {Role::kParameter, Role::kGradient, Role::kOptimizerState,
                          Role::kSavedActivation, Role::kTemporary}) {
    out += fmt::format("{} {}, ", train::to_string(role),
                       bytes_words(memory.peak.bytes[static_cast<std::size_t>(role)]));
  }
  const train::PlanTensor* largest = nullptr;
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    if (memory.offsets[i] < 0) continue;
    if (!largest || plan.tensors[i].bytes() > largest->bytes()) largest = &plan.tensors[i];
  }
  if (largest) {
    out += fmt::format("the largest tensor {} {} of {}, ", largest->name, train::describe(*largest),
                       bytes_words(largest->bytes()));
  }
  out.resize(out.size() - 2);
  return out + ")";
}

Status fits_memory(const Context& context, const train::StepPlan& plan, std::int64_t limit_bytes) {
  const train::MemoryPlan memory = train::plan_memory(plan);
  const std::int64_t available = limit_bytes > 0 ? limit_bytes : bytes_for_a_step(context);
  if (memory.device_bytes() > available) {
    return Status::out_of_memory({"step", memory_account(plan, memory),
                                  fmt::format("at most {}", bytes_words(available)),
                                  "a smaller batch or context, or --checkpoint"});
  }
  if (context.device().kind == DeviceKind::kCpu) return {};
  // Weights are drawn, and moments kept for files, in the host's memory.
  const auto of = [&](Role role) { return memory.persistent[static_cast<std::size_t>(role)]; };
  const std::int64_t host = of(Role::kParameter) + of(Role::kOptimizerState);
  const std::int64_t left = available_memory_bytes() / 20 * 19;
  if (host <= left) return {};
  return Status::out_of_memory(
      {"step", fmt::format("{} of parameters and optimizer state on the host", bytes_words(host)),
       fmt::format("at most {}", bytes_words(left)), "a smaller model"});
}

std::string name_of(const StepProblem& problem) {
  return problem.variant.empty() ? "flashlab" : "flashlab." + problem.variant;
}

std::vector<Measurement> bench_step(const Context& context, const StepProblem& problem,
                                    const StepBenchOptions& options) {
  std::vector<Measurement> out;
  const std::string name = name_of(problem);
  for (const StepMode mode : modes_of(options)) {
    if (options.cancel && options.cancel->load()) break;
    Measurement& result =
        out.emplace_back(empty_step(problem, name, to_string(context.device()), pass_name(mode)));
    result.labels.set("seed", options.seed);
    if (Status s = run_mode(context, problem, options, mode, result); !s.ok()) {
      result.set_failure(s);
    }
  }
  add_parts(out);
  return out;
}

std::int64_t largest_context(StepProblem problem, std::int64_t available_bytes) {
  constexpr std::int64_t kMost = std::int64_t{1} << 22;
  std::int64_t fitting = 0;
  for (std::int64_t context = 16; context <= kMost; context *= 2) {
    problem.model.context = context;
    problem.options.context = 0;
    problem.options.mode = StepMode::kFull;
    const Result<train::StepPlan> plan = train::build_step(problem.model, problem.options);
    if (!plan.ok() || train::plan_memory(*plan).device_bytes() > available_bytes) break;
    fitting = context;
  }
  return fitting;
}

std::int64_t bytes_for_a_step(const Context& context) {
  const auto memory = device_memory(context);
  if (!memory.ok()) return 0;
  // The rest is the driver's, the libraries' and that of other programs.
  constexpr double kShare = 0.95;
  return static_cast<std::int64_t>(kShare * static_cast<double>((*memory)->available_bytes()));
}

}  // namespace flashlab::lab
