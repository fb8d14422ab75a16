#pragma once

// A collective of the list as a step of the runtime, whatever the device.

#include <string_view>

#include "runtime/communicator/communicator.h"
#include "runtime/program/program.h"
#include "train/plan/step_plan.h"

namespace flashlab::train {

/// Where a program has the arenas whose ranges collectives name.
struct ArenaPlaces {
  runtime::Place gradients, values, copies;
};

/// A range of an arena or an operand in place, or from one operand to another, of which the smaller
/// one is a rank's part. Operands lie at `from` and `to`; parts of ranks lie in their order.
runtime::CollectiveWork collective_work(const StepPlan& plan, const Operation& operation,
                                        const ArenaPlaces& arenas, runtime::Place from,
                                        runtime::Place to, int rank, int ranks);

/// Carries it out at once, on `stream` of a GPU: `group` is of the program's call.
Status run_collective(const runtime::Program& program, const runtime::Call& call,
                      const runtime::CollectiveWork& work, std::string_view name,
                      runtime::Communicator& group, void* stream = nullptr);

inline bool is_collective(const Operation& operation) noexcept {
  return operation.operation_class == OperationClass::kCommunication;
}

}  // namespace flashlab::train
