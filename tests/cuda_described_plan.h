#pragma once

// Plans for GPUs that are only described: what a call would take, on any machine.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api/context_state.h"
#include "api/implementation.h"
#include "api/problem.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/known_gpus.h"

namespace flashlab::testing {

struct PlannedSizes {
  std::int64_t batch = 1, seqlen_q = 0, seqlen_k = 0, heads = 1, dim = 64;
};

/// A forward without LSE, or a backward, of packed tensors on cuda:0.
inline Problem described_problem(DType dtype, Pass pass, const PlannedSizes& s, Options options) {
  const Device device{DeviceKind::kCuda, 0};
  Problem problem;
  problem.pass = pass;
  problem.q = contiguous_spec(dtype, {s.batch, s.seqlen_q, s.heads, s.dim}, device);
  problem.k = contiguous_spec(dtype, {s.batch, s.seqlen_k, s.heads, s.dim}, device);
  problem.v = problem.k;
  problem.o = problem.q;
  problem.options = std::move(options);
  if (pass == Pass::kBackward) {
    problem.lse = contiguous_spec(DType::kFp32, {s.batch, s.heads, s.seqlen_q}, device);
    problem.d_o = problem.o;
    problem.dq = problem.q;
    problem.dk = problem.k;
    problem.dv = problem.v;
  }
  return problem;
}

/// What `make_plan` gives on the well-known GPU of that architecture, or on one like it with
/// another number of multiprocessors. The plan can be read, not run.
template <class MakePlan>
Result<std::shared_ptr<internal::PlanState>> try_plan_on(MakePlan make_plan,
                                                         const char* architecture,
                                                         const Problem& problem,
                                                         int multiprocessors = 0) {
  cuda::DeviceInfo info = *cuda::known_gpu(architecture);
  if (multiprocessors > 0) info.multiprocessors = multiprocessors;
  const auto gpu = cuda::GpuDevice::described(info);
  const internal::ContextState context(ContextOptions{}, gpu.get());
  Problem normalised;
  const auto geometry = internal::validate(problem, &normalised);
  if (!geometry.ok()) return geometry.status();
  return make_plan(context, normalised, *geometry);
}

/// The same; null if it is refused.
template <class MakePlan>
std::shared_ptr<internal::PlanState> plan_on(MakePlan make_plan, const char* architecture,
                                             const Problem& problem, int multiprocessors = 0) {
  const auto plan = try_plan_on(make_plan, architecture, problem, multiprocessors);
  return plan.ok() ? *plan : nullptr;
}

/// Why `make_plan` refuses a problem there; empty if it does not.
template <class MakePlan>
std::string refusal_on(MakePlan make_plan, const char* architecture, const Problem& problem) {
  const auto plan = try_plan_on(make_plan, architecture, problem);
  return plan.ok() ? std::string() : plan.status().message();
}

/// Of each step of a plan the steps that it needs.
inline std::vector<std::vector<int>> needs(const internal::PlanState& plan) {
  std::vector<std::vector<int>> out;
  for (const PlanStep& step : plan.steps) out.push_back(step.depends_on);
  return out;
}

}  // namespace flashlab::testing
