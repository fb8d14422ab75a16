#include "train/run/run_plans.h"

#include <utility>

#include "train/step/step.h"

namespace flashlab::train {

StepOptions options_on(const Context& context, const TrainConfig& config, const Ranks& ranks) {
  StepOptions out = config.step_options();
  out.ranks = ranks.size();
  out.rank = ranks.rank();
  out.gpu = context.device().kind == DeviceKind::kCuda;
  return out;
}

ParallelOptions parallel_of(const TrainConfig& config, const Ranks& ranks) {
  ParallelOptions out = ranks.parallel;
  out.bf16_wire = config.wire == "bf16";
  return out;
}

Result<RunPlans> admitted_plans(const Context& context, const Context& host,
                                const TrainConfig& config, const ModelConfig& model,
                                const Admission& admits, const Ranks& ranks) {
  RunPlans out;
  StepOptions options = options_on(context, config, ranks);
  Result<StepPlan> plan = build_parallel_step(model, options, parallel_of(config, ranks));
  if (!plan.ok()) return plan.status();
  out.step = std::move(*plan);
  if (Status s = admits(out.step, {}); !s.ok()) return s;
  // Validation is dealt out by whole batches.
  options.mode = StepMode::kForward;
  options.accumulate = options.ranks = 1;
  options.rank = 0;
  options.checkpoint.clear();
  plan = build_step(model, options);
  if (!plan.ok()) return plan.status();
  out.validation = std::move(*plan);
  options.mode = StepMode::kDecode;
  const auto share = [&](StepPlan& each) {
    share_parameters(each, ranks.parallel.mode, ranks.size(), ranks.rank());
  };
  share(out.validation);
  const RankOf rank = {ranks.rank(), ranks.size()};
  MemoryAccount& account = out.account;
  account.add_program();
  account.add_parameters(context, out.step);
  Status s = account.add_executor("a step", context, out.step, rank);
  if (s.ok()) s = account.add_executor("validation", context, out.validation, rank);
  if (!s.ok()) return s;
  // Of several ranks one makes the samples, on its host; so does who has no kernel for them.
  out.decodes_on_gpu = options.gpu && ranks.group == nullptr;
  for (const bool gpu : {true, false}) {
    if (gpu && !out.decodes_on_gpu) continue;
    options.gpu = gpu;
    plan = build_step(model, options);
    if (!plan.ok()) return plan.status();
    share(*plan);
    s = account.add_executor("samples", gpu ? context : host, *plan);
    out.decodes_on_gpu = gpu && s.ok();
    if (s.ok()) break;
  }
  if (!s.ok()) return s;
  account.add_save(out.step);
  if (s = admits(out.step, account); !s.ok()) return s;
  return out;
}

Status admit_least(const Context& context, const TrainConfig& config, const Admission& admits,
                   const Ranks& ranks) {
  if (Status s = validate(config); !s.ok()) return s;
  ModelConfig least = config.model;
  least.vocabulary = 1;
  const Result<StepPlan> plan =
      build_parallel_step(least, options_on(context, config, ranks), parallel_of(config, ranks));
  return plan.ok() ? admits(*plan, {}) : plan.status();
}

}  // namespace flashlab::train
