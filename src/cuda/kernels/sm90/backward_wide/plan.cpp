#include "cuda/kernels/sm90/backward_wide/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "api/context_state.h"
#include "cuda/kernels/sm80/backward/plan.h"
#include "cuda/kernels/sm90/backward/plan.h"
#include "cuda/kernels/sm90/backward_wide/launch_arguments.h"
#include "cuda/launch/arguments.h"
#include "cuda/launch/config.h"
#include "cuda/launch/planning.h"
#include "cuda/launch/tensor_map.h"
#include "runtime/kernel_store/config.h"

namespace flashlab::cuda {
namespace {

using device::Sm90WideArguments;
using device::WidePart;
using internal::Geometry;

constexpr std::int64_t kMinHeadDim = 128, kMaxHeadDim = 256;
constexpr std::int64_t kTile = 64;  // queries or keys of a tile
constexpr std::int64_t kScoreTileBytes = kTile * kTile * 2;
constexpr int kSharedLimit = 232448;  // of a block of sm_90
constexpr int kMaxStages = 3;
constexpr unsigned kThreads = 384;
constexpr std::int64_t kMaxParts = 1024;
// Of Q and dO, for the heads whose blocks follow one another: about half of L2.
constexpr std::int64_t kSectionBytes = 24 << 20;

Status unsupported(const char* what, std::string got, std::string expected) {
  return Status::unsupported(
      {what, std::move(got), std::move(expected), "name no implementation, or 'sm80'"});
}

Status check_shapes(const Geometry& g) {
  if (std::max(g.head_dim, g.head_dim_v) > kMaxHeadDim || g.head_dim <= kMinHeadDim) {
    return unsupported("head_dim of the backward of implementation 'sm90'",
                       fmt::format("{} and {} (v)", g.head_dim, g.head_dim_v),
                       "at most 128, or that of q and k 129 to 256 and that of v at most 256");
  }
  if (std::max(g.seqlen_q, g.seqlen_k) > kMaxLength || std::min(g.seqlen_q, g.seqlen_k) < 1) {
    return unsupported("sequence length of the backward of implementation 'sm90'",
                       fmt::format("{} and {}", g.seqlen_q, g.seqlen_k),
                       fmt::format("1 to {}", kMaxLength));
  }
  return {};
}

Status check_features(const Problem& problem, const Geometry& g) {
  const char* lacks = problem.mask           ? "a mask tensor"
                      : g.softcap > 0        ? "softcap"
                      : problem.alibi_slopes ? "ALiBi"
                      : g.dropout > 0        ? "dropout"
                                             : nullptr;
  if (lacks == nullptr) return {};
  return unsupported("backward of implementation 'sm90' at head dims above 128", lacks,
                     "causal, windows, nothing else");
}

ConfigPrinter print(const Problem& problem, const Geometry& g, const WideTiling& t) {
  ConfigPrinter config;
  print_call(config, problem, g);
  config.integer("kTileQ", kTile)
      .integer("kTileK", kTile)
      .integer("kStages", t.stages)
      .integer("kGradQStages", t.grad_q_stages)
      .boolean("kDeterministic", false)
      .integer("kSharedBytes", shared_bytes(t))
      .integer("kGradQSharedBytes", grad_q_shared_bytes(t));
  return config;
}

// A call's tiles.
struct Tiles {
  std::int64_t heads_k, queries, keys, rows;  ///< rows: of all heads of q, in whole tiles
  explicit Tiles(const Geometry& g)
      : heads_k(g.batch * g.heads_k),
        queries(divide_up(g.seqlen_q, kTile)),
        keys(divide_up(g.seqlen_k, kTile)),
        rows(g.batch * g.heads_q * queries * kTile) {}
};

// In the order of BackwardRegion (kernels/sm80/backward/tiles.h) and WideRegion.
enum Region { kLse, kDelta, kPartialQ, kScores };
void add_regions(GpuPlan& plan, const WideTiling& t, const WideParts& parts) {
  const Geometry& g = plan.geometry;
  const Tiles tiles(g);
  const auto region = [&](const char* name, std::int64_t bytes) {
    plan.add_gpu_region(name, static_cast<std::size_t>(bytes));
  };
  region("lse in base 2", tiles.rows * 4);
  region("delta", tiles.rows * 4);
  const bool carries = parts.tiles < tiles.keys;
  region("dq in fp32",
         carries ? g.group() * round_up(tiles.queries, 2) * kTile * t.head_dim * 4 : 0);
  region("ds", parts.bytes);
}

runtime::ParameterBlock parameters(const GpuPlan& plan, const WidePart& part) {
  const Problem& problem = plan.problem;
  const Geometry& g = plan.geometry;
  Sm90WideArguments arguments{};
  arguments.call = backward_arguments(problem, g);
  arguments.part = part;
  runtime::ParameterBlock block(arguments);
  patch_addresses(block, problem, static_cast<int>(plan.regions.size()),
                  offsetof(Sm90WideArguments, call));
  const auto map = [&](std::size_t offset, TensorRole role, const TensorSpec& spec) {
    block.tensor_map(offset, {buffer_of(role)}, tensor_map(spec, kTile));
  };
  map(offsetof(Sm90WideArguments, q), TensorRole::kQ, problem.q);
  map(offsetof(Sm90WideArguments, k), TensorRole::kK, problem.k);
  map(offsetof(Sm90WideArguments, v), TensorRole::kV, problem.v);
  map(offsetof(Sm90WideArguments, d_o), TensorRole::kDO, *problem.d_o);
  const Tiles tiles(g);
  const runtime::TensorMap rows = row_map(g.batch * g.heads_q, tiles.queries * kTile, kTile);
  block.tensor_map(offsetof(Sm90WideArguments, lse2), {buffer_of_region(kLse)}, rows);
  block.tensor_map(offsetof(Sm90WideArguments, delta), {buffer_of_region(kDelta)}, rows);
  const auto score_bytes = static_cast<std::int64_t>(plan.regions[kScores].bytes);
  block.tensor_map(offsetof(Sm90WideArguments, d_s), {buffer_of_region(kScores)},
                   slab_map(problem.q.dtype, score_bytes / kSlabRowBytes, 2 * kTile));
  return block;
}

// The two kernels of a part.
void add_part(GpuPlan& plan, const ConfigPrinter& config, const WideTiling& t,
              const WidePart& part) {
  const Geometry& g = plan.geometry;
  const Tiles tiles(g);
  const std::string keys =
      part.tiles < tiles.keys
          ? fmt::format(" · keys {} to {}", part.first_tile * kTile,
                        std::min((part.first_tile + part.tiles) * kTile, g.seqlen_k) - 1)
          : "";
  const std::string which = fmt::format("heads of keys {} to {} of {}{}", part.first_head,
                                        part.first_head + part.heads - 1, tiles.heads_k, keys);
  GpuStep products = kernel_step(
      "sm90/backward_wide/kernel.cu", "flash_bwd_sm90_wide", config,
      std::int64_t{part.heads} * part.tiles, kThreads, shared_bytes(t),
      fmt::format("dK, dV, dS: tile of {} keys, in steps of {} queries · {}", kTile, kTile, which));
  products.parameters = parameters(plan, part);
  plan.add_kernel(std::move(products));
  GpuStep grad_q = kernel_step("sm90/backward_wide/grad_q.cu", "flash_bwd_sm90_wide_grad_q", config,
                               part.heads * g.group() * divide_up(tiles.queries, 2), kThreads,
                               grad_q_shared_bytes(t),
                               fmt::format("dQ = scale dS K: {} queries, in steps of {} keys · {}",
                                           2 * kTile, kTile, which));
  grad_q.parameters = parameters(plan, part);
  plan.add_kernel(std::move(grad_q));
}

void add_steps(GpuPlan& plan, const ConfigPrinter& config, const WideTiling& t,
               const WideParts& parts) {
  const Geometry& g = plan.geometry;
  const Tiles tiles(g);
  const std::int64_t query_blocks = g.batch * g.heads_q * tiles.queries;
  const BackwardRows rows{call_form(plan.problem), kTile, kTile, query_blocks};
  plan.add_kernel(prepare_step(plan, rows, {}, "delta, LSE in base 2"));
  if (plan.problem.d_sinks) plan.add_kernel(sinks_step(plan, rows));
  const std::int64_t head_bytes = g.group() * g.seqlen_q * (t.head_dim + t.head_dim_v) * 2;
  const std::int64_t section = std::clamp<std::int64_t>(kSectionBytes / head_bytes, 1, parts.heads);
  for (std::int64_t head = 0; head < tiles.heads_k; head += parts.heads) {
    for (std::int64_t tile = 0; tile < tiles.keys; tile += parts.tiles) {
      WidePart part{};
      part.first_head = static_cast<int>(head);
      part.heads = static_cast<int>(std::min(parts.heads, tiles.heads_k - head));
      part.first_tile = static_cast<int>(tile);
      part.tiles = static_cast<int>(std::min(parts.tiles, tiles.keys - tile));
      part.section = static_cast<int>(section);
      part.adds = tile > 0;
      part.ends = tile + parts.tiles >= tiles.keys;
      add_part(plan, config, t, part);
    }
  }
}

}  // namespace

bool is_wide_sm90_backward(const Geometry& g) {
  return std::max(g.head_dim, g.head_dim_v) > kMinHeadDim;
}

WideTiling choose_wide_tiling(const Geometry& g) {
  WideTiling t{static_cast<int>(round_up(g.head_dim, kTile)),
               static_cast<int>(round_up(g.head_dim_v, kTile))};
  t.stages = kMaxStages;
  while (shared_bytes(t) > kSharedLimit) --t.stages;
  return t;
}

WideParts choose_wide_parts(const Geometry& g, std::int64_t most) {
  const Tiles tiles(g);
  const std::int64_t tile_bytes = g.group() * tiles.queries * kScoreTileBytes;
  if (tile_bytes > most) return {};
  const std::int64_t head_bytes = tile_bytes * tiles.keys;
  WideParts parts;
  if (head_bytes <= most) {
    parts.count = divide_up(tiles.heads_k, most / head_bytes);
    parts.heads = divide_up(tiles.heads_k, parts.count);
    parts.count = divide_up(tiles.heads_k, parts.heads);
    parts.tiles = tiles.keys;
  } else {
    const std::int64_t cuts = divide_up(tiles.keys, most / tile_bytes);
    parts.heads = 1;
    parts.tiles = divide_up(tiles.keys, cuts);
    parts.count = tiles.heads_k * divide_up(tiles.keys, parts.tiles);
  }
  parts.bytes = parts.heads * parts.tiles * tile_bytes;
  return parts;
}

Result<std::shared_ptr<internal::PlanState>> plan_sm90_backward_wide(
    const internal::ContextState& context, const Problem& problem, const Geometry& g,
    std::int64_t most) {
  if (Status s = check_shapes(g); !s.ok()) return s;
  if (Status s = check_features(problem, g); !s.ok()) return s;
  if (Status s = check_sm90_backward_tensors(problem); !s.ok()) return s;
  const WideParts parts = choose_wide_parts(g, most);
  if (parts.count < 1 || parts.count > kMaxParts) {
    return unsupported(
        "dS of the backward of implementation 'sm90'",
        fmt::format("{} x {} pairs of {} heads", g.seqlen_q, g.seqlen_k, g.batch * g.heads_q),
        fmt::format("at most {} parts of {} MiB", kMaxParts, kWideScoresBytes >> 20));
  }
  const Tiles tiles(g);
  if (tiles.rows / kTile > INT32_MAX || tiles.heads_k * tiles.keys > INT32_MAX) {
    return too_large("blocks of one launch", tiles.rows / kTile, INT32_MAX, "split the batch");
  }
  const WideTiling tiling = choose_wide_tiling(g);
  auto plan = std::make_shared<GpuPlan>(*context.gpu(), problem, g);
  plan->tile_q = plan->tile_k = kTile;
  add_regions(*plan, tiling, parts);
  add_steps(*plan, print(problem, g, tiling), tiling, parts);
  plan->reasons.push_back(fmt::format(
      "dS is written and read again, so that dQ is added in a fixed order: {:.1f} MiB of "
      "workspace, never more than {}, in {} part{}",
      static_cast<double>(parts.bytes) / (1 << 20), most >> 20, parts.count,
      parts.count == 1 ? "" : "s"));
  return std::shared_ptr<internal::PlanState>(std::move(plan));
}

}  // namespace flashlab::cuda
