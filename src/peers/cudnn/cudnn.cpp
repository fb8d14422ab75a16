#include "peers/cudnn/cudnn.h"

#include <fmt/format.h>

#include "api/context_state.h"
#include "peers/cudnn/sdpa_graph.h"
#include "runtime/cuda/device.h"

namespace flashlab::peers {
namespace {

using internal::Feature;
using internal::Geometry;

class CudnnPlan final : public internal::PlanState {
 public:
  Status forward(internal::ContextState& context, Stream stream, const ForwardTensors& t,
                 Workspace workspace) const override {
    return run(context, stream, workspace,
               {{SdpaTensor::kQ, const_cast<void*>(t.q.data)},
                {SdpaTensor::kK, const_cast<void*>(t.k.data)},
                {SdpaTensor::kV, const_cast<void*>(t.v.data)},
                {SdpaTensor::kO, t.o.data},
                {SdpaTensor::kStatistics, t.lse ? t.lse->data : nullptr}});
  }
  Status backward(internal::ContextState& context, Stream stream, const BackwardTensors& t,
                  Workspace workspace) const override {
    return run(context, stream, workspace,
               {{SdpaTensor::kQ, const_cast<void*>(t.q.data)},
                {SdpaTensor::kK, const_cast<void*>(t.k.data)},
                {SdpaTensor::kV, const_cast<void*>(t.v.data)},
                {SdpaTensor::kO, const_cast<void*>(t.o.data)},
                {SdpaTensor::kStatistics, const_cast<void*>(t.lse.data)},
                {SdpaTensor::kGradO, const_cast<void*>(t.d_o.data)},
                {SdpaTensor::kGradQ, t.dq.data},
                {SdpaTensor::kGradK, t.dk.data},
                {SdpaTensor::kGradV, t.dv.data}});
  }

  std::unique_ptr<SdpaGraph> graph;

 private:
  Status run(internal::ContextState& context, Stream stream, Workspace workspace,
             const SdpaPointers& pointers) const {
    const cuda::ContextGuard current = context.gpu()->current();
    return graph->run(static_cast<cuda::CUstream>(stream.handle), pointers, workspace.data);
  }
};

Status refuse(std::string what, std::string got, std::string expected) {
  return Status::unsupported(
      {"cudnn: " + what, std::move(got), std::move(expected), "use another implementation"});
}

Status check_problem(const Problem& p, const Geometry& g) {
  // It knows no row without a key.
  if (g.seqlen_k == 0) return refuse("seqlen_k", "0", "at least one key");
  if (p.options.causal == Causal::kBottomRight && g.seqlen_q > g.seqlen_k) {
    return refuse("seqlen_q", fmt::format("{}", g.seqlen_q),
                  fmt::format("at most the {} keys: some rows would see none", g.seqlen_k));
  }
  if (p.o.dtype != g.dtype) {
    return refuse("o.dtype", to_string(p.o.dtype), fmt::format("q's {}", to_string(g.dtype)));
  }
  if (p.pass == Pass::kForward) return {};
  for (const auto* spec : {&p.d_o, &p.dq, &p.dk, &p.dv}) {
    if ((*spec)->dtype != g.dtype) {
      return refuse("gradients' dtype", to_string((*spec)->dtype),
                    fmt::format("q's {}", to_string(g.dtype)));
    }
  }
  return {};
}

Result<std::shared_ptr<internal::PlanState>> make_plan(const internal::ContextState& context,
                                                       const Problem& problem,
                                                       const Geometry& geometry) {
  if (Status s = check_problem(problem, geometry); !s.ok()) return s;
  if (context.gpu()->is_described()) {
    return refuse("device", "a GPU that is only described", "a GPU of this machine");
  }
  const cuda::ContextGuard current = context.gpu()->current();
  auto graph = SdpaGraph::build(problem, geometry);
  if (!graph.ok()) return graph.status();
  auto plan = std::make_shared<CudnnPlan>();
  plan->problem = problem;
  plan->geometry = geometry;
  plan->graph = std::move(*graph);
  if (const std::size_t bytes = plan->graph->workspace_bytes(); bytes > 0) {
    plan->add_region("cuDNN", bytes);
  }
  PlanStep step;
  step.name = problem.pass == Pass::kForward ? "cudnn sdpa" : "cudnn sdpa backward";
  step.configuration = plan->graph->version() + ", its first choice";
  plan->steps.push_back(std::move(step));
  plan->reasons.push_back("asked for: NVIDIA's fused attention");
  return std::shared_ptr<internal::PlanState>(std::move(plan));
}

}  // namespace

const internal::Implementation& cudnn_implementation() {
  static const internal::Implementation implementation{
      "cudnn",
      DeviceKind::kCuda,
      "NVIDIA's fused attention in cuDNN, a peer to measure",
      {Feature::kForward, Feature::kBackward, Feature::kFp16, Feature::kBf16, Feature::kCausal,
       Feature::kGroupedQuery, Feature::kUnequalHeadDims, TensorRole::kLse,
       Feature::kDeterministic},
      make_plan};
  return implementation;
}

}  // namespace flashlab::peers
