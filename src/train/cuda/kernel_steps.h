#pragma once

// Operations of a step that are kernels of src/cuda/kernels/train: their shapes, configurations and
// parameters.

#include <cstdint>
#include <string>
#include <vector>

#include "flashlab/status.h"
#include "runtime/cuda/driver.h"
#include "runtime/kernel_store/config.h"
#include "runtime/program/program.h"
#include "train/cuda/column_sums.h"
#include "train/plan/step_plan.h"

namespace flashlab::train {

struct LoweredStep;

/// A bit for each 64 elements of the arenas: whether AdamW decays them.
std::vector<std::uint32_t> decay_bits(const StepPlan& plan);

class KernelSteps {
 public:
  /// Adds the region that kernels leave partial sums in.
  KernelSteps(const StepPlan& plan, const std::vector<runtime::Place>& places,
              const cuda::DeviceInfo& device, const LoweredStep& lowered,
              runtime::Program& program);

  /// Appends the kernels of an operation of the plan. Errors: kUnsupported, by its name.
  Status append(const Operation& operation);

 private:
  /// One launch: `parameters` is the kernel's struct with the patches of its addresses.
  struct Launch {
    const char* source;
    const char* entry;
    const cuda::ConfigPrinter& config;
    std::int64_t blocks = 1;
    int blocks_y = 1;
    int threads = 1;
    std::int64_t shared_bytes = 0;
    int cluster = 1;  ///< blocks of one; clusters stay
  };
  void add(const Operation& operation, const Launch& launch, runtime::ParameterBlock parameters);

  Status norm(const Operation& operation);
  Status column_sum(const Operation& operation);
  void finish_sums(const Operation& operation);
  Status activation(const Operation& operation);
  Status pointwise(const Operation& operation);
  Status softmax(const Operation& operation);
  Status cached_attention(const Operation& operation);
  Status rope(const Operation& operation);
  Status embedding(const Operation& operation);
  Status embedding_backward(const Operation& operation);
  Status dropout(const Operation& operation);
  Status cross_entropy(const Operation& operation);
  Status mean_loss(const Operation& operation);
  Status optimizer(const Operation& operation);

  runtime::Place place(TensorId id) const { return places_[static_cast<std::size_t>(id)]; }
  Element element(TensorId id) const { return plan_.tensor(id).element; }
  std::size_t index_of(const Operation& operation) const {
    return static_cast<std::size_t>(&operation - plan_.operations.data());
  }

  const StepPlan& plan_;
  const std::vector<runtime::Place>& places_;
  const cuda::DeviceInfo& device_;
  const LoweredStep& lowered_;
  runtime::Program& program_;
  const ColumnSums sums_;
  int scratch_ = -1;
  std::int64_t micro_batch_ = 0;  ///< of the embedding's gradients that were appended
};

}  // namespace flashlab::train
