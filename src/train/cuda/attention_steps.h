#pragma once

// Attention of a step and appends to its caches by the library's programs, whose steps are merged
// into the step's.

#include <optional>
#include <vector>

#include "flashlab/attention.h"
#include "flashlab/context.h"
#include "runtime/program/program.h"
#include "train/cuda/lowering.h"
#include "train/plan/step_plan.h"

namespace flashlab::train {

class AttentionSteps {
 public:
  AttentionSteps(const StepPlan& plan, const std::vector<runtime::Place>& places,
                 const Context* context, const LoweredStep& lowered, runtime::Program& program)
      : plan_(plan), places_(places), context_(context), lowered_(lowered), program_(program) {}

  /// Plans every call and adds the regions of their workspace and of their counters.
  /// Errors: those of flashlab::plan, kUnsupported (an implementation that is no program).
  Status plan();
  /// Appends the steps of operation `index`. Precondition: plan() succeeded.
  void append(std::size_t index);
  /// Appends the step of an append to a cache. Errors: kUnsupported, of its types and sizes.
  Status append_rows(const Operation& operation);

 private:
  std::vector<runtime::Place> tensor_places(const Operation& operation) const;
  const runtime::Program& program_of(std::size_t operation) const;

  const StepPlan& plan_;
  const std::vector<runtime::Place>& places_;
  const Context* context_;
  const LoweredStep& lowered_;
  runtime::Program& program_;
  std::vector<std::optional<Plan>> plan_of_;  ///< per operation of attention
  int workspace_ = -1;
  int counters_ = -1;              ///< kCounterBytes for each one of each call
  std::int64_t next_counter_ = 0;  ///< offset: those before belong to steps that were appended
};

}  // namespace flashlab::train
