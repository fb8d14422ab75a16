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

/// Plans of the context follow a table of one row while this lives.
class OneRow {
 public:
  OneRow(const Context& context, const TilingCandidates& all, std::size_t tiling)
      : state_(context.state()), before_(state_.tuning) {
    cuda::Sm90ForwardTable table;
    table.gpu = state_.gpu()->info().name;
    table.rows.push_back({.call = all.call, .tiling = all.tilings[tiling]});
    state_.tuning = std::make_shared<const cuda::Sm90ForwardTable>(std::move(table));
  }
  ~OneRow() { state_.tuning = before_; }
  OneRow(const OneRow&) = delete;
  OneRow& operator=(const OneRow&) = delete;

 private:
  internal::ContextState& state_;
  std::shared_ptr<const cuda::Sm90ForwardTable> before_;
};

struct PreparedTiling {
  std::size_t index = 0;  ///< of the candidates
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
    const OneRow row(context, all, i);
    Result<Plan> made =
        plan(context, problem_of(all.problem, Pass::kForward, "sm90", context.device()));
    const Status status = made.ok() ? prepare(context, *made) : made.status();
    if (!status.ok()) {
      out[i] = status;
      continue;
    }
    workspace_bytes = std::max(workspace_bytes, made->workspace_bytes());
    prepared.push_back({i, std::move(*made)});
  }
  Result<void*> workspace = (*memory)->allocate(workspace_bytes);
  if (!workspace.ok()) return workspace.status();
  const auto run = [&](const Plan& plan) {
    return forward(context, (*memory)->stream(), plan, data->forward_tensors(),
                   {*workspace, workspace_bytes});
  };
  // Only what is right is timed.
  std::vector<std::size_t> right;
  std::vector<TimedCall> calls;
  for (const PreparedTiling& each : prepared) {
    Status status = data->reset_outputs(Pass::kForward);
    if (status.ok()) status = run(each.plan);
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
    calls.emplace_back([&run, &each] { return run(each.plan); });
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
