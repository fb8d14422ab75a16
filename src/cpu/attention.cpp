// The implementation "cpu": which plan serves which problem.

#include "cpu/attention.h"

#include "cpu/backward_plan.h"
#include "cpu/forward_plan.h"
#include "cpu/plain/plain.h"
#include "cpu/sequences/sequences.h"

namespace flashlab::internal {
namespace {

Result<std::shared_ptr<PlanState>> make_cpu_plan(const ContextState& context,
                                                 const Problem& problem, const Geometry& g) {
  if (g.dtype == DType::kFp64) {
    // fp64 is for gradient checks and oracles: the readable kernel in double serves it.
    auto plan = make_plain_plan(context, problem, g);
    if (plan.ok()) (*plan)->reasons.push_back("fp64 runs the plain tiled kernel in double");
    return plan;
  }
  return problem.pass == Pass::kForward ? plan_forward(context, problem, g)
                                        : plan_backward(context, problem, g);
}

std::size_t most_bytes(const ContextState& context, const Problem& problem, const Geometry& g) {
  if (g.dtype == DType::kFp64) {
    auto plan = make_plain_plan(context, problem, g);
    return plan.ok() ? (*plan)->workspace_bytes : 0;
  }
  return problem.pass == Pass::kForward ? most_forward_bytes(context, g)
                                        : most_backward_bytes(context, problem, g);
}

}  // namespace

const Implementation& cpu_implementation() {
  static const Implementation implementation{
      .name = "cpu",
      .device = DeviceKind::kCpu,
      .summary = "production: packed panels, SIMD register tiles, all threads",
      .supported = dense_features() | sequence_features() | cache_features() |
                   FeatureSet{Feature::kFp64, Feature::kFp32, Feature::kFp16, Feature::kBf16},
      .make_plan = &plan_dense_or_sequences<&make_cpu_plan, &most_bytes>};
  return implementation;
}

}  // namespace flashlab::internal
