// Problem -> Plan for `naive`: the two matrices.

#include "cpu/naive/naive.h"

#include <fmt/format.h>

#include "cpu/naive/plan.h"
#include "cpu/sequences/sequences.h"

namespace flashlab::internal {
namespace {

std::vector<PlanStep> steps_of(Pass pass) {
  const auto kernel = [](std::string name, std::string text, std::vector<int> after) {
    return PlanStep{PlanStep::Kind::kKernel, std::move(name), std::move(text), std::move(after)};
  };
  if (pass == Pass::kForward) {
    return {kernel("scores", "S = scale Q K^T + mask", {}),
            kernel("softmax", "P = softmax(S)", {0}), kernel("values", "O = P V", {1})};
  }
  return {kernel("probabilities", "P = exp(scale Q K^T + mask - LSE)", {}),
          kernel("dv", "dV = P^T dO", {0}), kernel("ds", "dS = P * (dO V^T - delta)", {0}),
          kernel("dq", "dQ = scale dS K", {2}), kernel("dk", "dK = scale dS^T Q", {2})};
}

std::size_t matrix_bytes(const Geometry& g, DType dtype) {
  std::size_t bytes = size_of(dtype);
  for (std::int64_t extent : {g.batch, g.heads_q, g.seqlen_q, g.seqlen_k}) {
    // Saturates: far beyond any memory, and two of them still do not wrap.
    constexpr std::size_t kHuge = std::size_t{1} << 62;
    if (__builtin_mul_overflow(bytes, static_cast<std::size_t>(extent), &bytes) || bytes > kHuge) {
      bytes = kHuge;
    }
  }
  return bytes;
}

template <class Acc>
Result<std::shared_ptr<PlanState>> make(const ContextState& context, const Problem& problem,
                                        const Geometry& g) {
  auto plan = std::make_shared<NaivePlan<Acc>>();
  plan->problem = problem;
  plan->geometry = g;
  plan->implementation = "naive";
  plan->kernels = &tile_kernels<Acc>(context.cpu_isa);
  const auto matrix = [&](const char* what, DType dtype) {
    return plan->add_region(fmt::format("{} [{}, {}, {}, {}] {}", what, g.batch, g.heads_q,
                                        g.seqlen_q, g.seqlen_k, to_string(dtype)),
                            matrix_bytes(g, dtype));
  };
  if (problem.pass == Pass::kForward) {
    plan->scores_offset = matrix("scores", dtype_of<Acc>());
    plan->probabilities_offset = matrix("probabilities", g.dtype);
  } else {
    plan->probabilities_offset = matrix("probabilities", g.dtype);
    plan->gradients_offset = matrix("score gradients", g.dtype);
    if (g.softcap > 0) plan->slopes_offset = matrix("softcap slopes", dtype_of<Acc>());
  }
  Arena count;
  NaiveBlocks<Acc>(count, g);
  plan->blocks_bytes = count.bytes();
  plan->blocks_offset =
      plan->add_region(fmt::format("blocks of {} threads", context.threads),
                       plan->blocks_bytes * static_cast<std::size_t>(context.threads));
  plan->steps = steps_of(problem.pass);
  plan->reasons.push_back(fmt::format("scores and sums in {}, products built for {}",
                                      to_string(dtype_of<Acc>()),
                                      tile_kernels_name(context.cpu_isa)));
  return std::shared_ptr<PlanState>(std::move(plan));
}

}  // namespace

Result<std::shared_ptr<PlanState>> make_naive_plan(const ContextState& context,
                                                   const Problem& problem,
                                                   const Geometry& geometry) {
  return geometry.dtype == DType::kFp64 ? make<double>(context, problem, geometry)
                                        : make<float>(context, problem, geometry);
}

const Implementation& naive_implementation() {
  static const Implementation implementation{
      "naive", DeviceKind::kCpu,
      "scores, softmax and values as separate steps over a score matrix in memory",
      dense_features() | sequence_features() | cache_features() |
          FeatureSet{Feature::kFp64, Feature::kFp32, Feature::kFp16, Feature::kBf16},
      plan_dense_or_sequences<&make_naive_plan>};
  return implementation;
}

}  // namespace flashlab::internal
