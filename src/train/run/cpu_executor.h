#pragma once

// Runs a step's list on the CPU: every tensor is bound to an address once, then each step is only
// calls of functions.

#include <memory>
#include <vector>

#include "flashlab/attention.h"
#include "flashlab/context.h"
#include "train/plan/memory_plan.h"
#include "train/plan/step_plan.h"
#include "train/run/operation_observer.h"
#include "train/run/parameters.h"

namespace flashlab::train {

/// Operands in bf16 are widened to fp32 for the operation and its results rounded after it, so that
/// storage is 16-bit and arithmetic is not; attention reads bf16 itself.
class CpuExecutor {
 public:
  /// `context` is a CPU's; it and `parameters` outlive the executor. Allocates everything that the
  /// step will ever need.
  /// Errors: kInvalidArgument (the store belongs to another model), kUnsupported (a type that the
  /// CPU does not compute in, an attention that the CPU does not have), kOutOfMemory.
  static Result<std::unique_ptr<CpuExecutor>> create(const Context& context, StepPlan plan,
                                                     ParameterStore& parameters);

  /// The whole list, once; `observer`, if any, is told the time of each operation. Errors: those of
  /// attention's calls.
  Status run(OperationObserver* observer = nullptr);

  const StepPlan& plan() const { return plan_; }
  const MemoryPlan& memory() const { return memory_; }
  /// Where a tensor lies: write the batch there, read the loss.
  void* data(TensorId id) const { return addresses_[static_cast<std::size_t>(id)]; }
  std::int32_t* tokens() const { return static_cast<std::int32_t*>(data(plan_.tokens)); }
  std::int32_t* targets() const { return static_cast<std::int32_t*>(data(plan_.targets)); }
  void set_scalar(Scalar scalar, double value) const {
    static_cast<double*>(data(plan_.scalars))[scalar] = value;
  }
  /// A tensor of one element in the plan's type.
  double number(TensorId id) const;

 private:
  struct AttentionCall;
  explicit CpuExecutor(const Context& context) : context_(context) {}
  Status bind(ParameterStore& parameters);
  Status bind_attention();
  template <class T>
  Status run_as(OperationObserver* observer);
  template <class T>
  Status run_operation(std::size_t index);
  template <class T>
  Status run_attention(std::size_t index);
  template <class T>
  void run_rows(const Operation& operation, std::byte* const* addresses);
  void run_widened(const Operation& operation);
  template <class T>
  void adamw(const Operation& operation);
  template <class T>
  void gradient_norm(const Operation& operation);

  const Context& context_;
  StepPlan plan_;
  MemoryPlan memory_;
  ParameterStore* parameters_ = nullptr;
  AlignedBytes arena_, persistent_, scratch_, widened_, workspace_;
  std::vector<std::byte*> addresses_;
  std::vector<std::byte*> wide_addresses_;   ///< while run_widened runs: its operands in fp32
  std::vector<Plan> attention_plans_;        ///< one for each distinct problem
  std::vector<int> attention_of_operation_;  ///< index into attention_plans_; -1: no attention
};

}  // namespace flashlab::train
