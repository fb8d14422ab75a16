#pragma once

// Sums over rows (of the norms' weights and biases, of the biases before them): which kernels leave
// partial sums, where these lie, and after which of them they are finished.

#include <cstdint>
#include <vector>

#include "cuda/kernels/train/arguments.h"
#include "runtime/cuda/driver.h"
#include "train/plan/step_plan.h"

namespace flashlab::train {

/// The results of an operation that are sums over its rows.
std::vector<TensorId> sums_over_rows(const Operation& operation);

/// What the kernel of an operation leaves: partial sums [outs, blocks, width] in fp32.
struct ColumnSum {
  std::vector<TensorId> outs{};
  std::int64_t width = 0;
  int blocks = 0;
  bool accumulate = false;  ///< outs are added to
  std::int64_t offset = 0;  ///< of the partial sums, in their region

  std::int64_t vector_bytes() const { return 4 * blocks * width; }
  std::int64_t bytes() const { return vector_bytes() * static_cast<std::int64_t>(outs.size()); }
};

/// The sums of a step. They are finished in groups, one kernel each: a launch for every sum would
/// take longer than the sum. A group ends where somebody reads one of its results, where another
/// one writes it, and where its partial sums are so many that they leave the L2 cache.
class ColumnSums {
 public:
  ColumnSums(const StepPlan& plan, const cuda::DeviceInfo& device);

  /// Of the operation's kernel; null where it leaves none.
  const ColumnSum* of(std::size_t operation) const;
  /// What is finished after this operation.
  std::vector<const ColumnSum*> finished_after(std::size_t operation) const;

  std::int64_t region_bytes() const { return region_bytes_; }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  std::vector<ColumnSum> sums_;
  std::vector<std::size_t> groups_;  ///< where each begins among the sums
  std::vector<std::size_t> index_;   ///< per operation: of its sum
  std::int64_t region_bytes_ = 0;
};

}  // namespace flashlab::train
