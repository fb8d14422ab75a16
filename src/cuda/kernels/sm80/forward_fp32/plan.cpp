#include "cuda/kernels/sm80/forward_fp32/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "api/context_state.h"
#include "cuda/kernels/schedule/plan.h"
#include "cuda/kernels/sm80/terms/plan.h"
#include "cuda/kernels/sm80/terms/tiles.h"
#include "cuda/launch/config.h"
#include "cuda/launch/planning.h"

namespace flashlab::cuda {
namespace {

using internal::Geometry;

constexpr int kMaxHeadDim = 256;
constexpr int kMaxParts = 16;
constexpr int kMinStepsPerPart = 4;
constexpr std::size_t kSmallBytes = std::size_t{1} << 20;
constexpr std::int64_t kMergeThreads = 256;  // four channels of a row each
constexpr int kSequenceBytes = 1024;         // what a block keeps of its sequence, at most

constexpr int padded(int dim) {
  return round_up(dim, 16);
}
using device::fp32_value_columns;
using GuardedTiling = device::Fp32GuardedTiling;

// Blocks that share the channels of V.
unsigned value_blocks(const Geometry& g) {
  const int columns = padded(static_cast<int>(g.head_dim_v));
  return columns > fp32_value_columns(static_cast<int>(g.head_dim_v)) ? 2 : 1;
}

GuardedTiling choose_guarded_tiling(const Fp32ForwardTiling& marked, int dim, int dim_v,
                                    int shared_limit) {
  GuardedTiling t;
  t.warps = std::min(4, marked.tile_q() / 16);
  while (t.warps > 1 && shared_bytes(t, dim, dim_v) > shared_limit) t.warps /= 2;
  return t;
}

struct Choice {
  CallForm call = CallForm::kGeneral;
  int terms = 2;
  Fp32ForwardTiling tiling;
  GuardedTiling guarded;
  int parts = 1;
  std::int64_t blocks = 0;        ///< of the unguarded kernel, per part
  std::int64_t rows = 0;          ///< of all heads and batches
  device::Sequences sequences{};  ///< of a ragged call
};

std::size_t partial_bytes(const Geometry& g, std::int64_t rows, int parts) {
  return static_cast<std::size_t>(parts * rows * (g.head_dim_v + 2)) * 4;
}

// Keys are cut where blocks are few, as long as the workspace stays below 1.5 times the bytes of Q,
// K and V (or small). With a causal bound blocks differ in length, and two parts even them out up
// to three rounds of blocks: H200, batch 8, 4096 queries, d 16: 85 us against 98 (2026-11-21).
int choose_parts(const Problem& problem, const Geometry& g, const Choice& choice,
                 const DeviceInfo& device) {
  const int multiprocessors =
      problem.options.deterministic ? kNominalMultiprocessors : device.multiprocessors;
  const std::int64_t capacity = std::int64_t{multiprocessors} * choice.tiling.blocks_per_sm;
  const std::int64_t rounds_of_two = g.bounds.bounded() ? 3 : 1;
  const std::int64_t steps = divide_up(g.seqlen_k, std::int64_t{choice.tiling.keys});
  const std::int64_t keys = g.batch * g.heads_k * g.seqlen_k;
  const std::int64_t inputs = 4 * (choice.rows * g.head_dim + keys * (g.head_dim + g.head_dim_v));
  const std::size_t allowed = std::max(static_cast<std::size_t>(inputs + inputs / 2), kSmallBytes);
  const std::size_t terms = split_bytes(problem, g, {.k = true, .v = true}, choice.terms);
  const auto worth = [&](int parts) {
    return choice.blocks * parts <= capacity * (parts == 2 ? rounds_of_two : 1) &&
           steps >= std::int64_t{parts} * kMinStepsPerPart &&
           terms + partial_bytes(g, choice.rows, parts) <= allowed;
  };
  int parts = 1;
  while (parts < kMaxParts && worth(parts * 2)) parts *= 2;
  return parts;
}

Choice choose(const Problem& problem, const Geometry& g, const DeviceInfo& device) {
  const int dim = static_cast<int>(g.head_dim), dim_v = static_cast<int>(g.head_dim_v);
  const int limit = device.shared_bytes_per_block - (g.has_lengths ? kSequenceBytes : 0);
  Choice choice;
  choice.call = std::max(call_form(problem), CallForm::kAligned);
  choice.terms = problem.options.precision == Precision::kTf32 ? 1 : 2;
  choice.rows = g.batch * g.heads_q * g.seqlen_q;
  const bool short_loop = g.bounds.right < internal::MaskBounds::kUnbounded && !problem.mask &&
                          !problem.alibi_slopes && g.softcap == 0 && g.dropout == 0;
  // The general form has one tiling, whatever the length.
  const std::int64_t longest = problem.options.max_seqlen_q.value_or(g.seqlen_q);
  const std::int64_t rows = choice.call == CallForm::kGeneral ? kMaxLength : longest;
  choice.tiling = choose_fp32_forward_tiling(rows, dim, dim_v, choice.terms, short_loop, limit);
  choice.guarded = choose_guarded_tiling(choice.tiling, dim, dim_v, limit);
  choice.blocks = g.batch * g.heads_q * divide_up(g.seqlen_q, std::int64_t{choice.tiling.tile_q()});
  if (g.has_lengths) {
    // How many rows a sequence has is known on the device alone: keys are not split.
    choice.sequences = sequences_of(problem, g, choice.tiling.tile_q(), device::kSplitRows);
    choice.blocks = choice.sequences.slots_q * g.heads_q;
    return choice;
  }
  choice.parts = choose_parts(problem, g, choice, device);
  return choice;
}

struct Regions {
  SplitRegions split;
  int marks = -1, partial = -1, statistics = -1;
};

Regions add_regions(GpuPlan& plan, const Geometry& g, const Choice& choice) {
  Regions regions;
  regions.split = add_split_regions(plan, g, {.k = true, .v = true}, choice.terms);
  regions.marks =
      plan.add_gpu_region("marks", static_cast<std::size_t>(choice.blocks * choice.parts) * 4);
  // The kernels know these places whether there are parts or not.
  regions.partial = regions.marks + 1;
  regions.statistics = regions.marks + 2;
  if (choice.parts > 1) {
    const auto rows = static_cast<std::size_t>(choice.parts * choice.rows);
    plan.add_gpu_region("partial_o", rows * static_cast<std::size_t>(g.head_dim_v) * 4);
    plan.add_gpu_region("partial_statistics", rows * 8);
    plan.parts = choice.parts;
  }
  return regions;
}

// What all three kernels are told.
ConfigPrinter print_common(const Problem& problem, const Geometry& g, const Choice& choice,
                           const Regions& regions) {
  ConfigPrinter config;
  print_call(config, problem, g, choice.call);
  print_split(config, regions.split, choice.terms);
  config.boolean("kRagged", g.has_lengths)
      .boolean("kCached", has_cache(problem))
      .integer("kMarkRegion", regions.marks)
      .integer("kPartialRegion", regions.partial)
      .integer("kStatisticsRegion", regions.statistics)
      .boolean("kSinks", problem.sinks.has_value())
      .integer("kValueColumns", fp32_value_columns(static_cast<int>(g.head_dim_v)));
  return config;
}

// A ragged call's step goes through the list of tiles.
void give_list(GpuStep& step, const GpuPlan& plan, const Choice& choice,
               const std::optional<SchedulePlan>& schedule) {
  if (!schedule) return;
  const Geometry& g = plan.geometry;
  device::RaggedForwardArguments arguments{forward_arguments(plan.problem, g), choice.sequences,
                                           schedule->schedule, cache_of(plan.problem, g)};
  arguments.call.parts = 1;
  give_sequences(step, plan, arguments, g.heads_q);
  patch_schedule(step.parameters, *schedule, offsetof(device::RaggedForwardArguments, schedule));
  patch_cache(step.parameters, plan.problem, offsetof(device::RaggedForwardArguments, cache));
}

void add_forward(GpuPlan& plan, const Problem& problem, const Geometry& g, const Choice& choice,
                 const Regions& regions, const std::optional<SchedulePlan>& schedule) {
  const Fp32ForwardTiling& t = choice.tiling;
  const int shared =
      shared_bytes(t, static_cast<int>(g.head_dim), static_cast<int>(g.head_dim_v), choice.terms);
  ConfigPrinter config = print_common(problem, g, choice, regions);
  config.integer("kWarps", t.warps)
      .integer("kRowTiles", t.row_tiles)
      .integer("kKeys", t.keys)
      .integer("kStages", t.stages)
      .boolean("kQueryShared", t.query_shared)
      .integer("kScoreTiles", t.score_tiles)
      .integer("kValueTiles", t.value_tiles)
      .integer("kBlocksPerSm", t.blocks_per_sm)
      .integer("kSharedBytes", shared);
  GpuStep step = kernel_step(
      "sm80/forward_fp32/kernel.cu", "flash_fwd_fp32", config, choice.blocks * choice.parts,
      32 * t.warps, shared,
      fmt::format("tile of {} queries x {} keys · {}", t.tile_q(), t.keys, stage_words(t.stages)));
  step.shape.grid_z = value_blocks(g);
  give_list(step, plan, choice, schedule);
  plan.add_kernel(std::move(step));
}

void add_guarded(GpuPlan& plan, const Problem& problem, const Geometry& g, const Choice& choice,
                 const Regions& regions, const std::optional<SchedulePlan>& schedule) {
  const GuardedTiling& t = choice.guarded;
  const int shared = shared_bytes(t, static_cast<int>(g.head_dim), static_cast<int>(g.head_dim_v));
  ConfigPrinter config = print_common(problem, g, choice, regions);
  config.integer("kWarps", t.warps)
      .integer("kKeys", t.keys)
      .integer("kMarkedRows", choice.tiling.tile_q())
      .integer("kMarkedKeys", choice.tiling.keys)
      .integer("kSharedBytes", shared);
  GpuStep step = kernel_step(
      "sm80/forward_fp32/guarded.cu", "flash_fwd_fp32_guarded", config,
      choice.blocks * choice.parts * (choice.tiling.tile_q() / (16 * t.warps)), 32 * t.warps,
      shared,
      fmt::format("the tiles that were marked, in three bf16 terms · {} queries x {} keys",
                  16 * t.warps, t.keys));
  step.shape.grid_z = value_blocks(g);
  give_list(step, plan, choice, schedule);
  plan.add_kernel(std::move(step));
}

// What the merge is told: not how the call was cut.
ConfigPrinter print_merge(const Problem& problem, const Geometry& g, const Regions& regions) {
  ConfigPrinter config;
  config.integer("kHeadDimV", g.head_dim_v)
      .boolean("kSoftcap", g.softcap > 0)
      .boolean("kAlibi", problem.alibi_slopes.has_value())
      .boolean("kDropout", g.dropout > 0)
      .integer("kPartialRegion", regions.partial)
      .integer("kStatisticsRegion", regions.statistics)
      .boolean("kSinks", problem.sinks.has_value());
  return config;
}

void add_merge(GpuPlan& plan, const Problem& problem, const Geometry& g, const Choice& choice,
               const Regions& regions) {
  const ConfigPrinter config = print_merge(problem, g, regions);
  plan.add_kernel(kernel_step("sm80/forward_fp32/merge.cu", "flash_fwd_fp32_merge", config,
                              divide_up(choice.rows * divide_up(g.head_dim_v, 4), kMergeThreads),
                              kMergeThreads, 0,
                              fmt::format("{} parts, {} rows", choice.parts, choice.rows)));
}

void explain(GpuPlan& plan, const Problem& problem, const Choice& choice) {
  const auto loads = [&](const char* name, const TensorSpec& spec, int wanted) {
    const int bytes = row_alignment_bytes(spec);
    if (kernel_alignment(spec, choice.call) >= wanted) return;
    plan.reasons.push_back(
        fmt::format("{}: rows are aligned to {} bytes, so they are read element by element; {} "
                    "would be faster",
                    name, bytes, wanted));
  };
  plan.reasons.push_back(choice.terms == 2
                             ? "ieee: two scaled fp16 terms, three products; blocks that meet Inf, "
                               "NaN or too wide a range go to three bf16 terms, six products"
                             : "tf32: one scaled fp16 term, which has tf32's 11 significant bits");
  loads("q", problem.q, 8);
  loads("k", problem.k, 16);
  loads("v", problem.v, 16);
  if (choice.parts > 1) {
    plan.reasons.push_back(fmt::format(
        "keys split in {}: {} query tiles alone would load the multiprocessors unevenly",
        choice.parts, choice.blocks));
  }
}

}  // namespace

Fp32ForwardTiling choose_fp32_forward_tiling(std::int64_t rows, int head_dim, int head_dim_v,
                                             int terms, bool short_loop, int shared_limit) {
  const int widest = std::max(padded(head_dim), fp32_value_columns(head_dim_v));
  Fp32ForwardTiling t;
  t.blocks_per_sm = widest <= 32 ? 3 : 2;
  if (widest > 64 && terms == 2) t.keys = 32;  // registers
  // Q in registers is 10 % faster at d 128 (H200, 2026-11-21) where they suffice.
  // Where two blocks would not fit anyway (sm_86, sm_89, sm_120), they would spill (sm_120).
  if (padded(head_dim) > 112 && terms == 2) {
    const int bytes = shared_bytes(t, head_dim, head_dim_v, terms);
    t.query_shared = !short_loop || 2 * bytes > shared_limit;
  }
  if (padded(head_dim) > 128) {
    t.keys = 32;
    t.stages = 1;
    t.query_shared = true;
    t.blocks_per_sm = 1;
  }
  if (rows <= 16) t.warps = 1;
  const auto fits = [&] { return shared_bytes(t, head_dim, head_dim_v, terms) <= shared_limit; };
  if (!fits()) t.stages = 1;
  while (!fits() && t.warps > 1) t.warps /= 2;
  if (!fits()) t.keys = 32;
  return t;
}

Result<std::shared_ptr<internal::PlanState>> plan_sm80_forward_fp32(
    const internal::ContextState& context, const Problem& problem, const Geometry& g) {
  GpuDevice& device = *context.gpu();
  if (std::max(g.head_dim, g.head_dim_v) > kMaxHeadDim) {
    return too_large("head_dim of implementation 'sm80'", std::max(g.head_dim, g.head_dim_v),
                     kMaxHeadDim, "use implementation 'naive'");
  }
  if (std::max(g.seqlen_q, g.seqlen_k) > kMaxLength) {
    return too_large("sequence length", std::max(g.seqlen_q, g.seqlen_k), kMaxLength,
                     "split the call into shorter ones and merge them");
  }
  const Choice choice = choose(problem, g, device.info());
  const std::int64_t tiles =
      g.has_lengths ? 2 * g.heads_k * choice.sequences.slots_k
                    : 2 * g.batch * g.heads_k * divide_up(g.seqlen_k, std::int64_t{64});
  // The guarded kernel's grid is up to 8 times as long, and the merge's up to 64.
  const std::int64_t blocks = choice.blocks * choice.parts * 8;
  if (std::max(blocks, tiles) > INT32_MAX) {
    return too_large("blocks of a kernel", std::max(blocks, tiles), INT32_MAX,
                     "split the batch into smaller calls");
  }
  auto plan = std::make_shared<GpuPlan>(device, problem, g);
  plan->tile_q = choice.tiling.tile_q();
  plan->tile_k = choice.tiling.keys;
  const Regions regions = add_regions(*plan, g, choice);
  std::optional<SchedulePlan> schedule;
  if (g.has_lengths) {
    schedule = add_schedule(*plan, choice.sequences, choice.tiling.tile_q(), g.heads_q);
  }
  if (tiles > 0) add_split_step(*plan, problem, g, regions.split, choice.terms);
  add_forward(*plan, problem, g, choice, regions, schedule);
  add_guarded(*plan, problem, g, choice, regions, schedule);
  if (choice.parts > 1) add_merge(*plan, problem, g, choice, regions);
  explain(*plan, problem, choice);
  return std::shared_ptr<internal::PlanState>(std::move(plan));
}

}  // namespace flashlab::cuda
