#pragma once

// What a run takes of a device's memory and of the host's, part by part, before it takes it.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "flashlab/context.h"
#include "train/cuda/lowering.h"
#include "train/plan/step_plan.h"

namespace flashlab::train {

struct MemoryPart {
  std::string name;
  std::int64_t bytes = 0;
};

/// On a CPU everything is the host's.
struct MemoryAccount {
  std::vector<MemoryPart> device, host;
  /// What the process has of the host before all that: code, text, on a GPU the driver.
  std::int64_t program = 0;

  void add_program();
  /// Values, copies and moments of the plan's parameters: on a GPU the host keeps them, too.
  void add_parameters(const Context& context, const StepPlan& plan);
  /// What the plan's executor takes beside them: arena, batch, results, and the operations' own
  /// workspace, which is in no plan. Errors: those of the executor.
  Status add_executor(std::string name, const Context& context, const StepPlan& plan,
                      RankOf rank = {});
  /// Tensors on their way to a file: the largest one, as it lies here and as it lies there.
  void add_save(const StepPlan& plan);
};

std::int64_t sum(const std::vector<MemoryPart>& parts);

/// Whether a run may be bound here, by its step and by the account of all its parts; the account is
/// empty where only the step is known. Asked before weights are drawn.
using Admission = std::function<Status(const StepPlan&, const MemoryAccount&)>;

}  // namespace flashlab::train
