#include "cuda/kernels/ladder/plan.h"

#include <fmt/format.h>

#include <iterator>
#include <limits>
#include <memory>
#include <utility>

#include "api/context_state.h"
#include "cuda/launch/config.h"
#include "cuda/launch/planning.h"

namespace flashlab::cuda {
namespace {

using internal::Feature;

constexpr std::int64_t kMaxHeadDim = 128;
constexpr std::int64_t kMaxThreads = 1024;
constexpr std::int64_t kMaxMmaKeys = 128;  // 64 of 255 registers hold scores

/// What distinguishes the rungs on the host: how a tile is spread over threads and memory.
enum class LadderStep : std::uint8_t { kFirst, kVector, kShuffle, kMma };

struct Tiles {
  std::int64_t q = 0, k = 0;
};

using MakePlan = Result<std::shared_ptr<internal::PlanState>> (*)(const internal::ContextState&,
                                                                  const Problem&,
                                                                  const internal::Geometry&);

struct Rung {
  const char* name;
  const char* source;
  const char* entry;
  LadderStep step;
  bool queries_inside;  ///< FlashAttention-1: keys outside, queries inside, O in global memory
  Tiles tiles;          ///< default; measured, see kernels/ladder/README.md
  const char* summary;
  MakePlan backward = nullptr;  ///< null: forward alone
  bool repeats = true;          ///< of backward; false: dQ is added atomically
};

// In the order of the ladder.
// clang-format off
constexpr Rung kRungs[] = {
    {"fa1", "ladder/fa1.cu", "flash_fwd_fa1", LadderStep::kFirst, true, {32, 32},
     "FlashAttention-1: one block per head, O rewritten in memory per tile of keys"},
    {"fa1-vector", "ladder/fa1_vector.cu", "flash_fwd_fa1_vector", LadderStep::kVector, true,
     {32, 32}, "fa1 with 128-bit loads"},
    {"fa1-shuffle", "ladder/fa1_shuffle.cu", "flash_fwd_fa1_shuffle", LadderStep::kShuffle, true,
     {32, 32}, "fa1-vector with row reductions by warp shuffles"},
    {"fa1-mma", "ladder/fa1_mma.cu", "flash_fwd_fa1_mma", LadderStep::kMma, true, {128, 128},
     "fa1 on tensor cores (fp16, bf16: fp32 would be rounded to 11 bits)"},
    {"fa2", "ladder/fa2.cu", "flash_fwd_fa2", LadderStep::kFirst, false, {16, 32},
     "FlashAttention-2: one block per tile of queries; backward with atomic dQ",
     plan_fa2_backward, false},
    {"fa2-deterministic", "ladder/fa2.cu", "flash_fwd_fa2", LadderStep::kFirst, false, {16, 32},
     "fa2 with a backward in two passes, equal bit for bit", plan_fa2_deterministic_backward},
    {"fa2-vector", "ladder/fa2_vector.cu", "flash_fwd_fa2_vector", LadderStep::kVector, false,
     {16, 32}, "fa2 with 128-bit loads"},
    {"fa2-shuffle", "ladder/fa2_shuffle.cu", "flash_fwd_fa2_shuffle", LadderStep::kShuffle, false,
     {16, 32}, "fa2-vector with row reductions by warp shuffles"},
    {"fa2-mma", "ladder/fa2_mma.cu", "flash_fwd_fa2_mma", LadderStep::kMma, false, {128, 64},
     "fa2 on tensor cores (fp16, bf16: fp32 would be rounded to 11 bits)",
     plan_fa2_mma_backward, false}};
// clang-format on

// The size of a rung's `Storage`, which asserts that it agrees.
std::int64_t ladder_shared_bytes(LadderStep step, Tiles tiles, const internal::Geometry& g) {
  if (step == LadderStep::kMma) {  // Q, K and V in 16 bits; HalfTile of kernels/tile/swizzle.h
    const std::int64_t row = round_up(g.head_dim, 16) + 8, row_v = round_up(g.head_dim_v, 16) + 8;
    return 2 * ((tiles.q + tiles.k) * row + tiles.k * row_v);
  }
  const auto vector_row = [](std::int64_t dim) { return (round_up(dim, 4) / 4 | 1) * 4; };
  const bool scalar = step == LadderStep::kFirst;
  const std::int64_t row = scalar ? g.head_dim | 1 : vector_row(g.head_dim);
  const std::int64_t row_v = scalar ? g.head_dim_v : vector_row(g.head_dim_v);
  const std::int64_t floats =
      (tiles.q + tiles.k) * row + tiles.k * row_v + tiles.q * (tiles.k | 1) + 2 * tiles.q;
  return round_up(4 * floats, 16);
}

std::int64_t ladder_threads(LadderStep step, Tiles tiles) {
  return step == LadderStep::kMma ? tiles.q / 16 * 32 : tiles.q * tiles.k;
}

bool fits(const Rung& rung, Tiles tiles, const internal::Geometry& g, const DeviceInfo& device) {
  return ladder_threads(rung.step, tiles) <= kMaxThreads &&
         ladder_shared_bytes(rung.step, tiles, g) <= device.shared_bytes_per_block;
}

Status wrong_tiles(Tiles tiles, std::string got, std::string expected) {
  return Status::unsupported({"options.tiles",
                              fmt::format("tile_q {} x tile_k {}: {}", tiles.q, tiles.k, got),
                              std::move(expected), "use smaller tiles, or 0 for the default"});
}

/// The step's own rules for sizes that were asked for.
Status check_form(LadderStep step, Tiles tiles) {
  if (step == LadderStep::kMma && (tiles.q % 16 != 0 || tiles.k % 16 != 0)) {
    return wrong_tiles(tiles, "a tensor-core product is 16 x 16", "multiples of 16");
  }
  if (step == LadderStep::kMma && tiles.k > kMaxMmaKeys) {
    return wrong_tiles(tiles,
                       fmt::format("{} registers required per thread for the scores", tiles.k / 2),
                       fmt::format("tile_k at most {}", kMaxMmaKeys));
  }
  if (step != LadderStep::kShuffle) return {};
  if (tiles.k > 32 || (tiles.k & (tiles.k - 1)) != 0) {
    return wrong_tiles(tiles, fmt::format("{} lanes required per row", tiles.k),
                       "a power of two, at most the 32 lanes of a warp, for tile_k");
  }
  if (tiles.q * tiles.k % 32 == 0) return {};
  return wrong_tiles(tiles, fmt::format("{} threads required", tiles.q * tiles.k),
                     "a whole number of warps: tile_q * tile_k a multiple of 32");
}

/// What was asked for if it can work; sizes left open shrink until they fit.
Result<Tiles> choose_tiles(const Rung& rung, const Problem& problem, const internal::Geometry& g,
                           const DeviceInfo& device) {
  const TileOptions& asked = problem.options.tiles;
  Tiles tiles{asked.tile_q != 0 ? asked.tile_q : rung.tiles.q,
              asked.tile_k != 0 ? asked.tile_k : rung.tiles.k};
  if (Status status = check_form(rung.step, tiles); !status.ok()) return status;
  const std::int64_t smallest = 16;
  const bool free_q = asked.tile_q == 0, free_k = asked.tile_k == 0;
  while (!fits(rung, tiles, g, device)) {  // the larger of those left open gives way
    const bool can_q = free_q && tiles.q > smallest, can_k = free_k && tiles.k > smallest;
    if (!can_q && !can_k) break;
    (can_q && (tiles.q >= tiles.k || !can_k) ? tiles.q : tiles.k) /= 2;
  }
  const std::int64_t threads = ladder_threads(rung.step, tiles);
  if (threads > kMaxThreads) {
    return wrong_tiles(tiles, fmt::format("{} threads required per block", threads),
                       fmt::format("at most {} threads available", kMaxThreads));
  }
  const std::int64_t bytes = ladder_shared_bytes(rung.step, tiles, g);
  if (bytes > device.shared_bytes_per_block) {
    return wrong_tiles(
        tiles,
        fmt::format("{} bytes of shared memory required at head dimensions {} and {}", bytes,
                    g.head_dim, g.head_dim_v),
        fmt::format("at most {} bytes available on {}", device.shared_bytes_per_block,
                    device.name));
  }
  return tiles;
}

Status check_problem(const Rung& rung, const internal::Geometry& g, const DeviceInfo& device) {
  if (g.head_dim > kMaxHeadDim || g.head_dim_v > kMaxHeadDim) {
    return Status::unsupported({"head dimensions of q, k and v",
                                fmt::format("{} and {}", g.head_dim, g.head_dim_v),
                                fmt::format("at most {} in the ladder", kMaxHeadDim),
                                "use the production implementation, or naive"});
  }
  if (rung.step == LadderStep::kMma && g.dtype == DType::kBf16 && device.major < 8) {
    return Status::unsupported({"dtype", fmt::format("bf16 on {}", device.name),
                                "fp16: bf16 products on tensor cores need sm_80",
                                "use fp16, or fa2-shuffle"});
  }
  return {};
}

Result<std::shared_ptr<internal::PlanState>> plan_forward(const Rung& rung, GpuDevice& device,
                                                          const Problem& problem,
                                                          const internal::Geometry& g) {
  const DeviceInfo& info = device.info();
  if (Status status = check_problem(rung, g, info); !status.ok()) return status;
  const Result<Tiles> chosen = choose_tiles(rung, problem, g, info);
  if (!chosen.ok()) return chosen.status();
  const Tiles tiles = *chosen;
  const std::int64_t heads = g.batch * g.heads_q;
  const std::int64_t blocks = rung.queries_inside ? heads : heads * divide_up(g.seqlen_q, tiles.q);
  if (blocks > std::numeric_limits<std::int32_t>::max()) {
    return Status::unsupported({"batch * heads_q * seqlen_q", fmt::format("{} blocks", blocks),
                                "at most 2^31 - 1 blocks in a launch",
                                "use larger tiles, or split the batch"});
  }
  auto plan = std::make_shared<GpuPlan>(device, problem, g);
  plan->implementation = rung.name;
  if (rung.queries_inside) {
    const auto rows = static_cast<std::size_t>(heads * g.seqlen_q);
    const auto columns = static_cast<std::size_t>(round_up(g.head_dim_v, 4));
    plan->add_gpu_region("O, not yet divided", rows * columns * sizeof(float));
    plan->add_gpu_region("m and l", rows * 2 * sizeof(float));
  }
  plan->tile_q = tiles.q;
  plan->tile_k = tiles.k;
  const std::int64_t shared_bytes = ladder_shared_bytes(rung.step, tiles, g);
  ConfigPrinter config;
  print_call(config, problem, g);
  config.boolean("kLse", problem.lse.has_value());
  config.integer("kTileQ", tiles.q).integer("kTileK", tiles.k);
  config.integer("kSharedBytes", shared_bytes);
  plan->add_kernel(kernel_step(rung.source, rung.entry, config, blocks,
                               ladder_threads(rung.step, tiles), shared_bytes,
                               fmt::format("tile of {} queries x {} keys", tiles.q, tiles.k)));
  plan->reasons.push_back(fmt::format(
      "tiles of {} queries x {} keys: {} of {} bytes of shared memory, {} of {} threads", tiles.q,
      tiles.k, shared_bytes, info.shared_bytes_per_block, ladder_threads(rung.step, tiles),
      kMaxThreads));
  return std::shared_ptr<internal::PlanState>(std::move(plan));
}

template <std::size_t kIndex>
Result<std::shared_ptr<internal::PlanState>> make_plan(const internal::ContextState& context,
                                                       const Problem& problem,
                                                       const internal::Geometry& geometry) {
  constexpr const Rung& kRung = kRungs[kIndex];
  if (problem.pass == Pass::kForward) {
    return plan_forward(kRung, *context.gpu(), problem, geometry);
  }
  if (!kRung.repeats && problem.options.deterministic) {
    return Status::unsupported({"options.deterministic", "true",
                                "false: dQ is summed by atomic additions, in any order",
                                "use fa2-deterministic"});
  }
  return kRung.backward(context, problem, geometry);
}

internal::FeatureSet features_of(const Rung& rung) {
  internal::FeatureSet out{Feature::kForward, Feature::kFp16,          Feature::kBf16,
                           Feature::kCausal,  Feature::kGroupedQuery,  Feature::kUnequalHeadDims,
                           TensorRole::kLse,  Feature::kDeterministic, Feature::kTileSizes};
  if (rung.step != LadderStep::kMma) out.add(Feature::kFp32);
  if (rung.backward == nullptr) return out;
  return out | internal::FeatureSet{Feature::kBackward, TensorRole::kDLse, Feature::kAccumulate};
}

template <std::size_t... kIndex>
std::vector<internal::Implementation> implementations(std::index_sequence<kIndex...>) {
  return {{kRungs[kIndex].name, DeviceKind::kCuda, kRungs[kIndex].summary,
           features_of(kRungs[kIndex]), make_plan<kIndex>}...};
}

}  // namespace

std::vector<const internal::Implementation*> ladder_forward_implementations() {
  static const auto rungs = implementations(std::make_index_sequence<std::size(kRungs)>());
  std::vector<const internal::Implementation*> out;
  for (const internal::Implementation& rung : rungs) out.push_back(&rung);
  return out;
}

}  // namespace flashlab::cuda
