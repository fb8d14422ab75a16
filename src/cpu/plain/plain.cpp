// Problem -> Plan for `fa2-plain`: the tile sizes and the workspace.

#include "cpu/plain/plain.h"

#include <fmt/format.h>

#include "cpu/plain/plan.h"
#include "cpu/sequences/sequences.h"

namespace flashlab::internal {
namespace {

// A worker's tiles should stay in its core's L2 cache (1 MiB and more since 2020); beyond some
// multiple of it a choice is a mistake rather than an experiment.
constexpr std::size_t kScratchLimitBytes = std::size_t{4} << 20;

// 128 queries against 64 keys: turning K round costs 64 D moves for 2 x 128 x 64 D multiply-adds.
constexpr TileShape kDefaultTile{128, 64};

template <class Acc>
std::size_t scratch_bytes(const Geometry& g, Pass pass, TileShape tile) {
  Arena count;
  if (pass == Pass::kForward) {
    ForwardTiles<Acc>(count, g, tile);
  } else {
    BackwardTiles<Acc>(count, g, tile);
  }
  return count.bytes();
}

Status negative(const char* name, int value) {
  return Status::invalid({fmt::format("options.tiles.{}", name), fmt::format("{}", value),
                          "a positive number of rows, or 0 for the default",
                          "use 16 to 256; 64 is a good start"});
}

template <class Acc>
Result<TileShape> choose_tile(const Problem& problem, const Geometry& g) {
  const TileOptions& wanted = problem.options.tiles;
  if (wanted.tile_q < 0) return negative("tile_q", wanted.tile_q);
  if (wanted.tile_k < 0) return negative("tile_k", wanted.tile_k);
  TileShape tile{wanted.tile_q > 0 ? wanted.tile_q : kDefaultTile.q,
                 wanted.tile_k > 0 ? wanted.tile_k : kDefaultTile.k};
  const auto required = [&] { return scratch_bytes<Acc>(g, problem.pass, tile); };
  const bool free_q = wanted.tile_q == 0, free_k = wanted.tile_k == 0;
  constexpr std::int64_t kSmallest = 16;
  while (required() > kScratchLimitBytes &&
         ((free_q && tile.q > kSmallest) || (free_k && tile.k > kSmallest))) {
    const bool halve_q = free_q && tile.q > kSmallest && (tile.q >= tile.k || !free_k);
    (halve_q || !(free_k && tile.k > kSmallest) ? tile.q : tile.k) /= 2;
  }
  // With both sizes free the smallest tile runs whatever the head dimension: any shape works.
  if (required() > kScratchLimitBytes && !(free_q && free_k)) {
    return Status::invalid(
        {"options.tiles",
         fmt::format("tile_q {} x tile_k {} at head dimensions {} and {}: {} bytes of scratch "
                     "required per thread",
                     tile.q, tile.k, g.head_dim, g.head_dim_v, required()),
         fmt::format("at most {} bytes available", kScratchLimitBytes),
         "use smaller tiles, or 0 for the default"});
  }
  tile.q = std::clamp<std::int64_t>(g.seqlen_q, 1, tile.q);
  tile.k = std::clamp<std::int64_t>(g.seqlen_k, 1, tile.k);
  return tile;
}

void describe_steps(PlanState& plan, Pass pass, TileShape tile) {
  const Geometry& g = plan.geometry;
  const std::int64_t tiles_q = tiles_in(g.seqlen_q, tile.q) * g.batch * g.heads_q;
  const std::int64_t tiles_k = tiles_in(g.seqlen_k, tile.k) * g.batch * g.heads_k;
  const std::string shape = fmt::format("query tile {} x key tile {}", tile.q, tile.k);
  const auto kernel = [](std::string name, std::string text, std::vector<int> after) {
    return PlanStep{PlanStep::Kind::kKernel, std::move(name), std::move(text), std::move(after)};
  };
  if (pass == Pass::kForward) {
    plan.steps = {kernel("fa2_plain_forward", fmt::format("{}, {} tasks", shape, tiles_q), {})};
    return;
  }
  plan.steps = {
      kernel("fa2_plain_delta", fmt::format("{} tasks", tiles_q), {}),
      kernel("fa2_plain_dk_dv", fmt::format("{}, {} tasks over key tiles", shape, tiles_k), {0}),
      kernel("fa2_plain_dq", fmt::format("{}, {} tasks over query tiles", shape, tiles_q), {0})};
}

template <class Acc>
Result<std::shared_ptr<PlanState>> make(const ContextState& context, const Problem& problem,
                                        const Geometry& geometry) {
  auto tile = choose_tile<Acc>(problem, geometry);
  if (!tile.ok()) return tile.status();
  auto plan = std::make_shared<PlainPlan<Acc>>();
  plan->problem = problem;
  plan->geometry = geometry;
  plan->implementation = "fa2-plain";
  plan->tile = *tile;
  plan->tile_q = tile->q;
  plan->tile_k = tile->k;
  plan->kernels = &tile_kernels<Acc>(context.cpu_isa);
  plan->scale = static_cast<Acc>(geometry.scale);
  plan->scratch_bytes = scratch_bytes<Acc>(geometry, problem.pass, *tile);
  plan->scratch_offset =
      plan->add_region(fmt::format("tiles of {} threads", context.threads),
                       plan->scratch_bytes * static_cast<std::size_t>(context.threads));
  if (problem.pass == Pass::kBackward) {
    Arena delta;
    delta.take<Acc>(geometry.batch * geometry.heads_q, geometry.seqlen_q);
    plan->delta_offset = plan->add_region("delta", delta.bytes());
    plan->additive_mask = problem.mask && problem.mask->dtype != DType::kBool;
    if (plan->additive_mask) {
      delta.take<Acc>(geometry.batch * geometry.heads_q, geometry.seqlen_q);
      plan->parts_offset = plan->add_region("lse_parts", delta.bytes());
    }
  }
  describe_steps(*plan, problem.pass, *tile);
  plan->reasons.push_back(fmt::format("sums in {}, product kernels built for {}",
                                      sizeof(Acc) == sizeof(double) ? "fp64" : "fp32",
                                      tile_kernels_name(context.cpu_isa)));
  return std::shared_ptr<PlanState>(std::move(plan));
}

}  // namespace

Result<std::shared_ptr<PlanState>> make_plain_plan(const ContextState& context,
                                                   const Problem& problem,
                                                   const Geometry& geometry) {
  return geometry.dtype == DType::kFp64 ? make<double>(context, problem, geometry)
                                        : make<float>(context, problem, geometry);
}

const Implementation& plain_implementation() {
  static const Implementation implementation{
      "fa2-plain", DeviceKind::kCpu,
      "tiled FlashAttention-2 written for reading: forward, two-pass deterministic backward",
      dense_features() | sequence_features() | cache_features() |
          FeatureSet{Feature::kFp64, Feature::kFp32, Feature::kFp16, Feature::kBf16,
                     Feature::kTileSizes},
      plan_dense_or_sequences<&make_plain_plan>};
  return implementation;
}

}  // namespace flashlab::internal
