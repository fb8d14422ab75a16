#pragma once

// The memory of a training step over its operations, from the plan alone: what lives when, where it
// lies, for what and since which operation. The same on any machine, before anything is allocated.

#include <cstdint>
#include <string>
#include <vector>

#include "train/plan/memory_plan.h"
#include "train/plan/step_plan.h"

namespace flashlab::profile {

/// A tensor from the operation that first touches it to the one that last does.
struct Allocation {
  std::string name;   ///< "layer 7 / attention / scores"
  std::string shape;  ///< "fp32 [4, 2048, 2560]"
  train::Role role = train::Role::kTemporary;
  int layer = -1;
  int first = 0, last = 0;   ///< operations, both included
  std::int64_t bytes = 0;    ///< as the arena holds it, the gap behind it included
  std::int64_t address = 0;  ///< from the beginning of the device's memory as planned
  std::string allocated_by;  ///< the first operation's name; empty: before the step
};

struct MemoryTimeline {
  std::string title;
  std::vector<Allocation> arenas;       ///< of what outlives the step, one for each role
  std::vector<Allocation> persistent;   ///< in them: parameters, moments, the batch, results
  std::vector<Allocation> activations;  ///< in order of their first operation
  std::vector<std::string> operations;
  std::vector<train::Phase> phases;          ///< of each operation
  std::vector<train::RoleBytes> live_bytes;  ///< while each operation runs
  std::int64_t persistent_bytes = 0;
  std::int64_t arena_bytes = 0;
  int peak_operation = 0;

  std::int64_t peak_bytes() const;
  std::int64_t peak_bytes(train::Phase phase) const;  ///< 0 where the plan lacks the phase
};

MemoryTimeline make_timeline(const train::StepPlan& plan, const train::MemoryPlan& memory);

/// Allocations that every layer makes alike: names have "*" for the layer where there are several.
struct LikeAllocations {
  Allocation each;
  int count = 0;
};
/// The `most` largest kinds of the arena's allocations, the largest first.
std::vector<LikeAllocations> largest(const MemoryTimeline& timeline, std::size_t most);

/// What one block keeps for backward, by tensor, and the gradients that its backward makes.
struct BlockMemory {
  struct Part {
    std::string name;
    std::int64_t bytes = 0;
    double share = 0;  ///< of saved_bytes
  };
  int layer = 0;
  std::int64_t saved_bytes = 0;
  std::vector<Part> saved;  ///< the largest first
  std::int64_t parameter_gradient_bytes = 0;
  std::int64_t residual_stream_bytes = 0;  ///< one tensor [batch, context, width]
};
BlockMemory block_memory(const train::StepPlan& plan, int layer, std::int64_t residual_elements);

struct TimelinePicture {
  std::int64_t detail_bytes = 0;  ///< smaller activations are added up as one band
  bool inline_in_page = false;
};

/// Two pictures over the operations of a step, bands for forward, backward and optimizer behind
/// them: live bytes by role, and the arena's map: every tensor a rectangle from its first to its
/// last operation where it lies, a pointer shows which.
std::string timeline_picture(const MemoryTimeline& timeline, const TimelinePicture& options);

/// schema flashlab.memory/1: every allocation and free in order, with role, operation and place.
std::string timeline_json(const MemoryTimeline& timeline);

/// A memory snapshot as PyTorch writes it (pickle, protocol 2), for pytorch.org/memory_viz: one
/// segment for each arena, the step's allocations and frees as its trace, the operation as frame.
std::string memory_snapshot(const MemoryTimeline& timeline);

}  // namespace flashlab::profile
