#include "cuda/kernels/sm80/backward/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "api/context_state.h"
#include "cuda/kernels/sm80/backward/launch_arguments.h"
#include "cuda/launch/arguments.h"
#include "cuda/launch/planning.h"
#include "runtime/kernel_store/config.h"

namespace flashlab::cuda {
namespace {

using internal::Geometry;

constexpr int kMaxHeadDim = 256;
constexpr int kReservedSharedBytes = 1024;  // per block, by the system
constexpr unsigned kPrepareThreads = 256;
constexpr int kDimUnit = 32;  // to whose multiples head dims are padded

// For head dims up to 64, 128 and 256: the fastest first (H200), then what fits the 163 KiB of
// sm_80 and the 99 KiB of sm_86, sm_89 and sm_120.
struct Candidate {
  int max_head_dim;
  BackwardTiling tiling;
};
// clang-format off
constexpr Candidate kCandidates[] = {
    // max     tile          warps
    // dim      q    k       q  k  stages one_barrier min_blocks
    {   64, {  64, 128,      1, 4,   2,   true,   2}},
    {   64, {  64, 128,      1, 4,   2,   false,  2}},
    {   64, {  64, 128,      1, 4,   2,   false,  1}},
    {  128, {  64, 128,      2, 4,   3,   true,   1}},
    {  128, {  64, 128,      2, 4,   2,   false,  1}},
    {  128, {  32,  64,      2, 2,   2,   false,  1}},
    {  256, {  64,  64,      4, 2,   2,   false,  1}},
    {  256, {  32,  64,      2, 4,   2,   false,  1}},
    {  256, {  32,  32,      2, 2,   1,   false,  1}},
};
// clang-format on

struct BackwardChoice {
  CallForm call = CallForm::kGeneral;
  BackwardTiling tiling;
  bool copy_grad_o = false;  ///< dO is converted to the inputs' type once
  int shared_bytes = 0;
  std::int64_t tiles_q = 0, tiles_k = 0;        ///< of a head
  std::int64_t query_tiles = 0, key_tiles = 0;  ///< of all heads
  device::Sequences sequences{};                ///< of a ragged call
};

// What of a kernel's form decides about its registers.
struct BackwardForm {
  int grad_q_passes = 1;
  bool prefetch = true;  ///< fragments of the next product are read before the current one
};

// Of a warp's part of dQ, 8 features each.
int grad_q_fragments(const BackwardTiling& t, int head_dim) {
  return round_up(head_dim, kDimUnit) / (t.warps() / 2) / 8;
}

// A warp computes its part of dQ in passes of whole pairs of fragments: fewer accumulators, and
// reductions spread over more of the step. Few fragments go in one pass: their products wait for
// each other.
int grad_q_passes(const BackwardTiling& t, int head_dim, bool mask, bool by_element,
                  bool deterministic) {
  const int fragments = grad_q_fragments(t, head_dim);
  if (fragments <= 4 || deterministic) return 1;
  const int least = mask ? 4 : 2;  // with a mask 2 would spill
  // 4 would spill on sm_90 and sm_100, and with a mask and the smallest tiles on sm_120.
  if ((by_element || (mask && t.tile_k == 32)) && fragments % (least * 2) == 0) return 2;
  for (int passes : {4, 3, 2}) {
    if (fragments % (least * passes) == 0) return passes;
  }
  return 1;
}

// More than one of softcap, ALiBi and dropout take the registers that a mask takes; one does not.
bool many_features(const Problem& problem, const Geometry& g) {
  return (g.softcap > 0) + problem.alibi_slopes.has_value() + (g.dropout > 0) > 1;
}
bool judges_pairs(const Problem& problem, const Geometry& g) {
  return problem.mask || g.bounds.chunk > 0 || many_features(problem, g);
}

BackwardForm choose_form(const Problem& problem, const Geometry& g, const BackwardChoice& choice) {
  const BackwardTiling& t = choice.tiling;
  const bool deterministic = problem.options.deterministic;
  const bool mask = judges_pairs(problem, g);
  const bool by_element =
      copied_by_element(problem.q, choice.call) || copied_by_element(problem.v, choice.call);
  const int passes =
      grad_q_passes(t, static_cast<int>(g.head_dim), mask, by_element, deterministic);
  // Registers are full at 255: what these variants need on top takes the prefetch's place. The
  // other cases are what compiles without spills on sm_90 and sm_100 (NVRTC 13.0).
  const bool room = by_element ? mask || passes == 1 : !(deterministic || mask);
  const bool prefetch = t.warps_q == 1 || room || (mask && passes == 2 && t.tile_k > 32);
  return {passes, prefetch};
}

ConfigPrinter print(const Problem& problem, const Geometry& g, const BackwardChoice& choice,
                    const BackwardForm& form, bool vector_reduction) {
  const BackwardTiling& t = choice.tiling;
  ConfigPrinter config;
  print_call(config, problem, g, choice.call);
  config.integer("kTileQ", t.tile_q)
      .integer("kTileK", t.tile_k)
      .integer("kWarpsQ", t.warps_q)
      .integer("kWarpsK", t.warps_k)
      .integer("kDimUnit", kDimUnit)
      .integer("kStages", t.stages)
      .boolean("kOneBarrier", t.one_barrier)
      .integer("kMinBlocks", t.min_blocks)
      .integer("kGradQPasses", form.grad_q_passes)
      .integer("kSharedBytes", choice.shared_bytes)
      .boolean("kVectorReduction", vector_reduction)
      .boolean("kPrefetch", form.prefetch)
      .boolean("kDeterministic", problem.options.deterministic)
      .boolean("kCopyGradO", choice.copy_grad_o)
      .boolean("kRagged", g.has_lengths);
  return config;
}

void add_regions(GpuPlan& plan, const Geometry& g, const BackwardChoice& choice) {
  const std::int64_t tiles = choice.query_tiles, rows = tiles * choice.tiling.tile_q;
  const auto region = [&](const char* name, std::int64_t bytes) {
    plan.add_gpu_region(name, static_cast<std::size_t>(bytes));
  };
  // In the order of device::BackwardRegion.
  region("lse in base 2", rows * 4);
  region("delta", rows * 4);
  region("dq in fp32", rows * round_up(static_cast<int>(g.head_dim), kDimUnit) * 4);
  region("turns", plan.problem.options.deterministic ? (tiles + 2) * 4 : 0);
  if (choice.copy_grad_o) {
    const std::int64_t batch = g.ragged_q ? 1 : g.batch;
    region("d_o in 16 bits",
           batch * g.heads_q * g.seqlen_q * round_up(static_cast<int>(g.head_dim_v), kDimUnit) * 2);
  }
}

void explain(GpuPlan& plan, const Problem& problem, const BackwardChoice& choice) {
  explain_copies(plan.reasons, "q", problem.q, choice.call);
  explain_copies(plan.reasons, "k", problem.k, choice.call);
  explain_copies(plan.reasons, "v", problem.v, choice.call);
  if (choice.copy_grad_o) {
    plan.reasons.push_back("d_o is fp32: converted once, beside delta");
  } else {
    explain_copies(plan.reasons, "d_o", *problem.d_o, choice.call);
  }
  plan.reasons.push_back(problem.options.deterministic
                             ? "dQ is added in a fixed order: blocks wait for their turn"
                             : "dQ is added atomically: its last bits vary from run to run");
}

// Where there is a list: the step is a ragged call's.
void give_sequences(GpuStep& step, const GpuPlan& plan, const device::Sequences* list,
                    std::int64_t heads) {
  if (list == nullptr) return;
  const device::BackwardArguments call = backward_arguments(plan.problem, plan.geometry);
  give_sequences(step, plan, device::RaggedBackwardArguments{call, *list}, heads);
}

// Of a kernel whose blocks go through tiles of queries and heads: about as many as run at once.
void share_queries(GpuStep& step, const GpuPlan& plan, const device::Sequences* list) {
  if (list == nullptr) return;
  constexpr unsigned kBlocksEach = 8;  // of a multiprocessor
  give_sequences(step, plan, list, 1);
  const auto most = kBlocksEach * static_cast<unsigned>(plan.device().info().multiprocessors);
  step.shape.grid_x = std::min(step.shape.grid_x, most);
}

void add_steps(GpuPlan& plan, const ConfigPrinter& config, const BackwardChoice& choice,
               bool vector_reduction) {
  const Geometry& g = plan.geometry;
  const BackwardTiling& t = choice.tiling;
  const std::int64_t key_blocks = choice.key_tiles;
  BackwardRows rows{choice.call, t.tile_q, kDimUnit, choice.query_tiles};
  if (g.has_lengths) rows.sequences = &choice.sequences;
  plan.add_kernel(
      prepare_step(plan, rows,
                   {.zeros = true,
                    .turns = plan.problem.options.deterministic,
                    .copy_grad_o = choice.copy_grad_o},
                   fmt::format("delta, LSE in base 2, zeros · tile of {} queries", t.tile_q)));
  if (key_blocks > 0) {
    GpuStep step = kernel_step("sm80/backward/kernel.cu", "flash_bwd_sm80", config, key_blocks,
                               32 * t.warps(), choice.shared_bytes,
                               fmt::format("tile of {} keys, in steps of {} queries · {}", t.tile_k,
                                           t.tile_q, stage_words(t.stages)));
    give_sequences(step, plan, rows.sequences, g.heads_k);
    plan.add_kernel(std::move(step));
  }
  plan.add_kernel(finish_step(plan, rows, {t.warps_q, t.warps_k, t.tile_k, vector_reduction},
                              "dQ = scale dQ_fp32 in dq's type"));
  if (plan.problem.d_sinks) plan.add_kernel(sinks_step(plan, rows));
}

}  // namespace

GpuStep prepare_step(const GpuPlan& plan, const BackwardRows& rows, const PreparedRows& prepared,
                     std::string words) {
  const Problem& problem = plan.problem;
  const Geometry& g = plan.geometry;
  ConfigPrinter config;
  print_element(config, "kElement", problem.q.dtype);
  print_element(config, "kO", problem.o.dtype);
  print_element(config, "kGradO", problem.d_o->dtype);
  config.integer("kHeadDim", g.head_dim)
      .integer("kHeadDimV", g.head_dim_v)
      .integer("kAlignO", kernel_alignment(problem.o, rows.call))
      .integer("kAlignGradO", kernel_alignment(*problem.d_o, rows.call))
      .boolean("kSoftcap", g.softcap > 0)
      .boolean("kWideCap", softcap_is_wide(g))
      .boolean("kLseGradient", problem.d_lse.has_value())
      .integer("kTileQ", rows.tile_q)
      .integer("kDimUnit", rows.dim_unit)
      .boolean("kTickets", prepared.turns)
      .boolean("kCountsHeads", rows.counts_heads)
      .boolean("kZeroGradQ", prepared.zeros)
      .boolean("kCopyGradO", prepared.copy_grad_o)
      .boolean("kRagged", rows.sequences != nullptr);
  GpuStep step = kernel_step("sm80/backward/prepare.cu", "flash_bwd_sm80_prepare", config,
                             rows.blocks, kPrepareThreads, 0, std::move(words));
  share_queries(step, plan, rows.sequences);
  return step;
}

GpuStep finish_step(const GpuPlan& plan, const BackwardRows& rows, const FinishedRows& finished,
                    std::string words) {
  const Problem& problem = plan.problem;
  ConfigPrinter config;
  print_element(config, "kGradQ", problem.dq->dtype);
  config.integer("kHeadDim", plan.geometry.head_dim)
      .integer("kAlignGradQ", kernel_alignment(*problem.dq, rows.call))
      .boolean("kAccumulate", problem.options.gradient_mode == GradientMode::kAccumulate)
      .integer("kTileQ", rows.tile_q)
      .integer("kTileK", finished.tile_k)
      .integer("kWarpsQ", finished.warps_q)
      .integer("kWarpsK", finished.warps_k)
      .integer("kDimUnit", rows.dim_unit)
      .boolean("kVectorReduction", finished.vectors)
      .boolean("kCountsHeads", rows.counts_heads)
      .boolean("kRagged", rows.sequences != nullptr);
  GpuStep step =
      kernel_step("sm80/backward/finish.cu", "flash_bwd_sm80_finish", config, rows.blocks,
                  32 * finished.warps_q * finished.warps_k, 0, std::move(words));
  share_queries(step, plan, rows.sequences);
  return step;
}

GpuStep sinks_step(const GpuPlan& plan, const BackwardRows& rows) {
  using Arguments = device::SinkGradientArguments;
  constexpr std::int64_t kSinkThreads = 1024;  // kernels/sm80/backward/sinks.cu
  const Problem& problem = plan.problem;
  ConfigPrinter config;
  config.integer("kTileQ", rows.tile_q)
      .boolean("kAccumulate", problem.options.gradient_mode == GradientMode::kAccumulate)
      .boolean("kRagged", rows.sequences != nullptr);
  GpuStep step =
      kernel_step("sm80/backward/sinks.cu", "flash_bwd_sinks", config, plan.geometry.heads_q,
                  kSinkThreads, 0, "d_sinks = -sum exp(sink - LSE) delta");
  Arguments arguments{};
  arguments.call = backward_arguments(problem, plan.geometry);
  arguments.scale = rows.delta_is_whole ? 1.0f : arguments.call.dropout.scale;
  if (rows.sequences != nullptr) arguments.sequences = *rows.sequences;
  step.parameters = runtime::ParameterBlock(arguments);
  patch_addresses(step.parameters, problem, static_cast<int>(plan.regions.size()));
  patch_sequences(step.parameters, problem, offsetof(Arguments, sequences));
  step.parameters.pointer(offsetof(Arguments, sinks), {.buffer = buffer_of(TensorRole::kSinks)})
      .pointer(offsetof(Arguments, d_sinks), {.buffer = buffer_of(TensorRole::kDSinks)})
      .pointer(offsetof(Arguments, delta), rows.delta);
  return step;
}

std::optional<BackwardTiling> choose_backward_tiling(int head_dim, int head_dim_v, bool mask,
                                                     bool deterministic, int shared_limit) {
  for (const auto& [max_head_dim, t] : kCandidates) {
    if (std::max(head_dim, head_dim_v) > max_head_dim) continue;
    // Registers are full: with a second buffer's addresses these would spill.
    if (t.one_barrier && (t.warps_q == 1 ? mask : deterministic)) continue;
    const int limit = (shared_limit + kReservedSharedBytes) / t.min_blocks - kReservedSharedBytes;
    if (shared_bytes(t, head_dim, head_dim_v, kDimUnit) <= limit) return t;
  }
  return std::nullopt;
}

Result<std::shared_ptr<internal::PlanState>> plan_sm80_backward(
    const internal::ContextState& context, const Problem& problem, const Geometry& g) {
  GpuDevice& device = *context.gpu();
  const DeviceInfo& info = device.info();
  if (g.head_dim > kMaxHeadDim || g.head_dim_v > kMaxHeadDim) {
    return Status::unsupported({"head_dim of implementation 'sm80'",
                                fmt::format("{} and {} (v)", g.head_dim, g.head_dim_v),
                                fmt::format("at most {}", kMaxHeadDim),
                                "use implementation 'naive'"});
  }
  const std::int64_t longest = std::max(g.seqlen_q, g.seqlen_k);
  if (longest > kMaxLength) {
    return too_large("sequence length", longest, kMaxLength,
                     "split the keys into several calls and add the gradients");
  }
  const int dim = static_cast<int>(g.head_dim), dim_v = static_cast<int>(g.head_dim_v);
  const auto tiling = choose_backward_tiling(
      dim, dim_v, judges_pairs(problem, g),
      problem.options.deterministic || many_features(problem, g), info.shared_bytes_per_block);
  if (!tiling) {
    return Status::unsupported(
        {"shared memory of one block", fmt::format("{} bytes", info.shared_bytes_per_block),
         fmt::format("what head dims {} and {} need at the smallest tiles", dim, dim_v),
         "use smaller head dims or implementation 'naive'"});
  }
  BackwardChoice choice;
  choice.call = call_form(problem);
  choice.tiling = *tiling;
  choice.copy_grad_o = problem.d_o->dtype == DType::kFp32;
  choice.shared_bytes = shared_bytes(*tiling, dim, dim_v, kDimUnit);
  choice.tiles_q = divide_up(g.seqlen_q, tiling->tile_q);
  choice.tiles_k = divide_up(g.seqlen_k, tiling->tile_k);
  choice.query_tiles = g.batch * g.heads_q * choice.tiles_q;
  choice.key_tiles = g.batch * g.heads_k * choice.tiles_k;
  if (g.has_lengths) {
    choice.sequences = sequences_of(problem, g, tiling->tile_q, tiling->tile_k);
    choice.query_tiles = g.heads_q * choice.sequences.slots_q;
    choice.key_tiles = g.heads_k * choice.sequences.slots_k;
  }
  const std::int64_t blocks = std::max(choice.query_tiles, choice.key_tiles);
  if (blocks > INT32_MAX) {
    return too_large("blocks of one launch", blocks, INT32_MAX, "split the batch");
  }
  auto plan = std::make_shared<GpuPlan>(device, problem, g);
  plan->tile_q = choice.tiling.tile_q;
  plan->tile_k = choice.tiling.tile_k;
  add_regions(*plan, g, choice);
  // red.global.add.v4.f32 begins with sm_90.
  const bool vector_reduction = info.major >= 9;
  const BackwardForm form = choose_form(problem, g, choice);
  const ConfigPrinter config = print(problem, g, choice, form, vector_reduction);
  add_steps(*plan, config, choice, vector_reduction);
  explain(*plan, problem, choice);
  return std::shared_ptr<internal::PlanState>(std::move(plan));
}

}  // namespace flashlab::cuda
