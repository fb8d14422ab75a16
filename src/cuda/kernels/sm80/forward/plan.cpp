#include "cuda/kernels/sm80/forward/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "api/context_state.h"
#include "cuda/kernels/schedule/plan.h"
#include "cuda/launch/arguments.h"
#include "cuda/launch/config.h"
#include "cuda/launch/planning.h"
#include "runtime/kernel_store/config.h"

namespace flashlab::cuda {
namespace {

using internal::Geometry;

constexpr int kMaxHeadDim = 256;
constexpr std::int64_t kFewRows = 64;
constexpr std::int64_t kPackedQueries = 8;  // per head: up to here a group's heads share tiles
constexpr unsigned kMergeWarps = 4;         // kernels/sm80/forward/merge.cu
constexpr int kPlaceBytes = 128;            // device::CachedPlace, and the tiles' alignment

Status too_long(const char* what, std::int64_t got, std::int64_t limit) {
  return too_large(what, got, limit, "split the call into shorter ones and merge them");
}

// Three kernels serve all lengths.
enum class Form : std::uint8_t {
  kMany,     ///< whole keys of many rows
  kFew,      ///< tiles of few rows: heads may share them, and keys be split
  kGeneral,  ///< CallForm::kGeneral; keys may be split
};

struct ForwardChoice {
  CallForm call = CallForm::kGeneral;
  bool prescaled = false;  ///< scores are scaled before the softmax
  Form form = Form::kMany;
  ForwardTiling tiling;
  bool pack_group = false;  ///< the heads of a group share tiles
  int splits = 1;
  std::int64_t tiles_q = 0;  ///< per (batch, head or group)
  std::int64_t heads = 0;    ///< heads or groups
};

/// The main loop folds a positive scale into the exponent; other scales take the general form, and
/// with ALiBi those that its slopes are not to be divided by.
CallForm form_of(const Problem& problem, const Geometry& g) {
  const float least = problem.alibi_slopes ? 1e-10f : 1e-30f;
  return g.scale > least ? call_form(problem) : CallForm::kGeneral;
}

/// How many change scores or probabilities by themselves (kernels/tile/score.h, probability.h).
int count_features(const Problem& problem, const Geometry& g) {
  return (g.softcap > 0) + problem.alibi_slopes.has_value() + (g.dropout > 0);
}

// What one tile of queries sees at most: a window leaves few keys to split.
std::int64_t keys_of_tile(const Geometry& g, int tile_q) {
  const internal::MaskBounds& b = g.bounds;
  if (b.chunk > 0) return std::min(g.seqlen_k, std::min(g.seqlen_k, b.chunk) + tile_q);
  if (std::max(b.left, b.right) >= b.kUnbounded) return g.seqlen_k;
  return std::min(g.seqlen_k, b.left + b.right + tile_q);
}

int shared_bytes(const Geometry& g, const ForwardTiling& t) {
  return device::shared_bytes(t, static_cast<int>(g.head_dim), static_cast<int>(g.head_dim_v));
}

// Less what a block keeps of where keys lie in a cache.
int shared_limit(const Problem& problem, const DeviceInfo& device) {
  return device.shared_bytes_per_block - (has_cache(problem) ? kPlaceBytes : 0);
}

ForwardChoice choose(const Problem& problem, const Geometry& g, const DeviceInfo& device) {
  ForwardChoice choice;
  const int limit = shared_limit(problem, device);
  choice.call = form_of(problem, g);
  const bool general = choice.call == CallForm::kGeneral;
  // Additive masks need scaled scores; the general form serves every scale.
  choice.prescaled = general || (problem.mask && problem.mask->dtype != DType::kBool);
  const bool transformed = problem.mask.has_value() || choice.prescaled;
  const bool chunks = g.bounds.chunk > 0;
  const bool bounded = chunks || std::min(g.bounds.left, g.bounds.right) < g.bounds.kUnbounded;
  ForwardNeeds needs{.head_dim = static_cast<int>(g.head_dim),
                     .head_dim_v = static_cast<int>(g.head_dim_v),
                     .transformed = transformed,
                     .bounded = bounded,
                     .by_element = copied_by_element(problem.q, choice.call) ||
                                   copied_by_element(problem.v, choice.call),
                     .window = chunks || g.bounds.left < g.bounds.kUnbounded,
                     .features = transformed ? 0 : count_features(problem, g) + chunks};
  choice.pack_group =
      !general && g.dropout == 0 && g.group() > 1 && g.seqlen_q <= kPackedQueries && !g.has_lengths;
  const std::int64_t rows = g.seqlen_q * (choice.pack_group ? g.group() : 1);
  choice.heads = choice.pack_group ? g.heads_k : g.heads_q;
  const int multiprocessors =
      problem.options.deterministic ? kNominalMultiprocessors : device.multiprocessors;
  const auto take = [&](Form form) {
    choice.form = form;
    needs.few_rows = form == Form::kFew;
    choice.tiling = choose_forward_tiling(needs, limit);
    choice.tiles_q = divide_up(rows, std::int64_t{choice.tiling.tile_q()});
    const int resident =
        forward_resident_blocks(choice.tiling, shared_bytes(g, choice.tiling), limit);
    choice.splits = choose_key_splits(
        choice.tiles_q * choice.heads * g.batch, std::int64_t{multiprocessors} * resident,
        keys_of_tile(g, choice.tiling.tile_q()), choice.tiling.tile_k);
  };
  if (g.has_lengths) {
    // How many rows a sequence has is known on the device alone: keys are not split.
    const std::int64_t longest = problem.options.max_seqlen_q.value_or(g.seqlen_q);
    take(general ? Form::kGeneral : longest <= kFewRows ? Form::kFew : Form::kMany);
    choice.splits = 1;
  } else if (general) {
    take(Form::kGeneral);
  } else if (choice.pack_group || rows <= kFewRows) {
    take(Form::kFew);
  } else {
    // Tiles that would leave multiprocessors idle are cut smaller, then along their keys.
    take(Form::kMany);
    if (choice.splits > 1) take(Form::kFew);
  }
  return choice;
}

ConfigPrinter print(const Problem& problem, const Geometry& g, const ForwardChoice& choice) {
  const ForwardTiling& t = choice.tiling;
  ConfigPrinter config;
  // Few rows read masks one by one: for one query that is faster (H200, 2026-11-21). Many look
  // whether they can read pairs.
  const CallForm form = choice.form == Form::kGeneral ? CallForm::kGeneral
                        : choice.form == Form::kFew   ? CallForm::kAligned
                                                      : CallForm::kPairs;
  print_call(config, problem, g, form);
  if (has_cache(problem)) config.boolean("kCached", true);
  config.integer("kWarps", t.warps)
      .integer("kWarpRows", t.warp_rows)
      .integer("kTileK", t.tile_k)
      .integer("kPieceK", t.piece_k)
      .integer("kStages", t.stages)
      .integer("kMinBlocks", t.min_blocks)
      .integer("kQuerySteps", t.query_steps)
      .integer("kSharedBytes", shared_bytes(g, t))
      .boolean("kSteadyLoop", t.steady_loop)
      .boolean("kSplit", choice.form != Form::kMany)
      .boolean("kPackGroup", choice.form == Form::kFew && g.dropout == 0 && !g.has_lengths)
      .integer("kPackedQueries", kPackedQueries)
      .boolean("kPrescaled", choice.prescaled)
      .boolean("kRagged", g.has_lengths)
      .boolean("kSinks", problem.sinks.has_value());
  return config;
}

// What the merge is told: not how the call was cut.
ConfigPrinter print_merge(const Problem& problem, const Geometry& g) {
  ConfigPrinter config;
  config.integer("kHeadDimV", g.head_dim_v);
  print_element(config, "kOutput", problem.o.dtype);
  config.boolean("kSinks", problem.sinks.has_value());
  return config;
}

void explain(GpuPlan& plan, const Problem& problem, const ForwardChoice& choice) {
  explain_copies(plan.reasons, "q", problem.q, choice.call);
  explain_copies(plan.reasons, "k", problem.k, choice.call);
  explain_copies(plan.reasons, "v", problem.v, choice.call);
  if (choice.pack_group) {
    plan.reasons.push_back("the query heads of a group share a tile: few queries per head");
  }
  if (choice.splits > 1) {
    plan.reasons.push_back(
        fmt::format("keys split in {}: {} query tiles would leave multiprocessors idle",
                    choice.splits, choice.tiles_q * choice.heads * plan.geometry.batch));
  }
}

}  // namespace

Result<std::shared_ptr<internal::PlanState>> plan_sm80_forward(
    const internal::ContextState& context, const Problem& problem, const Geometry& g) {
  GpuDevice& device = *context.gpu();
  if (g.head_dim > kMaxHeadDim || g.head_dim_v > kMaxHeadDim) {
    return Status::unsupported({"head_dim of implementation 'sm80'",
                                fmt::format("{} and {} (v)", g.head_dim, g.head_dim_v),
                                fmt::format("at most {}", kMaxHeadDim),
                                "use implementation 'naive'"});
  }
  if (std::max(g.seqlen_q, g.seqlen_k) > kMaxLength) {
    return too_long("sequence length", std::max(g.seqlen_q, g.seqlen_k), kMaxLength);
  }
  const ForwardChoice choice = choose(problem, g, device.info());
  const device::Sequences list =
      sequences_of(problem, g, choice.tiling.tile_q(), choice.tiling.tile_k);
  const std::int64_t blocks =
      g.has_lengths ? list.slots_q * g.heads_q : choice.tiles_q * choice.heads * g.batch;
  if (blocks > INT32_MAX) return too_long("query tiles", blocks, INT32_MAX);
  const int limit = shared_limit(problem, device.info());
  if (const int needed = shared_bytes(g, choice.tiling); needed > limit) {
    return Status::unsupported({"shared memory of one block", fmt::format("{}", needed),
                                fmt::format("at most {}", limit),
                                "use smaller head dims or implementation 'naive'"});
  }

  auto plan = std::make_shared<GpuPlan>(device, problem, g);
  plan->tile_q = choice.tiling.tile_q();
  plan->tile_k = choice.tiling.tile_k;
  if (choice.splits > 1) {  // in the order of device::PartRegion
    const auto rows = static_cast<std::size_t>(choice.splits * g.batch * g.heads_q * g.seqlen_q);
    plan->add_gpu_region("partial_o", rows * static_cast<std::size_t>(g.head_dim_v) * 4);
    plan->add_gpu_region("partial_lse", rows * 4);
    plan->parts = choice.splits;
  }
  const ConfigPrinter config = print(problem, g, choice);
  GpuStep step =
      kernel_step("sm80/forward/kernel.cu", "flash_fwd_sm80", config, blocks,
                  32 * choice.tiling.warps, shared_bytes(g, choice.tiling),
                  fmt::format("tile of {} queries x {} keys · {}", choice.tiling.tile_q(),
                              choice.tiling.tile_k, stage_words(choice.tiling.stages)));
  step.shape.grid_y = static_cast<unsigned>(choice.splits);
  if (g.has_lengths) {
    const SchedulePlan schedule = add_schedule(*plan, list, choice.tiling.tile_q(), g.heads_q);
    device::RaggedForwardArguments arguments{forward_arguments(problem, g), list, schedule.schedule,
                                             cache_of(problem, g)};
    arguments.call.parts = 1;
    give_sequences(step, *plan, arguments, g.heads_q);
    patch_schedule(step.parameters, schedule, offsetof(device::RaggedForwardArguments, schedule));
    patch_cache(step.parameters, problem, offsetof(device::RaggedForwardArguments, cache));
  }
  plan->add_kernel(std::move(step));
  if (choice.splits > 1) {
    const std::int64_t rows = g.batch * g.heads_q * g.seqlen_q;
    plan->add_kernel(kernel_step("sm80/forward/merge.cu", "flash_fwd_sm80_merge",
                                 print_merge(problem, g), rows, 32 * kMergeWarps, 0,
                                 fmt::format("{} parts, {} rows", choice.splits, rows)));
  }
  explain(*plan, problem, choice);
  return std::shared_ptr<internal::PlanState>(std::move(plan));
}

}  // namespace flashlab::cuda
