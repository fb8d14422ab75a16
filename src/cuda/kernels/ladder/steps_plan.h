#pragma once

// The plan of a rung of several kernels, all printed from one Config.

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "cuda/launch/config.h"
#include "cuda/launch/planning.h"

namespace flashlab::cuda {

class RungPlan {
 public:
  RungPlan(const GpuDevice& device, const Problem& problem, const internal::Geometry& g,
           const char* implementation)
      : plan_(std::make_shared<GpuPlan>(device, problem, g)) {
    plan_->implementation = implementation;
    print_call(config, problem, g);
  }

  /// Returns the step's index; -1 where there is nothing to launch: without a key there is no
  /// score, and nothing of dK and dV to write.
  int add(const char* source, const char* entry, std::int64_t blocks, unsigned threads,
          std::int64_t shared_bytes, const char* formula,
          std::optional<std::vector<int>> after = {}) {
    if (blocks == 0) return -1;
    most_blocks_ = std::max(most_blocks_, blocks);
    GpuStep step = kernel_step(source, entry, config, blocks, threads, shared_bytes, formula);
    step.after = std::move(after);
    return plan_->add_kernel(std::move(step));
  }
  GpuPlan& plan() { return *plan_; }
  Result<std::shared_ptr<internal::PlanState>> take() {
    if (most_blocks_ > INT32_MAX) {
      return Status::unsupported({"batch * heads * tiles", fmt::format("{} blocks", most_blocks_),
                                  fmt::format("at most {} in a launch", INT32_MAX),
                                  "split the batch"});
    }
    return std::shared_ptr<internal::PlanState>(std::move(plan_));
  }

 protected:
  const internal::Geometry& geometry() const { return plan_->geometry; }
  ConfigPrinter config;

 private:
  std::shared_ptr<GpuPlan> plan_;
  std::int64_t most_blocks_ = 0;
};

}  // namespace flashlab::cuda
