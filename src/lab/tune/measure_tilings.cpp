// The tilings of a problem under the clock, on a GPU.

#include <algorithm>

#include "api/context_state.h"
#include "cuda/launch/sm90_forward_table.h"
#include "lab/check/check.h"
#include "lab/data/case_data.h"
#include "lab/measure/gpu_clock.h"
#include "lab/tune/tune.h"
#include "runtime/cuda/device.h"

namespace flashlab::lab {
namespace {

std::shared_ptr<const cuda::Sm90ForwardTable> table_of(const std::string& gpu,
                                                       const TilingCandidates& all,
                                                       std::size_t tiling) {
  auto table = std::make_shared<cuda::Sm90ForwardTable>();
  table->gpu = gpu;
  table->rows.push_back({.call = all.call, .tiling = all.tilings[tiling]});
  return table;
}

/// A context keeps the plan of a problem: each tiling has its own.
struct PreparedTiling {
  std::size_t index = 0;  ///< of the candidates
  Context context;
  Plan plan;
};

}  // namespace

TilingTimes measure_tilings(const Context& context, const MeasureOptions& options,
                            const TilingCandidates& all) {
  auto memory = device_memory(context);
  if (!memory.ok()) return memory.status();
  const auto clock = gpu_clock(*memory);
  if (!clock.ok()) return clock.status();
  CaseDataOptions filling;
  filling.backward = false;
  filling.memory = *memory;
  Result<CaseData> data = CaseData::create(all.problem, filling);
  if (!data.ok()) return data.status();
  const Result<ErrorOracle> oracle = ErrorOracle::create(*data, Pass::kForward);
  if (!oracle.ok()) return oracle.status();

  std::vector<Result<std::vector<double>>> out(all.tilings.size(), std::vector<double>());
  std::vector<PreparedTiling> prepared;
  std::size_t workspace_bytes = 1;
  for (std::size_t i = 0; i < all.tilings.size(); ++i) {
    Result<Context> own = Context::create({.device = context.device(), .threads = 1});
    if (!own.ok()) return own.status();
    own->state().tuning = table_of(own->state().gpu()->info().name, all, i);
    Result<Plan> made = plan(*own, problem_of(all.problem, Pass::kForward, "sm90", own->device()));
    const Status status = made.ok() ? prepare(*own, *made) : made.status();
    if (!status.ok()) {
      out[i] = status;
      continue;
    }
    workspace_bytes = std::max(workspace_bytes, made->workspace_bytes());
    prepared.push_back({i, std::move(*own), std::move(*made)});
  }
  Result<void*> workspace = (*memory)->allocate(workspace_bytes);
  if (!workspace.ok()) return workspace.status();
  const auto run = [&](const PreparedTiling& each) {
    return forward(each.context, (*memory)->stream(), each.plan, data->forward_tensors(),
                   {*workspace, workspace_bytes});
  };
  // Only what is right is timed.
  std::vector<std::size_t> right;
  std::vector<TimedCall> calls;
  for (const PreparedTiling& each : prepared) {
    Status status = data->reset_outputs(Pass::kForward);
    if (status.ok()) status = run(each);
    if (status.ok()) status = data->fetch_outputs(Pass::kForward);
    if (status.ok()) {
      const ErrorVsFp64 error = oracle->error_of(*data);
      if (!error.accepted) {
        status = Status(StatusCode::kInternal,
                        {"tiling", error.worst, "what rounding explains", "report this"});
      }
    }
    if (!status.ok()) {
      out[each.index] = status;
      continue;
    }
    right.push_back(each.index);
    calls.emplace_back([&run, &each] { return run(each); });
  }
  MeasureOptions timing = options;
  timing.clock = clock->get();
  timing.cold_cache = true;
  const auto samples = measure_interleaved(timing, calls);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (samples[i].ok()) {
      out[right[i]] = samples[i]->ms;
    } else {
      out[right[i]] = samples[i].status();
    }
  }
  (*memory)->release(*workspace);
  return out;
}

}  // namespace flashlab::lab
