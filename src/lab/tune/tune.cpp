#include "lab/tune/tune.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "api/context_state.h"
#include "cuda/launch/sm90.h"
#include "cuda/launch/sm90_forward_table.h"
#include "flashlab/version.h"
#include "lab/data/case_data.h"
#include "lab/machine/gpu_memory.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/known_gpus.h"

namespace flashlab::lab {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson json_of(const cuda::Sm90ForwardCall& call) {
  return {
      {"dtype", call.dtype},       {"bounds", call.bounds},         {"scores", call.scores},
      {"head_dim", call.head_dim}, {"head_dim_v", call.head_dim_v}, {"group", call.group},
      {"heads", call.heads},       {"seqlen_q", call.seqlen_q},     {"seqlen_k", call.seqlen_k}};
}

OrderedJson json_of(const cuda::Sm90ForwardTiling& t) {
  return {{"consumers", t.consumers}, {"block_keys", t.block_keys}, {"stages_q", t.stages_q},
          {"stages_k", t.stages_k},   {"stages_v", t.stages_v},     {"turns", t.turns}};
}

void add_times(OrderedJson& out, const Statistics& times) {
  out["median_ms"] = times.median;
  out["q1_ms"] = times.q1;
  out["q3_ms"] = times.q3;
  out["rounds"] = times.count;
}

OrderedJson json_of(const TunedProblem& row) {
  const TilingCandidates& all = row.candidates;
  OrderedJson out;
  out["problem"] = all.problem.describe();
  out["call"] = json_of(all.call);
  out["tiling"] = json_of(all.tilings[row.best]);
  add_times(out, *row.times[row.best]);
  out["rule"]["tiling"] = json_of(all.tilings[all.rule]);
  add_times(out["rule"], *row.times[all.rule]);
  out["measured"] = OrderedJson::array();
  for (std::size_t i = 0; i < all.tilings.size(); ++i) {
    OrderedJson each;
    each["tiling"] = json_of(all.tilings[i]);
    if (row.times[i]) {
      add_times(each, *row.times[i]);
    } else {
      each["failure"] = row.failures[i];
    }
    out["measured"].push_back(std::move(each));
  }
  return out;
}

}  // namespace

Result<TilingCandidates> tiling_candidates(const cuda::DeviceInfo& device,
                                           const cases::Case& problem) {
  const auto gpu = cuda::GpuDevice::described(device);
  const internal::ContextState context(ContextOptions{.device = {DeviceKind::kCuda, 0}}, gpu.get());
  const Problem asked = problem_of(problem, Pass::kForward, "sm90", Device{DeviceKind::kCuda, 0});
  Problem normalised;
  const auto geometry = internal::validate(asked, &normalised);
  if (!geometry.ok()) return geometry.status();
  const auto made =
      internal::plan_with_first(context, {&cuda::sm90_implementation()}, normalised, *geometry);
  if (!made.ok()) return made.status();
  const cuda::Sm90ForwardNeeds needs = cuda::sm90_forward_needs(normalised, *geometry);
  TilingCandidates out;
  out.problem = problem;
  out.call = cuda::sm90_forward_call(normalised, *geometry);
  out.tilings = cuda::legal_sm90_forward_tilings(needs, device.shared_bytes_per_block);
  const auto rule = std::find(out.tilings.begin(), out.tilings.end(),
                              cuda::sm90_forward_rule(device, normalised, *geometry));
  if (rule == out.tilings.end()) {
    return Status(StatusCode::kInternal, {"tilings of " + problem.describe(), "none of the rule's",
                                          "the rule's among the legal ones", "report this"});
  }
  out.rule = static_cast<std::size_t>(rule - out.tilings.begin());
  return out;
}

Result<TilingCandidates> tiling_candidates(const Context* context, const cases::Case& problem) {
  if (context == nullptr) return tiling_candidates(*cuda::known_gpu("sm_90a"), problem);
  const Result<cuda::GpuDevice*> gpu = gpu_of(context->device());
  if (!gpu.ok()) return gpu.status();
  return tiling_candidates((*gpu)->info(), problem);
}

TilingBudget budget_of(const TilingCandidates& candidates, std::size_t tiling) {
  const cuda::Sm90ForwardTiling& t = candidates.tilings[tiling];
  const auto dim = static_cast<int>(candidates.call.head_dim);
  const auto dim_v = static_cast<int>(candidates.call.head_dim_v);
  return {.registers = cuda::sm90_forward_registers(t, dim_v),
          .register_limit = cuda::sm90_forward_register_limit(t),
          .shared_bytes = cuda::sm90_forward_shared_bytes(t, dim, dim_v),
          .warps = 4 * (t.consumers + 1)};
}

std::string users_tuning_path() {
  return cuda::default_tuning_path();
}

Result<TunedProblem> tune(TilingCandidates candidates, const MeasureTilings& measure) {
  const TilingTimes measured = measure(candidates);
  if (!measured.ok()) return measured.status();
  TunedProblem out;
  for (const Result<std::vector<double>>& each : *measured) {
    out.times.push_back(each.ok() ? summarize(*each) : std::nullopt);
    const std::string nothing = each.ok() && !out.times.back() ? "no samples" : "";
    out.failures.push_back(each.ok() ? nothing : each.status().message());
  }
  out.best = candidates.rule;
  if (!out.times[out.best]) {
    return Status(StatusCode::kInternal,
                  {"the rule's tiling of " + candidates.problem.describe(), out.failures[out.best],
                   "times to compare others with", "see flashlab check --implementation sm90"});
  }
  const Interval rule = median_interval(*out.times[candidates.rule]);
  for (std::size_t i = 0; i < out.times.size(); ++i) {
    if (out.times[i] && out.times[i]->median < out.times[out.best]->median &&
        median_interval(*out.times[i]).high < rule.low) {
      out.best = i;
    }
  }
  out.candidates = std::move(candidates);
  return out;
}

std::string tuning_table(const Environment& environment, std::span<const TunedProblem> rows) {
  OrderedJson out;
  out["schema"] = cuda::kTuningSchema;
  out["version"] = version();
  out["gpu"] = environment.gpu;
  out["driver"] = environment.driver;
  out["date"] = environment.date_utc;
  out["commit"] = build_commit();
  out["command"] = environment.command;
  out["protocol"] = environment.protocol;
  out["rows"] = OrderedJson::array();
  for (const TunedProblem& row : rows) out["rows"].push_back(json_of(row));
  return out.dump(1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

}  // namespace flashlab::lab
