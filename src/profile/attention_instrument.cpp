#include "profile/attention_instrument.h"

#include <algorithm>

#include "api/context_state.h"
#include "lab/measure/statistics.h"
#include "profile/kernel_match.h"

namespace flashlab::profile {
namespace {

using cuda::Activity;

constexpr int kCalls = 7;

std::string name_of(const Activity& activity) {
  switch (activity.kind) {
    case Activity::Kind::kMemset:
      return "memset";
    case Activity::Kind::kCopy:
      return "copy";
    case Activity::Kind::kKernel:
      return readable_kernel(activity.name);
  }
  return {};
}

bool same_kernels(const std::vector<Activity>& a, const std::vector<Activity>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Activity& x, const Activity& y) { return x.name == y.name; });
}

double milliseconds(std::uint64_t begin_ns, std::uint64_t end_ns) {
  return static_cast<double>(end_ns - begin_ns) * 1e-6;
}

}  // namespace

AttentionInstrument::AttentionInstrument(const Context& context)
    : AttentionInstrument(context.state().gpu() != nullptr ? limits_of(*context.state().gpu())
                                                           : MultiprocessorLimits{}) {}

AttentionInstrument::AttentionInstrument(const MultiprocessorLimits& limits)
    : limits_(limits), cupti_(cuda::Cupti::get()) {
  if (!cupti_.ok()) why_not_ = cupti_.status().message();
}

Status AttentionInstrument::record_once(const lab::RepeatedCall& again,
                                        std::vector<Activity>& out) const {
  if (Status s = again.flush(); !s.ok()) return s;
  if (Status s = (*cupti_)->start(); !s.ok()) return s;
  const Status ran = again.call();
  Result<std::vector<Activity>> activities = (*cupti_)->stop();
  if (!ran.ok()) return ran;
  if (!activities.ok()) return activities.status();
  out = std::move(*activities);
  std::erase_if(out, [](const Activity& each) { return each.with_host; });
  if (out.empty()) {
    return Status(StatusCode::kDeviceError, {"CUPTI", "no kernel", "those of the call", ""});
  }
  return {};
}

void AttentionInstrument::record(const lab::Measurement& result, const lab::RepeatedCall& again) {
  if (!cupti_.ok()) return;
  std::vector<std::vector<Activity>> runs(kCalls);
  for (std::vector<Activity>& run : runs) {
    if (Status s = record_once(again, run); !s.ok()) {
      why_not_ = s.message();
      return;
    }
    if (!same_kernels(run, runs.front())) {
      why_not_ = result.implementation + " launches other kernels from call to call";
      return;
    }
  }
  CallKernels out = {result.implementation, result.pass, {}};
  for (std::size_t i = 0; i < runs.front().size(); ++i) {
    std::vector<double> starts, durations;
    for (const std::vector<Activity>& run : runs) {
      starts.push_back(milliseconds(run.front().start_ns, run[i].start_ns));
      durations.push_back(milliseconds(run[i].start_ns, run[i].end_ns));
    }
    const Activity& first = runs.front()[i];
    CallKernels::Kernel kernel = {name_of(first), *lab::median_of(starts),
                                  *lab::median_of(durations), std::nullopt};
    if (first.kind == Activity::Kind::kKernel) {
      kernel.launch = complete({.blocks = first.blocks,
                                .threads = first.threads,
                                .registers = first.registers,
                                .shared_bytes = first.shared_bytes},
                               limits_);
    }
    out.kernels.push_back(std::move(kernel));
  }
  calls_.push_back(std::move(out));
}

}  // namespace flashlab::profile
