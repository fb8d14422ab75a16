#pragma once

// `naive`: attention as it is written down, one step after the other, with the score matrix in
// memory. The baseline that every tiled kernel is measured beside, and the first page of the
// ladder: docs/learn/naive.md.
//
// To time the steps of a call separately, observe the calling thread (runtime/program/observer.h):
//
//   struct Times : StepObserver { void step_finished(std::string_view name, double ms) override; };
//   Times times;
//   ObserveSteps scope(times);
//   forward(context, stream, plan, tensors, workspace);   // "scores", "softmax", "values"
//   backward(...);                             // "probabilities", "dv", "ds", "dq", "dk"

#include <memory>

#include "api/context_state.h"
#include "api/implementation.h"

namespace flashlab::internal {

/// The implementation named "naive".
const Implementation& naive_implementation();

/// Plans either pass in fp64, fp32, fp16 or bf16. The plan is a NaivePlan (naive/plan.h), whose
/// steps can also be called one by one. Workspace: two [batch, heads_q, seqlen_q, seqlen_k]
/// matrices (forward: scores in fp32, or fp64, and probabilities in the inputs' dtype; backward:
/// probabilities and score gradients in the inputs' dtype) and a few blocks per thread; a size
/// beyond the address space saturates, so that it fails in the allocator as out of memory.
Result<std::shared_ptr<PlanState>> make_naive_plan(const ContextState& context,
                                                   const Problem& problem,
                                                   const Geometry& geometry);

}  // namespace flashlab::internal
