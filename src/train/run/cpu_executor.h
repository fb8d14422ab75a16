#pragma once

// Runs a step's list on the CPU: every tensor is bound to an address once, then each step is a
// program of calls of functions.

#include <memory>
#include <optional>
#include <vector>

#include "flashlab/attention.h"
#include "flashlab/context.h"
#include "runtime/program/executor.h"
#include "train/cpu/rows-inl.h"
#include "train/parallel/collective_work.h"
#include "train/run/step_executor.h"

namespace flashlab::train {

/// Operands in bf16 and fp16 are widened to fp32 for the operation and its results rounded after
/// it, so that storage is 16-bit and arithmetic is not; attention reads them itself.
class CpuExecutor final : public StepExecutor {
 public:
  /// `context` is a CPU's; it and `parameters` outlive the executor. Allocates everything that the
  /// step will ever need.
  /// Errors: kInvalidArgument (the store belongs to another model), kUnsupported (a type that the
  /// CPU does not compute in, an attention that the CPU does not have), kOutOfMemory.
  /// `group` carries out the collectives of the list; null where it has none.
  static Result<std::unique_ptr<CpuExecutor>> create(const Context& context, StepPlan plan,
                                                     ParameterStore& parameters,
                                                     runtime::Communicator* group = nullptr);

  /// What create() takes beside the parameters.
  static Result<std::int64_t> planned_bytes(const Context& context, const StepPlan& plan);

  Status run(OperationObserver* observer = nullptr) override;
  const StepPlan& plan() const override { return plan_; }
  Result<std::byte*> gradients() override { return gradient_arena(); }
  const MemoryPlan& memory() const override { return memory_; }
  std::int64_t held_bytes() const override;
  std::int64_t scratch_bytes() const override;
  /// Where any tensor of the plan lies.
  void* data(TensorId id) const override { return addresses_[static_cast<std::size_t>(id)]; }

 private:
  explicit CpuExecutor(const Context& context) : context_(context) {}
  struct Sizes {
    std::int64_t arena = 0, persistent = 0, scratch = 0, widened = 0;
  };
  /// Plans the memory of what is no attention's own.
  Result<Sizes> measure();
  Status bind(ParameterStore& parameters);
  /// Bytes of its workspace.
  Result<std::int64_t> plan_attention();
  Status bind_attention();
  Status gather(const Operation& operation) override;
  template <class T>
  void add_steps();
  template <class T>
  Status run_operation(std::size_t index);
  Status run_attention(std::size_t index);
  Status run_append(const Operation& operation);
  template <class T>
  void run_rows(const Operation& operation, std::byte* const* addresses);
  void run_widened(const Operation& operation);
  template <class T>
  void adamw(const Operation& operation);
  template <class T>
  void gradient_norm(const Operation& operation);
  template <class T>
  double squares_of(std::int64_t first, std::int64_t count);
  /// Elements of the arenas: each may be of everything, or of what the rank owns.
  struct Places {
    std::int64_t value, gradient, moment;
  };
  template <class T>
  void adamw_narrow(const cpu::AdamWRange& range, const Places& first, std::int64_t count);
  template <class T>
  void widen_run(Element element, const std::byte* arena, std::int64_t at, T* wide,
                 std::int64_t count);
  template <class T>
  void narrow_run(const T* wide, std::byte* arena, std::int64_t at, std::int64_t count);
  std::int64_t norm_scratch_bytes() const;
  Element gradient_element() const {
    const OwnedRange& own = plan_.owned.front();
    return plan_.tensor(plan_.owned_gradients ? own.gradient : plan_.parameters.front().gradient)
        .element;
  }
  std::byte* gradient_arena() const { return arena_.data() + memory_.gradients_offset; }
  void update_loss_scale(const Operation& operation);

  const Context& context_;
  StepPlan plan_;
  MemoryPlan memory_;
  ParameterStore* parameters_ = nullptr;
  AlignedBytes arena_, persistent_, scratch_, widened_, workspace_;
  std::vector<std::byte*> addresses_;
  std::vector<std::byte*> wide_addresses_;  ///< while run_widened runs: its operands in fp32
  std::vector<std::optional<Plan>> attention_plans_;  ///< per operation of attention
  runtime::Executor program_;
  runtime::Communicator* group_ = nullptr;
  ArenaPlaces arenas_;                     ///< among `exchanged_`
  std::vector<void*> exchanged_;           ///< of the program's collectives: what they work on
  OperationObserver* observer_ = nullptr;  ///< of the call that runs
};

}  // namespace flashlab::train
