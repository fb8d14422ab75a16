#include "cuda/kernels/sm80/backward_fp32/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "api/context_state.h"
#include "cuda/kernels/sm80/backward/plan.h"
#include "cuda/kernels/sm80/backward_fp32/tiles.h"
#include "cuda/kernels/sm80/terms/plan.h"
#include "cuda/kernels/sm80/terms/tiles.h"
#include "cuda/launch/arguments.h"
#include "cuda/launch/config.h"
#include "cuda/launch/planning.h"
#include "runtime/cuda/device.h"

namespace flashlab::cuda {
namespace {

using internal::Geometry;

constexpr int kMaxHeadDim = 256;
constexpr unsigned kRowThreads = 256;
constexpr unsigned kPlainThreads = 256;

constexpr int kSequenceBytes = 1024;  // what a block keeps of its sequence, at most

struct Choice {
  BackwardFp32Tiling tiling;
  BackwardFp32Tiling guarded;
  bool guarded_fits = false;
  int terms = 2;
  int plain_tile = 32;
  std::int64_t query_tiles = 0;  ///< of 64 rows, all heads
  std::int64_t key_blocks = 0;   ///< all heads
  int shared_limit = 0;
  device::Sequences sequences{};  ///< of a ragged call, in tiles of 64 rows
};

struct Regions {
  SplitRegions split;
  int grad_q = -1, rows = -1, guard = -1, turns = -1;
};

int plain_shared_bytes(int tile, int head_dim, int head_dim_v) {
  const int rows =
      2 * tile *
      (device::backward_fp32_padded(head_dim) + 4 + device::backward_fp32_padded(head_dim_v) + 4);
  return 4 * (rows + 2 * tile * (tile + 1) + 2 * tile);
}

Choice choose(const Problem& problem, const Geometry& g, const DeviceInfo& device) {
  const int dim = static_cast<int>(g.head_dim), dim_v = static_cast<int>(g.head_dim_v);
  Choice choice;
  choice.terms = problem.options.precision == Precision::kTf32 ? 1 : 2;
  choice.shared_limit = device.shared_bytes_per_block - (g.has_lengths ? kSequenceBytes : 0);
  choice.tiling = choose_backward_fp32_tiling(dim, dim_v, choice.terms, choice.shared_limit);
  choice.guarded =
      choose_backward_fp32_tiling(dim, dim_v, device::kGuardedTerms, choice.shared_limit);
  choice.guarded_fits = backward_fp32_shared_bytes(choice.guarded, dim, dim_v,
                                                   device::kGuardedTerms) <= choice.shared_limit;
  // A mark is for the keys of a block of the main kernel: the guarded one may have fewer.
  choice.guarded.warps =
      std::min(choice.guarded.warps, choice.tiling.warps * choice.guarded.groups);
  choice.plain_tile = device::backward_fp32_padded(std::max(dim, dim_v)) <= 128 ? 32 : 16;
  choice.query_tiles =
      g.batch * g.heads_q * divide_up(g.seqlen_q, std::int64_t{device::kSplitRows});
  choice.key_blocks =
      g.batch * g.heads_k * divide_up(g.seqlen_k, std::int64_t{choice.tiling.keys()});
  if (g.has_lengths) {
    choice.sequences = sequences_of(problem, g, device::kSplitRows, device::kSplitRows);
    choice.query_tiles = g.heads_q * choice.sequences.slots_q;
    choice.key_blocks =
        g.heads_k * sequences_of(problem, g, device::kSplitRows, choice.tiling.keys()).slots_k;
  }
  return choice;
}

// Turns: a ticket per kernel, then a counter per kernel, part, query head and step.
std::size_t turn_bytes(const Geometry& g, const Choice& choice) {
  const std::int64_t steps = g.has_lengths
                                 ? choice.query_tiles * (device::kSplitRows / device::kTurnRows)
                                 : g.batch * g.heads_q * divide_up(g.seqlen_q, device::kTurnRows);
  return static_cast<std::size_t>(4 * device::kPaths * (1 + choice.tiling.parts * steps));
}

Regions add_regions(GpuPlan& plan, const Problem& problem, const Geometry& g,
                    const Choice& choice) {
  const std::int64_t rows = choice.query_tiles * std::int64_t{device::kSplitRows};
  Regions r;
  r.split =
      add_split_regions(plan, g, {.q = true, .k = true, .v = true, .grad_o = true}, choice.terms);
  r.grad_q = plan.add_gpu_region(
      "grad_q_sums", static_cast<std::size_t>(
                         rows * device::backward_fp32_padded(static_cast<int>(g.head_dim)) * 4));
  r.rows = plan.add_gpu_region(
      "rows", static_cast<std::size_t>(rows * 8 + choice.query_tiles *
                                                      std::int64_t{sizeof(device::QueryTile)}));
  r.guard = plan.add_gpu_region("guard", static_cast<std::size_t>(choice.key_blocks * 4));
  if (problem.options.deterministic) {
    r.turns = plan.add_gpu_region("turns", turn_bytes(g, choice));
  }
  return r;
}

// What a kernel is told; `wide` for the one that multiplies three bf16 terms.
ConfigPrinter print(const Problem& problem, const Geometry& g, const Choice& choice,
                    const Regions& regions, bool wide) {
  const BackwardFp32Tiling& t = wide ? choice.guarded : choice.tiling;
  const int terms = wide ? device::kGuardedTerms : choice.terms;
  const int dim = static_cast<int>(g.head_dim), dim_v = static_cast<int>(g.head_dim_v);
  ConfigPrinter config;
  print_call(config, problem, g, std::max(call_form(problem), CallForm::kAligned));
  print_split(config, regions.split, choice.terms);
  config.integer("kWarps", t.warps)
      .integer("kQueryGroups", t.groups)
      .integer("kRows", t.rows)
      .integer("kStages", t.stages)
      .integer("kParts", t.parts)
      .integer("kMinBlocks", t.min_blocks)
      .boolean("kWideTerms", wide)
      .boolean("kWideFits", choice.guarded_fits)
      .integer("kMarkedKeys", choice.tiling.keys())
      .integer("kPlainTile", choice.plain_tile)
      .boolean("kRagged", g.has_lengths)
      .boolean("kDeterministic", problem.options.deterministic)
      .integer("kGradQRegion", regions.grad_q)
      .integer("kRowRegion", regions.rows)
      .integer("kGuardRegion", regions.guard)
      .integer("kTurnRegion", regions.turns)
      .integer("kSharedBytes", backward_fp32_shared_bytes(t, dim, dim_v, terms))
      .integer("kPlainSharedBytes", plain_shared_bytes(choice.plain_tile, dim, dim_v));
  return config;
}

std::string words(const BackwardFp32Tiling& t) {
  return fmt::format("tile of {} keys, in steps of {} queries · {}", t.keys(), t.rows,
                     stage_words(t.stages));
}

struct Launch {
  const char* entry;
  const char* source;
  std::int64_t blocks;
  unsigned threads;
  int shared_bytes;
  std::string words;
  std::vector<int> after;
};

int add_launch(GpuPlan& plan, const Choice& choice, const ConfigPrinter& config,
               const Launch& launch) {
  GpuStep step = kernel_step(launch.source, launch.entry, config, launch.blocks, launch.threads,
                             launch.shared_bytes, launch.words);
  step.after = launch.after;
  if (plan.geometry.has_lengths) {
    const device::RaggedBackwardArguments arguments{backward_arguments(plan.problem, plan.geometry),
                                                    choice.sequences};
    give_sequences(step, plan, arguments, 1);
  }
  return plan.add_kernel(std::move(step));
}

// Three bf16 terms for the blocks that the guard marked so.
int add_guarded(GpuPlan& plan, const Problem& problem, const Geometry& g, const Choice& choice,
                const Regions& regions, std::vector<int> after) {
  const BackwardFp32Tiling& t = choice.guarded;
  const ConfigPrinter config = print(problem, g, choice, regions, true);
  const std::int64_t blocks = choice.key_blocks * (choice.tiling.keys() / t.keys()) * t.parts;
  return add_launch(
      plan, choice, config,
      {"flash_bwd_fp32_guarded", "sm80/backward_fp32/guarded.cu", blocks,
       static_cast<unsigned>(32 * t.warps),
       backward_fp32_shared_bytes(t, static_cast<int>(g.head_dim), static_cast<int>(g.head_dim_v),
                                  device::kGuardedTerms),
       "the blocks that the guard marked so, in three bf16 terms · " + words(t), std::move(after)});
}

void add_launches(GpuPlan& plan, const Problem& problem, const Geometry& g, const Choice& choice,
                  const Regions& regions) {
  const BackwardFp32Tiling& t = choice.tiling;
  const int dim = static_cast<int>(g.head_dim), dim_v = static_cast<int>(g.head_dim_v);
  const ConfigPrinter config = print(problem, g, choice, regions, false);
  constexpr const char* kRowSource = "sm80/backward_fp32/rows.cu";
  const bool in_turns = regions.turns >= 0;  // dQ is added in a fixed order, kernel by kernel
  const int zero = in_turns ? plan.add_zero("turns", regions.turns) : -1;
  const int split = add_split_step(plan, problem, g, regions.split, choice.terms);
  const int rows = add_launch(plan, choice, config,
                              {"flash_bwd_fp32_rows",
                               kRowSource,
                               choice.query_tiles,
                               kRowThreads,
                               0,
                               "delta, LSE in base 2, zeros · tile of 64 queries",
                               {split}});
  std::vector<int> sums{rows};  // what dQ's sums come from
  if (choice.key_blocks > 0) {
    // Each of the three takes the blocks of keys that the guard marked for it.
    std::vector<int> marked{
        add_launch(plan, choice, config,
                   {"flash_bwd_fp32_guard",
                    kRowSource,
                    choice.key_blocks,
                    32,
                    0,
                    fmt::format("which kernel takes a tile of {} keys", t.keys()),
                    {rows}})};
    if (in_turns) marked.push_back(zero);
    sums.clear();
    const auto after = [&] {
      return in_turns && !sums.empty() ? std::vector{sums.back()} : marked;
    };
    sums.push_back(
        add_launch(plan, choice, config,
                   {"flash_bwd_fp32", "sm80/backward_fp32/kernel.cu", choice.key_blocks * t.parts,
                    static_cast<unsigned>(32 * t.warps),
                    backward_fp32_shared_bytes(t, dim, dim_v, choice.terms), words(t), after()}));
    if (choice.guarded_fits) {
      sums.push_back(add_guarded(plan, problem, g, choice, regions, after()));
    }
    sums.push_back(
        add_launch(plan, choice, config,
                   {"flash_bwd_fp32_plain", "sm80/backward_fp32/plain.cu", choice.key_blocks,
                    kPlainThreads, plain_shared_bytes(choice.plain_tile, dim, dim_v),
                    "the blocks that the guard marked so, in plain fp32", after()}));
  }
  add_launch(plan, choice, config,
             {"flash_bwd_fp32_result", kRowSource, choice.query_tiles, kRowThreads, 0,
              "dQ, dK, dV in their types · tile of 64 queries", std::move(sums)});
  if (!problem.d_sinks) return;
  BackwardRows tiles;
  tiles.tile_q = device::kSplitRows;
  tiles.delta = {buffer_of_region(regions.rows), choice.query_tiles * device::kSplitRows * 4};
  tiles.delta_is_whole = true;
  if (g.has_lengths) tiles.sequences = &choice.sequences;
  plan.add_kernel(sinks_step(plan, tiles));
}

void explain(GpuPlan& plan, const Problem& problem, const Choice& choice) {
  plan.reasons.push_back(choice.terms == 2
                             ? "ieee: two scaled fp16 terms, three products; blocks that meet too "
                               "wide a range take three bf16 terms, with Inf or NaN plain fp32"
                             : "tf32: one scaled fp16 term, which has tf32's 11 significant bits");
  if (plan.geometry.softcap > 0 || problem.alibi_slopes || plan.geometry.dropout > 0) {
    plan.reasons.push_back("softcap, ALiBi and dropout: pairs are made in plain fp32, one by one");
  }
  if (problem.options.deterministic) {
    plan.reasons.push_back("deterministic: blocks add to dq in the order of their keys");
  }
  if (choice.tiling.parts > 1) {
    plan.reasons.push_back(fmt::format(
        "head dim beyond 128: {} blocks share the columns of one tile of keys, scores are made {}",
        choice.tiling.parts, choice.tiling.parts == 2 ? "twice" : "by each"));
  }
}

}  // namespace

int backward_fp32_shared_bytes(const BackwardFp32Tiling& t, int head_dim, int head_dim_v,
                               int terms) {
  return device::shared_bytes({t.keys(), t.rows, t.stages, terms, head_dim, head_dim_v});
}

BackwardFp32Tiling choose_backward_fp32_tiling(int head_dim, int head_dim_v, int terms,
                                               int shared_limit) {
  using Tiling = BackwardFp32Tiling;
  const int widest = device::backward_fp32_padded(std::max(head_dim, head_dim_v));
  const int parts = widest > 128 ? 2 : 1;  // registers hold at most 16 x 256 sums per warp
  const int rows = widest <= 16 ? 64 : (widest > 128 ? 16 : 32);
  const int few = widest > 64 ? 16 : rows;  // two stages' addresses take registers, too
  // Two blocks per multiprocessor hide each other's barriers: each may have half of the memory,
  // less the 1024 bytes that the driver takes of every block.
  const int half = (shared_limit - 1024) / 2;
  const auto fits = [&](const Tiling& t) {
    return backward_fp32_shared_bytes(t, head_dim, head_dim_v, terms) <=
           (t.min_blocks == 2 ? half : shared_limit);
  };
  const std::array copied = {
      Tiling{.warps = 4, .rows = rows, .stages = 2, .parts = parts, .min_blocks = 2},
      Tiling{.warps = 4, .rows = rows, .stages = 1, .parts = parts, .min_blocks = 2},
      Tiling{.warps = 4, .rows = few, .stages = 2, .parts = parts, .min_blocks = 1},
      Tiling{.warps = 4, .rows = rows, .stages = 1, .parts = parts, .min_blocks = 1},
      Tiling{.warps = 4, .rows = 16, .stages = 1, .parts = parts, .min_blocks = 1},
      Tiling{.warps = 2, .rows = 16, .stages = 1, .parts = parts, .min_blocks = 1},
      Tiling{.warps = 1, .rows = 16, .stages = 1, .parts = parts, .min_blocks = 1},
  };
  // Three terms leave room for one wide block: two groups of warps keep it busy.
  const std::array made = {
      Tiling{.warps = 4, .rows = few, .stages = 1, .parts = parts, .min_blocks = 2},
      Tiling{.warps = 8, .groups = 2, .rows = 32, .stages = 1, .parts = parts, .min_blocks = 1},
      Tiling{.warps = 4, .groups = 2, .rows = 32, .stages = 1, .parts = parts, .min_blocks = 1},
      Tiling{.warps = 2, .rows = 16, .stages = 1, .parts = parts, .min_blocks = 1},
      Tiling{.warps = 1, .rows = 16, .stages = 1, .parts = parts, .min_blocks = 1},
  };
  if (terms == device::kGuardedTerms) {
    const auto* at = std::find_if(made.begin(), made.end(), fits);
    return at == made.end() ? made.back() : *at;
  }
  const auto* at = std::find_if(copied.begin(), copied.end(), fits);
  return at == copied.end() ? copied.back() : *at;
}

Result<std::shared_ptr<internal::PlanState>> plan_sm80_backward_fp32(
    const internal::ContextState& context, const Problem& problem, const Geometry& g) {
  GpuDevice& device = *context.gpu();
  if (std::max(g.head_dim, g.head_dim_v) > kMaxHeadDim) {
    return too_large("head_dim of implementation 'sm80'", std::max(g.head_dim, g.head_dim_v),
                     kMaxHeadDim, "use implementation 'naive'");
  }
  if (std::max(g.seqlen_q, g.seqlen_k) > kMaxLength) {
    return too_large("sequence length", std::max(g.seqlen_q, g.seqlen_k), kMaxLength,
                     "split the call into shorter ones");
  }
  const Choice choice = choose(problem, g, device.info());
  // The guarded kernel's grid is up to 8 times the blocks of keys.
  const std::int64_t blocks = 4 * choice.query_tiles + 8 * choice.key_blocks;
  if (blocks > INT32_MAX) {
    return too_large("tiles of 64 rows", blocks, INT32_MAX, "split the batch into smaller calls");
  }
  const int shared_bytes = backward_fp32_shared_bytes(choice.tiling, static_cast<int>(g.head_dim),
                                                      static_cast<int>(g.head_dim_v), choice.terms);
  if (shared_bytes > choice.shared_limit) {
    return too_large("shared memory of one block", shared_bytes, choice.shared_limit,
                     "use smaller head dims or implementation 'naive'");
  }
  auto plan = std::make_shared<GpuPlan>(device, problem, g);
  plan->tile_q = choice.tiling.rows;
  plan->tile_k = choice.tiling.keys();
  const Regions regions = add_regions(*plan, problem, g, choice);
  add_launches(*plan, problem, g, choice, regions);
  explain(*plan, problem, choice);
  return std::shared_ptr<internal::PlanState>(std::move(plan));
}

}  // namespace flashlab::cuda
