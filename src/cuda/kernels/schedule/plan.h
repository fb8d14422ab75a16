#pragma once

// The list of a ragged call's tiles of queries in the order of work (kernel.cu).

#include <cstdint>

#include "cuda/launch/gpu_plan.h"
#include "cuda/launch/planning.h"

namespace flashlab::cuda {

/// The list's regions in a plan's workspace.
struct SchedulePlan {
  int tiles = -1, header = -1;
  device::TileSchedule schedule{};  ///< without addresses
};

/// Adds the step that makes the list of a ragged forward's tiles, of `tile_rows` queries each, of
/// so many heads or groups. `list`: what the kernels that read it are launched with.
SchedulePlan add_schedule(GpuPlan& plan, const device::Sequences& list, int tile_rows,
                          std::int64_t heads);

/// Addresses of a TileSchedule at `offset` of a kernel's parameters.
void patch_schedule(runtime::ParameterBlock& block, const SchedulePlan& schedule,
                    std::size_t offset);

}  // namespace flashlab::cuda
