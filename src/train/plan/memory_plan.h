#pragma once

// Where every tensor of a step lives, and how much memory the step takes at its worst: liveness,
// then offsets in one arena. Nothing is allocated inside a step.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "train/plan/step_plan.h"

namespace flashlab::train {

/// Bytes by role at one moment.
using RoleBytes = std::array<std::int64_t, kRoles>;
std::int64_t sum(const RoleBytes& bytes);

struct Peak {
  int operation = -1;  ///< index in the plan; -1: the plan has none
  RoleBytes bytes{};
  std::int64_t total() const { return sum(bytes); }
};

/// From which operation to which a tensor's memory is its own, both included.
struct Life {
  int first = -1, last = -1;
};

struct MemoryPlan {
  /// Of every tensor that has a place in the arena: bytes from its beginning; -1 for parameters,
  /// optimizer state, batch and results, and for tensors that no operation touches.
  std::vector<std::int64_t> offsets;
  std::vector<Life> lives;       ///< per tensor
  std::int64_t arena_bytes = 0;  ///< what activations and gradients take, holes included
  /// Gradients are one range of the arena, in the order of the parameters. It fills during
  /// backward, while saved activations leave: until its gradient is written, a parameter's place
  /// serves them.
  std::int64_t gradients_offset = 0;

  RoleBytes persistent{};                   ///< whole arenas: gaps between parameters included
  Peak peak;                                ///< of the whole step
  std::array<Peak, kPhases> phase_peaks{};  ///< of each phase
  std::vector<Peak> layer_peaks;            ///< of each layer's operations, backward included

  /// What the device must hold: persistent tensors and the arena.
  std::int64_t device_bytes() const { return sum(persistent) + arena_bytes; }
};

/// Cost: about n log^2 n of n tensors. Deterministic.
MemoryPlan plan_memory(const StepPlan& plan);

}  // namespace flashlab::train
