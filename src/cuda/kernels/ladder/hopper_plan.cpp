#include "cuda/kernels/ladder/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <limits>
#include <memory>
#include <utility>

#include "api/context_state.h"
#include "cuda/kernels/ladder/hopper_arguments.h"
#include "cuda/launch/arguments.h"
#include "cuda/launch/config.h"
#include "cuda/launch/planning.h"
#include "cuda/launch/tensor_map.h"

namespace flashlab::cuda {
namespace {

using device::HopperArguments;
using internal::Feature;

constexpr std::int64_t kMaxHeadDim = 128;
constexpr std::int64_t kTileQ = 128;   // two warpgroups of 64
constexpr std::int64_t kStages = 2;    // tiles of K and V that are under way or in use
constexpr float kLeastScale = 1e-30f;  // of fa3-frozen
constexpr unsigned kWarpgroupThreads = 128;

struct HopperRung {
  const char* name;
  const char* source;
  const char* entry;
  std::int64_t tile_k;  ///< default
  bool copy_warp;       ///< a warpgroup beside those that multiply
  bool positive_scale;  ///< a maximum of products is one of scores
  const char* summary;
};

// Tiles of 64 keys leave room for a second block on a multiprocessor, which multiplies while this
// one waits; with consumers of its own a block has one to itself, and larger tiles wait less often.
// clang-format off
constexpr HopperRung kHopperRungs[] = {
    {"fa2-tma", "ladder/fa2_tma.cu", "flash_fwd_fa2_tma", 64, false, false,
     "fa2-mma with tiles by the copy engine (sm_90, as all that follow)"},
    {"fa2-wgmma", "ladder/fa2_wgmma.cu", "flash_fwd_fa2_wgmma", 64, false, false,
     "fa2-tma with products of warpgroups"},
    {"fa3", "ladder/fa3.cu", "flash_fwd_fa3", 128, true, false,
     "FlashAttention-3's division of work: a warp copies, warpgroups multiply"},
    {"fa3-turns", "ladder/fa3_turns.cu", "flash_fwd_fa3_turns", 128, true, false,
     "fa3 with consumers that multiply in turns"},
    {"fa3-frozen", "ladder/fa3_frozen.cu", "flash_fwd_fa3_frozen", 128, true, true,
     "fa3-turns without a running maximum"}};
// clang-format on

bool is_hopper(const DeviceInfo& gpu) {
  return gpu.major == 9 && gpu.minor == 0;
}

Status refuse(std::string what, std::string got, std::string expected, std::string remedy) {
  return Status::unsupported(
      {std::move(what), std::move(got), std::move(expected), std::move(remedy)});
}

// The size of a rung's `Storage`, which asserts that it agrees.
std::int64_t ladder_hopper_shared_bytes(std::int64_t tile_k, std::int64_t head_dim,
                                        std::int64_t head_dim_v) {
  constexpr std::int64_t kAlignment = 1024, kBarrierBytes = 8 * (1 + 4 * kStages);
  const auto tile = [](std::int64_t rows, std::int64_t dim) {  // whole slabs of 64 features
    return rows * kSlabRowBytes * ((dim + kSlabColumns - 1) / kSlabColumns);
  };
  const std::int64_t bytes = tile(kTileQ, head_dim) +
                             kStages * (tile(tile_k, head_dim) + tile(tile_k, head_dim_v)) +
                             kBarrierBytes;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

Status check_tiles(const TileOptions& asked) {
  const bool fits_q = asked.tile_q == 0 || asked.tile_q == kTileQ;
  const bool fits_k = asked.tile_k == 0 || asked.tile_k == 64 || asked.tile_k == 128;
  if (fits_q && fits_k) return {};
  return refuse("options.tiles", fmt::format("tile_q {} x tile_k {}", asked.tile_q, asked.tile_k),
                fmt::format("tile_q {}, two warpgroups of 64; tile_k 64 or 128", kTileQ),
                "use these, or 0 for the default");
}

Status check_hopper_problem(const HopperRung& rung, const Problem& problem,
                            const internal::Geometry& g, const DeviceInfo& gpu) {
  const std::string who = fmt::format("of implementation '{}'", rung.name);
  if (!is_hopper(gpu)) {
    return refuse(fmt::format("implementation '{}'", rung.name),
                  fmt::format("compute capability {}.{}", gpu.major, gpu.minor),
                  "9.0: copy engine and products of warpgroups are Hopper's", "use fa2-mma");
  }
  for (const std::int64_t dim : {g.head_dim, g.head_dim_v}) {
    if (dim % 8 == 0 && dim <= kMaxHeadDim) continue;
    return refuse("head dimension " + who, fmt::format("{}", dim),
                  fmt::format("a multiple of 8 up to {}", kMaxHeadDim), "use fa2-mma, or sm80");
  }
  if (std::max(g.seqlen_q, g.seqlen_k) > kMaxLength || g.seqlen_k < 1) {
    return refuse("sequence length " + who, fmt::format("{} and {}", g.seqlen_q, g.seqlen_k),
                  fmt::format("1 to {}", kMaxLength), "use fa2-mma");
  }
  if (rung.positive_scale && !(g.scale > kLeastScale)) {
    return refuse("scale " + who, fmt::format("{}", g.scale), "positive", "use fa3-turns");
  }
  for (const auto& [name, spec] :
       {std::pair{"q", &problem.q}, std::pair{"k", &problem.k}, std::pair{"v", &problem.v}}) {
    if (describable(*spec)) continue;
    return refuse("rows " + who,
                  fmt::format("{} aligned to {} bytes", name, row_alignment_bytes(*spec)),
                  "strides and addresses that are positive multiples of 16 bytes", "use fa2-mma");
  }
  return check_tiles(problem.options.tiles);
}

runtime::ParameterBlock hopper_parameters(const Problem& problem, const internal::Geometry& g,
                                          std::int64_t tile_k) {
  HopperArguments arguments{};
  arguments.call = forward_arguments(problem, g);
  runtime::ParameterBlock block(arguments);
  patch_addresses(block, problem, 0, offsetof(HopperArguments, call));
  const auto map = [&](std::size_t offset, TensorRole role, const TensorSpec& spec, int rows) {
    block.tensor_map(offset, {buffer_of(role)}, tensor_map(spec, rows));
  };
  const int keys = static_cast<int>(tile_k);
  map(offsetof(HopperArguments, q), TensorRole::kQ, problem.q, static_cast<int>(kTileQ));
  map(offsetof(HopperArguments, k), TensorRole::kK, problem.k, keys);
  map(offsetof(HopperArguments, v), TensorRole::kV, problem.v, keys);
  return block;
}

Result<std::shared_ptr<internal::PlanState>> plan_hopper(const HopperRung& rung, GpuDevice& device,
                                                         const Problem& problem,
                                                         const internal::Geometry& g) {
  const DeviceInfo& info = device.info();
  if (Status status = check_hopper_problem(rung, problem, g, info); !status.ok()) return status;
  const std::int64_t asked = problem.options.tiles.tile_k;
  const std::int64_t tile_k = asked != 0 ? asked : rung.tile_k;
  const std::int64_t blocks = g.batch * g.heads_q * ((g.seqlen_q + kTileQ - 1) / kTileQ);
  if (blocks > std::numeric_limits<std::int32_t>::max()) {
    return refuse("batch * heads_q * seqlen_q", fmt::format("{} blocks", blocks),
                  "at most 2^31 - 1 blocks in a launch", "split the batch");
  }
  auto plan = std::make_shared<GpuPlan>(device, problem, g);
  plan->implementation = rung.name;
  plan->tile_q = kTileQ;
  plan->tile_k = tile_k;
  const std::int64_t shared_bytes = ladder_hopper_shared_bytes(tile_k, g.head_dim, g.head_dim_v);
  ConfigPrinter config;
  print_call(config, problem, g);
  config.boolean("kLse", problem.lse.has_value());
  config.integer("kTileQ", kTileQ).integer("kTileK", tile_k).integer("kStages", kStages);
  config.integer("kSharedBytes", shared_bytes);
  GpuStep step = kernel_step(rung.source, rung.entry, config, blocks,
                             (rung.copy_warp ? 3 : 2) * kWarpgroupThreads, shared_bytes,
                             fmt::format("tile of {} queries x {} keys · {}", kTileQ, tile_k,
                                         stage_words(static_cast<int>(kStages))));
  step.parameters = hopper_parameters(problem, g, tile_k);
  plan->add_kernel(std::move(step));
  plan->reasons.push_back(
      fmt::format("tiles of {} queries x {} keys, {} of K and V: {} of {} bytes of shared memory",
                  kTileQ, tile_k, kStages, shared_bytes, info.shared_bytes_per_block));
  return std::shared_ptr<internal::PlanState>(std::move(plan));
}

template <std::size_t kIndex>
Result<std::shared_ptr<internal::PlanState>> make_hopper_plan(const internal::ContextState& context,
                                                              const Problem& problem,
                                                              const internal::Geometry& geometry) {
  return plan_hopper(kHopperRungs[kIndex], *context.gpu(), problem, geometry);
}

const internal::FeatureSet kHopperFeatures{
    Feature::kForward, Feature::kFp16,          Feature::kBf16,
    Feature::kCausal,  Feature::kGroupedQuery,  Feature::kUnequalHeadDims,
    TensorRole::kLse,  Feature::kDeterministic, Feature::kTileSizes};

template <std::size_t... kIndex>
std::vector<internal::Implementation> hopper_rungs(std::index_sequence<kIndex...>) {
  return {{kHopperRungs[kIndex].name, DeviceKind::kCuda, kHopperRungs[kIndex].summary,
           kHopperFeatures, make_hopper_plan<kIndex>, is_hopper}...};
}

}  // namespace

std::vector<const internal::Implementation*> ladder_hopper_implementations() {
  static const auto rungs = hopper_rungs(std::make_index_sequence<std::size(kHopperRungs)>());
  std::vector<const internal::Implementation*> out;
  for (const internal::Implementation& rung : rungs) out.push_back(&rung);
  return out;
}

}  // namespace flashlab::cuda
