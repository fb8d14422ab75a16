// The implementation "cpu": which plan serves which problem.

#include "cpu/attention.h"

#include "cpu/backward_plan.h"
#include "cpu/forward_plan.h"
#include "cpu/plain/plain.h"

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

}  // namespace

const Implementation& cpu_implementation() {
  static const Implementation implementation{
      .name = "cpu",
      .device = DeviceKind::kCpu,
      .summary = "production: packed panels, SIMD register tiles, all threads",
      .supported = dense_features() | sequence_features() |
                   FeatureSet{Feature::kFp64, Feature::kFp32, Feature::kFp16, Feature::kBf16},
      .make_plan = &make_cpu_plan};
  return implementation;
}

}  // namespace flashlab::internal
