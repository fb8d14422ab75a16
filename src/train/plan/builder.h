#pragma once

// How layers append to a step: tensors, operations, and what backward will append later.

#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "flashlab/status.h"
#include "train/plan/options.h"
#include "train/plan/precision.h"
#include "train/plan/step_plan.h"

namespace flashlab::train {

/// Where a gradient goes: `accumulate` says that something is there already and is added to.
struct GradientSlot {
  TensorId tensor = kNoTensor;
  bool accumulate = false;
};

/// What a layer asks for when it learns something.
struct ParameterSpec {
  std::string name;                 ///< of the whole; checkpoints know the parts
  std::vector<std::int64_t> shape;  ///< [rows, columns] or [columns]
  Initializer initializer{};
  std::vector<std::string> parts{};       ///< names of shares of the rows; empty: the whole
  std::vector<std::int64_t> part_rows{};  ///< rows of each share; empty: equal ones
  bool transposed_in_files = false;       ///< [columns, rows] in checkpoints
};

/// Builds one StepPlan. A layer is a function that appends its forward operations and leaves a
/// closure that will append its backward; `run_backward` runs the closures in reverse order.
class StepBuilder {
 public:
  explicit StepBuilder(const StepOptions& options);

  const StepOptions& options() const { return options_; }
  const PrecisionPolicy& policy() const { return policy_; }
  bool learns() const {
    return options_.mode == StepMode::kBackward || options_.mode == StepMode::kFull;
  }
  bool decodes() const { return options_.mode == StepMode::kDecode; }
  StepPlan& plan() { return plan_; }

  /// Names of what follows: "layer 7 / attention / ...". Layer -1 stands outside the blocks.
  void enter(int layer, std::string block);
  void set_phase(Phase phase) { phase_ = phase; }

  /// An activation or a temporary: which of them, finish() finds out.
  TensorId tensor(std::string_view name, std::vector<std::int64_t> shape, Element element);
  /// The same in the activations' type.
  TensorId activation(std::string_view name, std::vector<std::int64_t> shape);
  /// A tensor with a role of its own and a name outside the layers.
  TensorId persistent(std::string name, std::vector<std::int64_t> shape, Element element,
                      Role role);

  /// A parameter by its spec; the same name gives the same parameter again (tied weights).
  TensorId parameter(const ParameterSpec& spec);
  /// Not ok where a pattern of frozen parameters fits none, or a part of one that is one tensor, or
  /// where nothing is left to learn.
  Status check_frozen() const;

  struct Call {
    std::string_view name;
    OperationKind kind;
    OperationClass operation_class;
    std::vector<Operand> inputs{};  ///< those that are kNoTensor are left out
    std::vector<Operand> outputs{};
    Attributes attributes{};
    double flops = 0;
    std::int64_t bytes = 0;  ///< 0: each operand once
    Rung rung = Rung::kBlock;
  };
  void append(Call call);

  /// Kept only where the step learns. Runs with the place that is current now.
  void on_backward(std::function<void()> rule);

  /// Share `share` of those that are here begins: gradients of parameters are written anew, to the
  /// parameters' own place or to one that end_share() adds to it.
  void begin_share(std::int64_t share);
  void end_share();
  /// Gradients are those of micro-batch `index` of all shares: adds those before it, or keeps them
  /// for the next.
  void end_micro_batch(std::int64_t index);

  /// The slot that a backward operation writes a value's or a parameter's gradient to.
  GradientSlot gradient(TensorId value);
  /// The gradient that later operations have written. Precondition: there is one.
  TensorId gradient_of(TensorId value) const { return gradients_.at(value); }
  /// y = x + ...: the gradient of x begins as the gradient of y, in the same memory. INVARIANT: by
  /// the time something is added to it, every other reader of y's gradient has been appended.
  void share_gradient(TensorId x, TensorId y) { gradients_[x] = gradients_.at(y); }
  void set_gradient(TensorId value, TensorId gradient) { gradients_[value] = gradient; }

  void run_backward();

  /// Orders parameters by backward and gives each its range of the arenas. Nothing is learned
  /// after.
  void lay_out_arenas();

  /// Ends the list: dependencies, roles, costs.
  StepPlan take();

 private:
  std::string place_name(std::string_view name) const;
  void add_levels(std::size_t from, std::size_t to);
  /// A gradient that nobody reads: what makes it alone is taken from the list at the end.
  TensorId unread_gradient(const Parameter& parameter);

  StepOptions options_;
  PrecisionPolicy policy_;
  StepPlan plan_;
  Phase phase_ = Phase::kForward;
  int layer_ = -1;
  std::string block_;
  struct Rule {
    int layer;
    std::string block;
    std::function<void()> append;
  };
  std::vector<Rule> rules_;
  std::unordered_map<TensorId, TensorId> gradients_;
  std::unordered_map<TensorId, bool> written_;
  std::unordered_map<TensorId, std::size_t> parameter_of_;
  std::unordered_map<std::string, TensorId> parameter_named_;
  std::int64_t share_ = 0;
  /// Sums of shares that wait for others: by level, each parameter's. Level 0 is the gradients'.
  std::vector<std::vector<TensorId>> levels_;
};

}  // namespace flashlab::train
