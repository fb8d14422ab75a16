#include "api/plan_cache.h"

#include <utility>

namespace flashlab::internal {

std::optional<Plan> PlanCache::find(const std::string& key) {
  State& state = current();
  std::lock_guard lock(state.mutex);
  const auto found = state.plans.find(key);
  if (found == state.plans.end()) return std::nullopt;
  return found->second;
}

void PlanCache::insert(std::string key, const Plan& plan) {
  State& state = current();
  std::lock_guard lock(state.mutex);
  if (state.plans.size() >= kMaxPlans) state.plans.clear();
  state.plans.emplace(std::move(key), plan);
}

}  // namespace flashlab::internal
