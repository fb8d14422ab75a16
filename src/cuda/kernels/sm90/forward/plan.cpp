#include "cuda/kernels/sm90/forward/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <numeric>
#include <utility>

#include "api/context_state.h"
#include "cuda/kernels/schedule/plan.h"
#include "cuda/kernels/sm90/forward/launch_arguments.h"
#include "cuda/kernels/sm90/forward/limits_plan.h"
#include "cuda/kernels/sm90/forward/order_plan.h"
#include "cuda/launch/arguments.h"
#include "cuda/launch/config.h"
#include "cuda/launch/planning.h"
#include "cuda/launch/tensor_map.h"
#include "runtime/kernel_store/config.h"

namespace flashlab::cuda {
namespace {

using device::Sm90ForwardArguments;
using internal::Geometry;
using namespace sm90_forward;  // NOLINT: of this room

constexpr int kWarpgroupThreads = 128;
constexpr std::int64_t kUsualTile = 192;  // queries of three consumers
constexpr int kMaxTiles = 1 << 30;
constexpr int kMergeWarps = 4;  // kernels/sm90/forward/merge.cu

int shared_bytes_of(const Geometry& g, const Sm90ForwardTiling& t) {
  return shared_bytes(t, static_cast<int>(g.head_dim), static_cast<int>(g.head_dim_v),
                      g.has_lengths);
}

// Calls that share nothing have kernels without the means to. One more kernel serves all others,
// and masks read one by one. Tiles of few keys have one kernel, which may share keys. With ALiBi,
// whose packed heads take a register too many, packed calls have their own, and dropout packs none.
ConfigPrinter print(const Problem& problem, const Geometry& g, const Choice& choice) {
  const Sm90ForwardTiling& t = choice.tiling;
  const bool general = choice.shares() || choice.call != CallForm::kPairs;
  const bool few_keys = for_few_keys(t);
  const bool may_pack = !few_keys && !problem.alibi_slopes && g.dropout == 0;
  const bool packs = choice.group > 1 || (general && may_pack && !g.has_lengths);
  ConfigPrinter config;
  print_call(config, problem, g, choice.call);
  config.integer("kConsumers", t.consumers)
      .integer("kBlockKeys", t.block_keys)
      .integer("kStagesQ", t.stages_q)
      .integer("kStagesK", t.stages_k)
      .integer("kStagesV", t.stages_v)
      .boolean("kTurns", t.turns)
      .boolean("kStream", (general || few_keys) && !g.has_lengths)
      .boolean("kPackGroup", packs)
      .boolean("kMaskWide", takes_wide_mask(problem, g) && choice.call == CallForm::kPairs)
      .boolean("kSinks", problem.sinks.has_value())
      .boolean("kRagged", g.has_lengths)
      .boolean("kCached", has_cache(problem))
      .integer("kSharedBytes", shared_bytes_of(g, t));
  return config;
}

/// Workspace: where blocks count their tiles, and the parts of tiles. Returns what both kernels are
/// launched with.
runtime::ParameterBlock parameters(GpuPlan& plan, const Choice& choice) {
  const Problem& problem = plan.problem;
  Sm90ForwardArguments arguments{};
  arguments.call = forward_arguments(problem, plan.geometry);
  arguments.call.shape.packed_log2 = std::countr_zero(static_cast<unsigned>(choice.group));
  arguments.order = choice.order;
  arguments.stream = choice.stream;
  runtime::ParameterBlock block(arguments);
  patch_addresses(block, problem, 0, offsetof(Sm90ForwardArguments, call));
  const auto map = [&](std::size_t offset, TensorRole role, const TensorSpec& spec, int rows,
                       std::int64_t group = 1) {
    block.tensor_map(offset, {buffer_of(role)}, tensor_map(spec, rows, group));
  };
  map(offsetof(Sm90ForwardArguments, q), TensorRole::kQ, problem.q, kWarpgroupRows, choice.group);
  map(offsetof(Sm90ForwardArguments, k), TensorRole::kK, problem.k, choice.tiling.block_keys);
  map(offsetof(Sm90ForwardArguments, v), TensorRole::kV, problem.v, choice.tiling.block_keys);
  const auto region = [&](std::size_t offset, const char* name, std::int64_t bytes) {
    const int index = plan.add_gpu_region(name, static_cast<std::size_t>(bytes));
    block.pointer(offset, {buffer_of_region(index)});
    return index;
  };
  if (choice.group > 1) {
    plan.reasons.push_back("the query heads of a group share a tile: few queries per head");
  }
  if (choice.counts()) {
    const int counter =
        region(offsetof(Sm90ForwardArguments, order) + offsetof(device::TileOrder, counter),
               "next_tile", sizeof(int));
    plan.add_zero("next_tile_zero", counter);
    plan.reasons.push_back("blocks take tiles of queries as they come: causal tiles differ");
  }
  if (choice.streams()) {
    constexpr std::size_t kStream = offsetof(Sm90ForwardArguments, stream);
    const std::int64_t rows = std::int64_t{choice.stream.slots()} * choice.tiling.tile_q();
    region(kStream + offsetof(device::KeyStream, o), "parts_o",
           rows * plan.geometry.head_dim_v * std::int64_t{sizeof(float)});
    region(kStream + offsetof(device::KeyStream, lse), "parts_lse",
           rows * std::int64_t{sizeof(float)});
    plan.reasons.push_back(fmt::format(
        "the keys of {} query tiles are shared out evenly in {} ranges: whole tiles would leave "
        "multiprocessors idle",
        choice.stream.tiles, choice.stream.ranges));
  }
  return block;
}

// Keys that one copy of a cached call brings: of a page, or all of a step.
int keys_of_part(const Geometry& g, const Sm90ForwardTiling& tiling) {
  return static_cast<int>(std::gcd(g.page_size, std::int64_t{tiling.block_keys}));
}

// The same of a ragged call, whose tiles a kernel before puts in order.
runtime::ParameterBlock ragged_parameters(GpuPlan& plan, const Choice& choice,
                                          const device::Sequences& list) {
  using Arguments = device::Sm90RaggedForwardArguments;
  using Cached = device::Sm90CachedForwardArguments;
  static_assert(offsetof(Cached, ragged) == 0 && offsetof(Arguments, forward) == 0);
  const Problem& problem = plan.problem;
  const bool cached = has_cache(problem);
  const int key_box =
      cached ? keys_of_part(plan.geometry, choice.tiling) : choice.tiling.block_keys;
  const int rows = choice.tiling.tile_q() / static_cast<int>(choice.group);
  const SchedulePlan schedule =
      add_schedule(plan, list, rows, plan.geometry.heads_q / choice.group);
  Cached all{};
  Arguments& arguments = all.ragged;
  arguments.forward.call = forward_arguments(problem, plan.geometry);
  arguments.forward.call.shape.packed_log2 = std::countr_zero(static_cast<unsigned>(choice.group));
  arguments.sequences = list;
  arguments.schedule = schedule.schedule;
  const auto between = [](const TensorSpec& spec) {
    return static_cast<int>(rows_between_entries(spec));
  };
  arguments.between_q = between(problem.q);
  arguments.between_k = between(problem.k);
  arguments.between_v = between(problem.v);
  all.cache = cache_of(problem, plan.geometry);
  all.part_log2 = std::countr_zero(static_cast<unsigned>(key_box));
  all.parts_log2 = std::countr_zero(static_cast<unsigned>(choice.tiling.block_keys / key_box));
  auto block = cached ? runtime::ParameterBlock(all) : runtime::ParameterBlock(arguments);
  if (cached) patch_cache(block, problem, offsetof(Cached, cache));
  patch_addresses(block, problem, 0,
                  offsetof(Arguments, forward) + offsetof(Sm90ForwardArguments, call));
  patch_sequences(block, problem, offsetof(Arguments, sequences));
  patch_schedule(block, schedule, offsetof(Arguments, schedule));
  const auto map = [&](std::size_t offset, TensorRole role, const TensorSpec& spec, int box,
                       std::int64_t group = 1) {
    block.tensor_map(offsetof(Arguments, forward) + offset, {buffer_of(role)},
                     bounded_map(spec, box, group));
  };
  map(offsetof(Sm90ForwardArguments, q), TensorRole::kQ, problem.q, kWarpgroupRows, choice.group);
  map(offsetof(Sm90ForwardArguments, k), TensorRole::kK, problem.k, key_box);
  map(offsetof(Sm90ForwardArguments, v), TensorRole::kV, problem.v, key_box);
  plan.reasons.push_back("blocks take tiles of queries as they come, those with most keys first");
  if (problem.block_table) {
    plan.reasons.push_back(fmt::format(
        "keys are copied in boxes of {} rows of a page, found in block_table 32 boxes ahead",
        key_box));
  }
  return block;
}

std::string words(const Choice& choice, std::int64_t tiles) {
  const Sm90ForwardTiling& t = choice.tiling;
  return fmt::format(
      "{} tiles of {} queries, in steps of {} keys · {} of K, {} of V · {} warpgroups multiply, "
      "one copies",
      tiles, t.tile_q(), t.block_keys, stage_words(t.stages_k), stage_words(t.stages_v),
      t.consumers);
}

}  // namespace

Sm90ForwardTiling sm90_forward_rule(const DeviceInfo& device, const Problem& problem,
                                    const Geometry& g) {
  Sm90ForwardNeeds needs = sm90_forward_needs(problem, g);
  const Sm90ForwardTiling t = choose_sm90_forward_tiling(needs, device.shared_bytes_per_block);
  needs.shares = choose(problem, g, device, t).shares();
  return needs.shares ? choose_sm90_forward_tiling(needs, device.shared_bytes_per_block) : t;
}

Sm90ForwardNeeds sm90_forward_needs(const Problem& problem, const Geometry& g) {
  const auto tiles_of = [&](std::int64_t rows) {
    return g.batch * g.heads_q * ((g.seqlen_q + rows - 1) / rows);
  };
  return {.head_dim = static_cast<int>(g.head_dim),
          .head_dim_v = static_cast<int>(g.head_dim_v),
          .seqlen_k = usual_lengths(problem, g).keys,
          .bounded = g.bounds.bounded(),
          .window = g.bounds.left != g.bounds.kUnbounded,
          .score_terms = has_score_terms(problem, g),
          .many_score_terms = has_many_score_terms(problem, g),
          .few_tiles = tiles_of(kUsualTile) < kNominalMultiprocessors,
          .one_round =
              packed_heads(problem, g) == 1 && tiles_of(kWarpgroupRows) <= kNominalMultiprocessors,
          .seqlen_q = g.seqlen_q,
          .packed = packed_heads(problem, g) > 1,
          .ragged = g.has_lengths};
}

Result<std::shared_ptr<internal::PlanState>> plan_sm90_forward(
    const internal::ContextState& context, const Problem& problem, const Geometry& g) {
  const GpuDevice& device = *context.gpu();
  if (Status s = check(problem, g); !s.ok()) return s;
  if (Status s = check_worth(problem, g); !s.ok()) return s;
  const Sm90ForwardTiling tiling = sm90_forward_rule(device.info(), problem, g);
  Choice choice = choose(problem, g, device.info(), tiling);
  const device::Sequences list =
      sequences_of(problem, g, tiling.tile_q() / static_cast<int>(choice.group), tiling.block_keys);
  const std::int64_t ordered = g.has_lengths ? list.slots_q * (g.heads_q / choice.group) : 0;
  const std::int64_t rows_of_heads =
      g.has_lengths ? ordered * kWarpgroupRows : g.batch * g.heads_q * g.seqlen_q;
  if (rows_of_heads / kWarpgroupRows > kMaxTiles || g.batch * g.heads_q > kMaxTiles) {
    return unsupported("query rows of implementation 'sm90'", fmt::format("{}", rows_of_heads),
                       fmt::format("at most {}", std::int64_t{kMaxTiles} * kWarpgroupRows));
  }
  auto plan = std::make_shared<GpuPlan>(device, problem, g);
  if (g.has_lengths) {
    choice.grid = static_cast<int>(std::min<std::int64_t>(ordered, device.info().multiprocessors));
  }
  plan->tile_q = choice.tiling.tile_q();
  plan->tile_k = choice.tiling.block_keys;
  const ConfigPrinter config = print(problem, g, choice);
  const std::int64_t tiles = g.has_lengths ? ordered : choice.order.tiles + choice.stream.tiles;
  GpuStep step = kernel_step("sm90/forward/kernel.cu", "flash_fwd_sm90", config, choice.grid,
                             (choice.tiling.consumers + 1) * kWarpgroupThreads,
                             shared_bytes_of(g, choice.tiling), words(choice, tiles));
  step.parameters =
      g.has_lengths ? ragged_parameters(*plan, choice, list) : parameters(*plan, choice);
  step.shape.programmatic = g.has_lengths;
  GpuStep merge =
      kernel_step("sm90/forward/merge.cu", "flash_fwd_sm90_merge", config,
                  choice.stream.tiles * choice.tiling.tile_q() / kMergeWarps, 32 * kMergeWarps, 0,
                  fmt::format("parts of {} tiles", choice.stream.tiles));
  merge.parameters = step.parameters;
  merge.shape.programmatic = true;
  plan->add_kernel(std::move(step));
  if (choice.streams()) plan->add_kernel(std::move(merge));
  return std::shared_ptr<internal::PlanState>(std::move(plan));
}

}  // namespace flashlab::cuda
