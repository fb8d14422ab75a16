#pragma once

// What runs a step's list, on whatever device; and a step bound to parameters of its own.

#include <cstdint>
#include <memory>
#include <optional>

#include "flashlab/context.h"
#include "flashlab/status.h"
#include "runtime/communicator/communicator.h"
#include "train/plan/memory_plan.h"
#include "train/plan/step_plan.h"
#include "train/run/operation_observer.h"
#include "train/run/parameters.h"

namespace flashlab::train {

class StepExecutor {
 public:
  virtual ~StepExecutor() = default;

  /// The whole list, once: complete when it returns on a CPU, enqueued on a GPU. `observer`, if
  /// any, is told the time of each operation. Errors: those of attention's calls.
  virtual Status run(OperationObserver* observer = nullptr) = 0;
  /// Waits for what was enqueued. Errors: a failure of the work itself.
  virtual Status wait() { return {}; }
  /// Makes values whole that steps leave in parts, for who reads them between two steps: on all
  /// ranks alike. Waits.
  Status settle();
  /// The store's numbers to the device, and back: where the device has a memory of its own.
  virtual Status push_parameters() { return {}; }
  virtual Status pull_parameters() { return {}; }
  /// The gradients of the last step in host memory, laid out as the parameters' values, until the
  /// next call or run(). Precondition: the step learns.
  virtual Result<std::byte*> gradients() = 0;

  virtual const StepPlan& plan() const = 0;
  virtual const MemoryPlan& memory() const = 0;
  /// Memory of the device that step and parameters hold, scratch included.
  virtual std::int64_t held_bytes() const = 0;
  /// Of it the workspace of operations, which is no tensor's: products', attention's, sums'.
  virtual std::int64_t scratch_bytes() const = 0;

  /// Host memory of a tensor of the batch, which the next run() reads, or of a result, which is
  /// there after wait(); null on a GPU for the loss of every token where the step learns. The
  /// loss scale is both: push_parameters() takes it from there.
  virtual void* data(TensorId id) const = 0;

  std::int32_t* tokens() const { return static_cast<std::int32_t*>(data(plan().tokens)); }
  std::int32_t* targets() const { return static_cast<std::int32_t*>(data(plan().targets)); }
  void set_scalar(Scalar scalar, double value) const {
    static_cast<double*>(data(plan().scalars))[scalar] = value;
  }
  /// A result of one element.
  double number(TensorId id) const;

 protected:
  void leaves_parts() { settled_ = plan().settling.empty(); }

 private:
  virtual Status gather(const Operation& operation) = 0;
  bool settled_ = true;
};

/// The executor of the context's device. `context`, `parameters` and `group`, which carries out
/// what the list does with other ranks, outlive it.
/// Errors: those of the executor; kUnsupported where the device has none.
Result<std::unique_ptr<StepExecutor>> make_executor(const Context& context, StepPlan plan,
                                                    ParameterStore& parameters,
                                                    runtime::Communicator* group = nullptr);

/// Writes the first loss scale, where the step has one.
void begin_loss_scale(const StepExecutor& executor);

/// Tokens and targets drawn alike from the whole vocabulary: the same ones for a seed.
void draw_batch(const StepExecutor& executor, std::uint64_t seed);

/// A step with parameters of its own.
struct BoundStep {
  std::unique_ptr<ParameterStore> parameters;
  std::unique_ptr<StepExecutor> executor;  ///< reads `parameters`
};

/// Parameters drawn from `seed`, without one zeros, and make_executor's.
Result<BoundStep> make_step(const Context& context, StepPlan plan,
                            std::optional<std::uint64_t> seed,
                            runtime::Communicator* group = nullptr);

/// The same with a batch of random tokens.
Result<BoundStep> bind_step(const Context& context, StepPlan plan, std::uint64_t seed,
                            runtime::Communicator* group = nullptr);

}  // namespace flashlab::train
