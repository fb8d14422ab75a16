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

/// Blocks of the kernel of an operation that leaves `sums` sums over rows: each has a row of
/// partial ones.
int blocks_of_sums(const StepPlan& plan, const Operation& operation, int sums,
                   const cuda::DeviceInfo& device);

struct KernelSteps {
  /// Adds the region that kernels leave partial sums in.
  KernelSteps(const StepPlan& plan, const std::vector<runtime::Place>& places,
              const cuda::DeviceInfo& device, const LoweredStep& lowered,
              runtime::Program& program);

  /// Appends the kernels of an operation of the plan. Errors: kUnsupported, by its name.
  Status append(const Operation& operation);

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
  /// What the operation's kernel leaves; null where it leaves no sums.
  const ColumnSum* sum_of(const Operation& operation) const { return sums.of(index_of(operation)); }
  /// The partial sums that wait for this operation's go to their results.
  void finish_sums(const Operation& operation);

  runtime::Place place(TensorId id) const { return places[static_cast<std::size_t>(id)]; }
  Element element(TensorId id) const { return plan.tensor(id).element; }
  std::size_t index_of(const Operation& operation) const {
    return static_cast<std::size_t>(&operation - plan.operations.data());
  }

  const StepPlan& plan;
  const std::vector<runtime::Place>& places;
  const cuda::DeviceInfo& device;
  const LoweredStep& lowered;
  runtime::Program& program;
  const ColumnSums sums;
  int scratch = -1;
};

/// Blocks of the kernel that leaves sums of heads' norms.
int head_norm_blocks(const StepPlan& plan, const Operation& operation,
                     const cuda::DeviceInfo& device);

/// One function of each row of operations.inc: it prints the kernel's Config, fills its struct and
/// names the places of its addresses.
namespace kernels {
Status none(KernelSteps& steps, const Operation& operation);
#define FLASHLAB_OPERATION(kind, name, inputs, outputs, cpu, function) \
  Status function(KernelSteps& steps, const Operation& operation);
#include "train/plan/operations.inc"
#undef FLASHLAB_OPERATION
/// RoPE of a head's halves, and its angles.
Status rope_halves(KernelSteps& steps, const Operation& operation);
}  // namespace kernels

}  // namespace flashlab::train
