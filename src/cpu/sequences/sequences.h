#pragma once

// A call on a list of sequences: each is planned and run as a dense call of its own.

#include <cstddef>
#include <memory>

#include "api/context_state.h"
#include "api/implementation.h"

namespace flashlab::internal {

/// What a call on a cache requires, which every planner of dense calls has by a list of sequences.
inline FeatureSet cache_features() {
  return {TensorRole::kBlockTable, TensorRole::kCacheBatchIdx, TensorRole::kLeftPadK};
}

/// How an implementation plans dense calls. Given a Geometry with is_sequence, neither function may
/// let anything but lengths, sizes and options decide how sums are cut: threads and workspace only
/// say who computes them.
struct SequencePlanner {
  Result<std::shared_ptr<PlanState>> (*plan)(const ContextState& context, const Problem& problem,
                                             const Geometry& geometry) = nullptr;
  /// Workspace that suffices for every sequence of at most these lengths. Null: that of the plan
  /// for these lengths.
  std::size_t (*most_bytes)(const ContextState& context, const Problem& problem,
                            const Geometry& geometry) = nullptr;
};

Result<std::shared_ptr<PlanState>> plan_sequences(const ContextState& context,
                                                  const Problem& problem, const Geometry& geometry,
                                                  const SequencePlanner& planner);

/// Implementation::make_plan of an implementation that plans dense calls by `kPlan`.
template <auto kPlan, auto kMostBytes = nullptr>
Result<std::shared_ptr<PlanState>> plan_dense_or_sequences(const ContextState& context,
                                                           const Problem& problem,
                                                           const Geometry& geometry) {
  return geometry.has_lengths ? plan_sequences(context, problem, geometry, {kPlan, kMostBytes})
                              : kPlan(context, problem, geometry);
}

}  // namespace flashlab::internal
