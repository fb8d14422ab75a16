#include "cuda/kernels/sm90/backward/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "api/context_state.h"
#include "cuda/kernels/sm80/backward/plan.h"
#include "cuda/kernels/sm90/backward/launch_arguments.h"
#include "cuda/kernels/sm90/backward/parts_plan.h"
#include "cuda/launch/arguments.h"
#include "cuda/launch/config.h"
#include "cuda/launch/planning.h"
#include "cuda/launch/tensor_map.h"
#include "runtime/kernel_store/config.h"

namespace flashlab::cuda {
namespace {

using device::Sm90BackwardArguments;
using internal::Geometry;

constexpr int kMaxHeadDim = 128;
constexpr int kWarpgroupThreads = 128;
constexpr std::int64_t kMaxRaggedHeads = 65535;  // the second extent of a launch (CUDA's limit)
constexpr std::int64_t kShortWindow = 2048;      // queries of a group's heads that see a key
// MEASURED (H200, 2026-11-28, NOTES.md): sections of as many key heads as keep a query head each in
// so many tenths of L2; with one head a group and so few keys the last section alone. Blocks that
// stay: that one as large as L2 lets it be, of fewer tiles for each multiprocessor (few_tiles).
constexpr int kMaxSection = 16, kSectionTenths = 4;
constexpr std::int64_t kShortCausal = 2048;
constexpr int kFinishColumns = 16;  // of dQ, for each of finish's warps: whole 16-byte stores

Status unsupported(const char* what, std::string got, std::string expected) {
  return Status::unsupported(
      {what, std::move(got), std::move(expected), "name no implementation, or 'sm80'"});
}

Status check_shapes(const Geometry& g) {
  if (std::max(g.head_dim, g.head_dim_v) > kMaxHeadDim) {
    return unsupported("head_dim of the backward of implementation 'sm90'",
                       fmt::format("{} and {} (v)", g.head_dim, g.head_dim_v),
                       fmt::format("at most {}", kMaxHeadDim));
  }
  if (std::max(g.seqlen_q, g.seqlen_k) > kMaxLength || std::min(g.seqlen_q, g.seqlen_k) < 1) {
    return unsupported("sequence length of the backward of implementation 'sm90'",
                       fmt::format("{} and {}", g.seqlen_q, g.seqlen_k),
                       fmt::format("1 to {}", kMaxLength));
  }
  if (g.has_lengths && g.heads_q > kMaxRaggedHeads) {
    return unsupported("heads_q of the ragged backward of implementation 'sm90'",
                       fmt::format("{}", g.heads_q), fmt::format("at most {}", kMaxRaggedHeads));
  }
  return {};
}

Status check_features(const Problem& problem) {
  const char* lacks = problem.mask                    ? "a mask tensor"
                      : problem.options.deterministic ? "deterministic"
                                                      : nullptr;
  if (lacks == nullptr) return {};
  return unsupported(
      "backward of implementation 'sm90'", lacks,
      "causal, windows, softcap, ALiBi, dropout, nothing else; dQ in an order that varies");
}

}  // namespace

Status check_sm90_backward_tensors(const Problem& problem) {
  if (problem.d_o->dtype != problem.q.dtype) {
    return unsupported("d_o of the backward of implementation 'sm90'",
                       std::string(to_string(problem.d_o->dtype)), "the type of q");
  }
  const std::pair<const char*, const TensorSpec*> tensors[] = {
      {"q", &problem.q}, {"k", &problem.k}, {"v", &problem.v}, {"d_o", &*problem.d_o}};
  const bool ragged =
      problem.cu_seqlens_q || problem.cu_seqlens_k || problem.seqused_q || problem.seqused_k;
  for (const auto& [name, spec] : tensors) {
    if (ragged ? boundable(*spec) : describable(*spec)) continue;
    return unsupported("rows of the backward of implementation 'sm90'",
                       fmt::format("{} aligned to {} bytes", name, row_alignment_bytes(*spec)),
                       "strides and addresses that are positive multiples of 16 bytes");
  }
  return {};
}

namespace {

Status check(const Problem& problem, const Geometry& g) {
  if (Status s = check_shapes(g); !s.ok()) return s;
  if (Status s = check_features(problem); !s.ok()) return s;
  return check_sm90_backward_tensors(problem);
}

/// The grids of the three kernels, and the order of the second one's tiles.
struct Blocks {
  std::int64_t query_tiles, query_blocks, key_tiles, key_blocks;
  device::KeyOrder order;
  device::Sequences sequences;  ///< of a ragged call
};

bool is_causal(const Geometry& g) {
  return g.bounds.right < g.bounds.kUnbounded && g.bounds.left == g.bounds.kUnbounded;
}

// How many tiles of a head of `tiles` are few: what the longest one costs at the end of a call
// grows with it, what a section's zeros and late `finish` cost does not.
constexpr std::int64_t few_tiles(std::int64_t tiles) {
  return tiles < 8 ? 3 : 4;
}

// Sections where causal tiles differ much: a group of query heads makes each as many times as long.
// Blocks that stay and have many tiles of one head a group take as long either way where sequences
// are as long as one another; of few tiles the last ones count. Of a ragged call a head has the
// slots of all sequences, and `length`, of a sequence, is known on the average alone.
device::KeyOrder choose_order(const Geometry& g, const Sm90BackwardTiling& t, std::int64_t heads,
                              std::int64_t tiles, std::int64_t length, const DeviceInfo& device,
                              const device::KeyParts& parts) {
  device::KeyOrder order{};
  order.wave = device.multiprocessors;
  order.parts = parts;
  order.heads = static_cast<int>(heads);
  order.tiles = static_cast<int>(tiles);
  order.alone = order.heads;
  order.section = 1;
  const bool grouped = g.group() > 1, single = t.key_stages > 1 && !grouped && !t.ragged;
  if (t.parts) {
    order.alone = 0, order.section = order.heads;
    return order;
  }
  const bool few = heads * tiles < few_tiles(tiles) * device.multiprocessors;
  if (!is_causal(g) || (single && !few)) return order;
  constexpr std::int64_t kElementBytes = 2 + 2 + 4;  // Q and dO in 16 bits, dQ in fp32
  const std::int64_t fit = device.l2_bytes * kSectionTenths / 10;
  const std::int64_t head_bytes = length * t.tile_dim * kElementBytes;
  const int most = single ? order.heads : kMaxSection;
  while (order.section < most && 2 * order.section * head_bytes <= fit) order.section *= 2;
  const bool all = grouped || t.ragged || (g.seqlen_k > kShortCausal && !single);
  order.alone = all ? 0 : std::max(order.heads - order.section, 0);
  return order;
}

Blocks count_blocks(const Problem& problem, const Geometry& g, const Sm90BackwardTiling& t,
                    const DeviceInfo& device, const device::KeyParts& parts) {
  Blocks blocks{};
  if (t.ragged) {
    blocks.sequences = sequences_of(problem, g, t.tile_q, t.tile_k);
    blocks.query_tiles = blocks.sequences.slots_q;
    blocks.query_blocks = g.heads_q * blocks.query_tiles;
    blocks.key_blocks = blocks.key_tiles = g.heads_k * blocks.sequences.slots_k;
    const std::int64_t length =
        g.ragged_q ? divide_up(g.seqlen_q, std::max<std::int64_t>(g.batch, 1)) : g.seqlen_q;
    blocks.order = choose_order(g, t, g.heads_k, blocks.sequences.slots_k, length, device, parts);
    if (t.stays()) {
      blocks.key_blocks = std::min<std::int64_t>(blocks.key_tiles, device.multiprocessors);
    }
    return blocks;
  }
  blocks.query_tiles = divide_up(g.seqlen_q, t.tile_q);
  blocks.query_blocks = g.batch * g.heads_q * blocks.query_tiles;
  blocks.key_tiles = g.batch * g.heads_k * divide_up(g.seqlen_k, t.tile_k);
  blocks.key_blocks = blocks.key_tiles;
  blocks.order = choose_order(g, t, g.batch * g.heads_k, divide_up(g.seqlen_k, t.tile_k),
                              g.seqlen_q, device, parts);
  if (t.parts) blocks.key_blocks *= parts.most;
  if (t.key_stages > 1) {
    blocks.key_blocks = std::min<std::int64_t>(blocks.key_tiles, device.multiprocessors);
  }
  return blocks;
}

ConfigPrinter print(const Problem& problem, const Geometry& g, const Sm90BackwardTiling& t) {
  ConfigPrinter config;
  print_call(config, problem, g);
  config.integer("kTileQ", t.tile_q)
      .integer("kTileK", t.tile_k)
      .integer("kDimUnit", t.tile_dim)
      .integer("kStages", t.stages)
      .integer("kKeyStages", t.key_stages)
      .integer("kWarpsQ", 1)
      .integer("kWarpsK", t.tile_dim / kFinishColumns)
      .boolean("kDeterministic", false)
      .boolean("kRagged", t.ragged)
      .boolean("kAbreast", t.abreast)
      .boolean("kParts", t.parts)
      .integer("kSharedBytes", shared_bytes(t));
  return config;
}

// In the order of BackwardRegion (kernels/sm80/backward/tiles.h).
void add_regions(GpuPlan& plan, std::int64_t rows, const Sm90BackwardTiling& t,
                 std::int64_t parts) {
  const std::int64_t heads = plan.geometry.batch * plan.geometry.heads_q;
  const std::int64_t counters =
      t.ragged && !t.stays() ? 0 : rows / t.tile_q + 2 + (t.ragged ? 0 : heads);
  const auto region = [&](const char* name, std::int64_t bytes) {
    return plan.add_gpu_region(name, static_cast<std::size_t>(bytes));
  };
  region("lse in base 2", rows * 4);
  region("delta", rows * 4);
  region("dq in fp32", rows * t.tile_dim * 4);
  region("turns", counters * 4);
  if (t.parts) region("dk and dv of parts in fp32", parts * t.tile_k * t.tile_dim * 2 * 4);
}

runtime::ParameterBlock parameters(const GpuPlan& plan, const Sm90BackwardTiling& t,
                                   const Blocks& blocks) {
  using Ragged = device::Sm90RaggedBackwardArguments;
  const Problem& problem = plan.problem;
  const Geometry& g = plan.geometry;
  Ragged arguments{};
  static_assert(offsetof(Ragged, launch) == 0);
  arguments.launch.call = backward_arguments(problem, g);
  arguments.launch.order = blocks.order;
  runtime::ParameterBlock block;
  if (t.ragged) {
    arguments.sequences = blocks.sequences;
    const auto between = [](const TensorSpec& spec) {
      return static_cast<int>(rows_between_entries(spec));
    };
    arguments.entry_q = between(problem.q);
    arguments.entry_k = between(problem.k);
    arguments.entry_v = between(problem.v);
    arguments.entry_d_o = between(*problem.d_o);
    block = runtime::ParameterBlock(arguments);
    patch_sequences(block, problem, offsetof(Ragged, sequences));
  } else {
    block = runtime::ParameterBlock(arguments.launch);
  }
  patch_addresses(block, problem, static_cast<int>(plan.regions.size()),
                  offsetof(Sm90BackwardArguments, call));
  const auto map = [&](std::size_t offset, TensorRole role, const TensorSpec& spec, int rows) {
    block.tensor_map(offset, {buffer_of(role)},
                     t.ragged ? bounded_map(spec, rows) : tensor_map(spec, rows));
  };
  map(offsetof(Sm90BackwardArguments, q), TensorRole::kQ, problem.q, t.tile_q);
  map(offsetof(Sm90BackwardArguments, k), TensorRole::kK, problem.k, t.tile_k);
  map(offsetof(Sm90BackwardArguments, v), TensorRole::kV, problem.v, t.tile_k);
  map(offsetof(Sm90BackwardArguments, d_o), TensorRole::kDO, *problem.d_o, t.tile_q);
  const std::int64_t heads = t.ragged ? g.heads_q : g.batch * g.heads_q;
  const runtime::TensorMap rows = row_map(heads, blocks.query_tiles * t.tile_q, t.tile_q);
  block.tensor_map(offsetof(Sm90BackwardArguments, lse2), {buffer_of_region(0)}, rows);
  block.tensor_map(offsetof(Sm90BackwardArguments, delta), {buffer_of_region(1)}, rows);
  return block;
}

// dQ to its type, and beside it the sums of parts.
GpuStep finish_of_parts(const GpuPlan& plan, ConfigPrinter config, const Sm90BackwardTiling& t,
                        const Blocks& blocks) {
  using Arguments = device::Sm90FinishArguments;
  constexpr std::int64_t kUnitColumns = 32;  // PartColumns, of two consumers' dK and dV
  const std::int64_t threads = 32 * (t.tile_dim / kFinishColumns);
  const std::int64_t units = blocks.key_tiles * 4 * t.tile_dim / kUnitColumns;
  Arguments arguments{};
  arguments.call = backward_arguments(plan.problem, plan.geometry);
  arguments.order = blocks.order;
  arguments.sum_blocks = static_cast<int>(divide_up(units, threads / kWarpgroupThreads));
  config.boolean("kVectorReduction", true);
  const std::int64_t all = arguments.sum_blocks + blocks.query_blocks;
  GpuStep step = kernel_step(
      "sm90/backward/finish.cu", "flash_bwd_sm90_finish", config, all, static_cast<int>(threads), 0,
      fmt::format("sums of parts; dQ = scale dQ_fp32 in dq's type · {} blocks", all));
  step.parameters = runtime::ParameterBlock(arguments);
  patch_addresses(step.parameters, plan.problem, static_cast<int>(plan.regions.size()),
                  offsetof(Arguments, call));
  return step;
}

void add_steps(GpuPlan& plan, const ConfigPrinter& config, const Sm90BackwardTiling& t,
               const Blocks& blocks) {
  // What is shown of a step is in words.
  const auto worded = [](GpuStep step) {
    step.configuration = std::move(step.words);
    step.words.clear();
    return step;
  };
  const bool stays = t.stays(), counts_heads = !t.ragged && !t.parts;
  const BackwardRows rows{
      call_form(plan.problem), t.tile_q,     t.tile_dim,
      blocks.query_blocks,     counts_heads, t.ragged ? &blocks.sequences : nullptr};
  const bool zeros = t.ragged || t.parts;
  plan.add_kernel(worded(prepare_step(plan, rows, {.zeros = zeros, .turns = !t.ragged || stays},
                                      fmt::format("delta, LSE in base 2 · {} blocks of {} queries",
                                                  blocks.query_blocks, t.tile_q))));
  GpuStep products = worded(
      kernel_step("sm90/backward/kernel.cu", "flash_bwd_sm90", config, blocks.key_blocks,
                  (t.tile_k / 64 + 1) * kWarpgroupThreads, shared_bytes(t),
                  fmt::format("{} · {} blocks work off {} tiles of {} keys", config.summary(),
                              blocks.key_blocks, blocks.key_tiles, t.tile_k)));
  products.parameters = parameters(plan, t, blocks);
  plan.add_kernel(std::move(products));
  GpuStep finish = t.parts ? finish_of_parts(plan, config, t, blocks)
                           : finish_step(plan, rows, {1, t.tile_dim / kFinishColumns, t.tile_k},
                                         fmt::format("dQ = scale dQ_fp32 in dq's type · {} blocks",
                                                     blocks.query_blocks));
  finish.shape.programmatic = counts_heads;
  plan.add_kernel(worded(std::move(finish)));
  if (plan.problem.d_sinks) plan.add_kernel(worded(sinks_step(plan, rows)));
}

}  // namespace

// Blocks that stay save 1.6 to 2.3 us from one tile of keys to the next. At head dim 128, where a
// second tile's K and V take 64 KiB, calls with 512 keys took 0.97 of the time with them, a window
// of 1024 0.98, and causal ones from 4k on 1.02 to 1.03 (H200, 2026-11-24 and 25). Windows have
// kernels of their own anyway. In ragged calls blocks stay with one place, too: the search for the
// next tile's sequence goes beside the steps (Sm90BackwardTiling::stays).
Sm90BackwardTiling choose_sm90_backward_tiling(std::int64_t head_dim, bool short_window,
                                               bool dropout, bool ragged) {
  Sm90BackwardTiling t{.dropout = dropout, .ragged = ragged};
  if (head_dim <= 64) {
    t.tile_q = 128, t.tile_dim = 64;
    // What dropout draws takes the room of one place.
    t.key_stages = dropout ? (ragged ? 1 : 2) : 3;
  } else if (!ragged && !dropout && short_window) {
    t.key_stages = 2;
  }
  return t;
}

Result<std::shared_ptr<internal::PlanState>> plan_sm90_backward(
    const internal::ContextState& context, const Problem& problem, const Geometry& g) {
  if (Status s = check(problem, g); !s.ok()) return s;
  const bool short_window = g.bounds.left + g.bounds.right < kShortWindow / g.group();
  Sm90BackwardTiling tiling = choose_sm90_backward_tiling(
      std::max(g.head_dim, g.head_dim_v), short_window, g.dropout > 0, g.has_lengths);
  // Head after head tiles of different lengths part company: a group's queries come from memory
  // once for every tile of keys. What dropout and ALiBi need of a head is found once a head.
  // Zeros come with a tile of keys there: a row that sees none must be told by its LSE, which a
  // sink makes finite.
  const bool hidden_rows =
      problem.sinks && g.bounds.right + g.bounds.shift(g.seqlen_q, g.seqlen_k) < 0;
  tiling.abreast = is_causal(g) && g.group() > 1 && !hidden_rows && !tiling.ragged &&
                   !tiling.dropout && !problem.alibi_slopes;
  // Parts are walked as heads abreast are, group or not; a block has one.
  const auto cut = problem.alibi_slopes
                       ? std::nullopt
                       : choose_key_parts(g, tiling, context.gpu()->info().multiprocessors);
  if (cut) tiling.parts = tiling.abreast = true, tiling.key_stages = 1;
  const Blocks blocks = count_blocks(problem, g, tiling, context.gpu()->info(),
                                     cut.value_or(device::KeyParts{1, 1, 1}));
  const std::int64_t most =
      std::max({blocks.query_blocks, blocks.key_tiles, blocks.query_tiles * tiling.tile_q});
  if (most > INT32_MAX) {
    return too_large("blocks of one launch", most, INT32_MAX, "split the batch");
  }
  auto plan = std::make_shared<GpuPlan>(*context.gpu(), problem, g);
  plan->tile_q = tiling.tile_q;
  plan->tile_k = tiling.tile_k;
  add_regions(*plan, blocks.query_blocks * tiling.tile_q, tiling, blocks.key_blocks);
  add_steps(*plan, print(problem, g, tiling), tiling, blocks);
  plan->reasons.push_back("dQ is added atomically: its last bits vary from run to run");
  if (cut) {
    plan->reasons.push_back(
        fmt::format("{} tiles of keys are cut into up to {} parts each: whole ones would leave "
                    "multiprocessors idle",
                    blocks.key_tiles, cut->most));
  } else if (blocks.order.section > 1) {
    plan->reasons.push_back(fmt::format(
        "tiles of keys of {} heads go side by side, the longest first: causal tiles differ",
        blocks.order.section));
  }
  return std::shared_ptr<internal::PlanState>(std::move(plan));
}

}  // namespace flashlab::cuda
