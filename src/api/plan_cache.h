#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "flashlab/attention.h"
#include "runtime/per_process.h"

namespace flashlab::internal {

/// Plans by their printed problem (addresses never enter a key). Thread-safe; empty in a forked
/// child.
class PlanCache {
 public:
  std::optional<Plan> find(const std::string& key);

  /// Keeps the plan, unless the key has one already. A full cache starts again.
  void insert(std::string key, const Plan& plan);

  /// A service that sees ever new shapes must not grow without bound; plans are cheap to make.
  static constexpr std::size_t kMaxPlans = 4096;

 private:
  struct State {
    std::mutex mutex;
    std::unordered_map<std::string, Plan> plans;
  };
  State& current() {
    return state_.current([](const State&) { return new State; });
  }

  PerProcess<State> state_{new State};
};

}  // namespace flashlab::internal
