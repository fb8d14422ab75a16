#include "cuda/kernels/schedule/plan.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace flashlab::cuda {
namespace {

constexpr std::int64_t kMaxThreads = 1024;

}  // namespace

SchedulePlan add_schedule(GpuPlan& plan, const device::Sequences& list, int tile_rows,
                          std::int64_t heads) {
  using device::ScheduleArguments;
  SchedulePlan out;
  out.schedule.capacity = static_cast<int>(list.slots_q);
  out.tiles = plan.add_gpu_region(
      "tile_order", static_cast<std::size_t>(list.slots_q) * sizeof(device::ScheduledTile));
  out.header = plan.add_gpu_region("tile_order_header", 2 * sizeof(int));
  const internal::MaskBounds& bounds = plan.geometry.bounds;
  const std::int64_t round = divide_up(plan.device().info().multiprocessors, heads);
  ScheduleArguments arguments{list, out.schedule, tile_rows, static_cast<int>(round), 0};
  arguments.unequal = bounds.right < bounds.kUnbounded && bounds.left == bounds.kUnbounded ? 1 : 0;
  // A thread for each sequence, for what lies before the first and for what lies behind the last.
  const auto threads =
      std::min(round_up(std::int64_t{list.count} + 2, std::int64_t{32}), kMaxThreads);
  GpuStep step = kernel_step("schedule/kernel.cu", "flash_schedule", {}, 1, threads, 0,
                             "tiles of queries, those with most keys first");
  step.parameters = runtime::ParameterBlock(arguments);
  patch_sequences(step.parameters, plan.problem, offsetof(ScheduleArguments, sequences));
  patch_schedule(step.parameters, out, offsetof(ScheduleArguments, schedule));
  if (plan.add_kernel(std::move(step)) == 0) plan.listed = {out.tiles, out.header, tile_rows};
  return out;
}

void patch_schedule(runtime::ParameterBlock& block, const SchedulePlan& schedule,
                    std::size_t offset) {
  using device::TileSchedule;
  block.pointer(offset + offsetof(TileSchedule, tiles), {buffer_of_region(schedule.tiles)})
      .pointer(offset + offsetof(TileSchedule, header), {buffer_of_region(schedule.header)});
}

}  // namespace flashlab::cuda
