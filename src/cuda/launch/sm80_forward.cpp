#include "cuda/launch/sm80_forward.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "api/context_state.h"
#include "cuda/launch/config.h"
#include "cuda/launch/gpu_plan.h"
#include "runtime/kernel_store/config.h"

namespace flashlab::cuda {
namespace {

using internal::Geometry;

constexpr int kMaxHeadDim = 256;
constexpr std::int64_t kMaxLength = INT32_MAX - 1024;  // positions are 32-bit in the kernel
constexpr int kMaxSplits = 256;
// k16 steps of Q kept in registers: by the tiling of head dims 80 to 128, by masked ones up to 256.
constexpr int kFewQuerySteps = 2, kSomeQuerySteps = 8, kAllQuerySteps = 16;
constexpr int kLeastPiece = 16;               // keys of a softmax step
constexpr int kLargeSharedBytes = 200 << 10;  // of a block: sm_90 and sm_100 grant 227 KiB
constexpr int kMinTilesPerSplit = 4, kMinKeysPerSplit = 64;
constexpr unsigned kMergeWarps = 4;         // kernels/sm80/forward_merge.cu
constexpr int kReservedSharedBytes = 1024;  // per block, by the system
// What a deterministic plan fills: a device of this many multiprocessors, whatever the real one.
constexpr int kNominalMultiprocessors = 128;

constexpr int divide_up(int a, int b) {
  return (a + b - 1) / b;
}
std::int64_t divide_up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

// kernels/tile/swizzle.h, HalfTile: rows of whole k16 steps at an odd pitch of 16-byte chunks.
constexpr int pitch_bytes(int dim) {
  return ((divide_up(dim, 16) * 2) | 1) * 16;
}

Status too_long(const char* what, std::int64_t got, std::int64_t limit) {
  return Status::unsupported({what, fmt::format("{}", got), fmt::format("at most {}", limit),
                              "split the call into shorter ones and merge them"});
}

struct ForwardChoice {
  ForwardTiling tiling;
  bool pack_group = false;
  int splits = 1;
  std::int64_t tiles_q = 0;  ///< per (batch, head or group)
  std::int64_t heads = 0;    ///< heads or groups
};

/// The main loop folds a positive scale into the exponent; other scales, and additive masks, are
/// applied to the scores first.
bool needs_prescaling(const Problem& problem, const Geometry& g) {
  const bool additive = problem.mask && problem.mask->dtype != DType::kBool;
  return additive || !(g.scale > 1e-30f);
}

int shared_bytes(const Geometry& g, const ForwardTiling& t) {
  return forward_shared_bytes(t, static_cast<int>(g.head_dim), static_cast<int>(g.head_dim_v));
}

ForwardChoice choose(const Problem& problem, const Geometry& g, const DeviceInfo& device) {
  ForwardChoice choice;
  const int limit = device.shared_bytes_per_block;
  const bool bounded = std::min(g.bounds.left, g.bounds.right) < g.bounds.kUnbounded;
  ForwardNeeds needs{
      g.seqlen_q,
      static_cast<int>(g.head_dim),
      static_cast<int>(g.head_dim_v),
      problem.mask.has_value() || needs_prescaling(problem, g),
      bounded,
      copied_by_element(problem.q) || copied_by_element(problem.k) || copied_by_element(problem.v)};
  choice.tiling = choose_forward_tiling(needs, limit);
  choice.pack_group = g.group() > 1 && g.seqlen_q * 2 <= choice.tiling.tile_q() &&
                      g.seqlen_q * g.group() <= kMaxLength;
  if (choice.pack_group) {
    needs.rows = g.seqlen_q * g.group();
    choice.tiling = choose_forward_tiling(needs, limit);
  }
  choice.tiles_q = divide_up(needs.rows, std::int64_t{choice.tiling.tile_q()});
  choice.heads = choice.pack_group ? g.heads_k : g.heads_q;
  const int multiprocessors =
      problem.options.deterministic ? kNominalMultiprocessors : device.multiprocessors;
  const int resident =
      forward_resident_blocks(choice.tiling, shared_bytes(g, choice.tiling), limit);
  choice.splits =
      choose_key_splits(choice.tiles_q * choice.heads * g.batch,
                        std::int64_t{multiprocessors} * resident, g.seqlen_k, choice.tiling.tile_k);
  // Where most of Q is read from shared memory registers are scarcest: with split keys the second
  // loop would make causal kernels spill 144 bytes (sm_90a, head dim 128).
  if (choice.splits > 1 && choice.tiling.query_steps <= kFewQuerySteps) {
    choice.tiling.steady_loop = false;
  }
  return choice;
}

ConfigPrinter print(const Problem& problem, const Geometry& g, const ForwardChoice& choice,
                    bool few_registers = false) {
  const ForwardTiling& t = choice.tiling;
  ConfigPrinter config;
  print_call(config, problem, g);
  config.integer("kWarps", t.warps)
      .integer("kWarpRows", t.warp_rows)
      .integer("kTileK", t.tile_k)
      .integer("kPieceK", t.piece_k)
      .integer("kStages", t.stages)
      .integer("kMinBlocks", t.min_blocks)
      .integer("kQuerySteps", t.query_steps)
      .boolean("kFewRegisters", few_registers)
      .integer("kSharedBytes", shared_bytes(g, t))
      .boolean("kSteadyLoop", t.steady_loop)
      .boolean("kSplit", choice.splits > 1)
      .boolean("kPackGroup", choice.pack_group)
      .boolean("kPrescaled", needs_prescaling(problem, g));
  return config;
}

struct ForwardFallbacks {
  std::vector<std::string> configs;
  int shared_bytes = 0;  ///< what each of them and the first choice can be launched with
};

// Where the kernel spills: a quarter of Q in shared memory instead of all of it in registers, if a
// block has that memory to itself, with smaller tiles of keys where it has to be; one step of Q at
// a time from shared memory and one loop; then scores of fewer keys at a time, too.
ForwardFallbacks print_fallbacks(const Problem& problem, const Geometry& g, ForwardChoice choice,
                                 int shared_limit) {
  ForwardTiling& t = choice.tiling;
  ForwardFallbacks out{{}, shared_bytes(g, t)};
  const int steps = divide_up(static_cast<int>(g.head_dim), 16);
  ForwardChoice less = choice;
  less.tiling.query_steps = steps - steps / 4;
  if (shared_bytes(g, less.tiling) > shared_limit) {
    less.tiling.tile_k = less.tiling.piece_k = kLeastPiece;
  }
  const int more_bytes = shared_bytes(g, less.tiling);
  const bool all_in_registers = t.query_steps >= steps && steps >= 4;
  if (all_in_registers && t.min_blocks == 1 && more_bytes <= shared_limit) {
    out.configs.push_back(print(problem, g, less).text());
    out.shared_bytes = std::max(out.shared_bytes, more_bytes);
  }
  if (steps > t.query_steps || t.steady_loop) {
    t.steady_loop = false;
    out.configs.push_back(print(problem, g, choice, /*few_registers=*/true).text());
  }
  if (t.piece_k > kLeastPiece) {
    t.piece_k = kLeastPiece;
    out.configs.push_back(print(problem, g, choice, /*few_registers=*/true).text());
  }
  return out;
}

void explain(GpuPlan& plan, const Problem& problem, const ForwardChoice& choice) {
  explain_copies(plan.reasons, "q", problem.q);
  explain_copies(plan.reasons, "k", problem.k);
  explain_copies(plan.reasons, "v", problem.v);
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

int forward_shared_bytes(const ForwardTiling& t, int head_dim, int head_dim_v) {
  const int k = t.tile_k * pitch_bytes(head_dim), v = t.tile_k * pitch_bytes(head_dim_v);
  const int q = t.tile_q() * pitch_bytes(head_dim);
  const int ahead = std::max(t.stages - 2, 1);
  const int o = t.tile_q() * pitch_bytes(head_dim_v);
  // Q passes through memory of V that the first tiles do not use; at the end O does.
  const int tiles = t.stages * k + std::max({(t.stages + 1) * v, ahead * v + q, o});
  const int kept_steps = std::max(divide_up(head_dim, 16) - t.query_steps, 0);
  const int kept_q = 16 * std::max(t.warps * kept_steps * (t.warp_rows / 16) * 32, 1);
  const int barriers = 8 * (2 * t.stages + 1);
  return divide_up(tiles + kept_q + barriers, 16) * 16;
}

int forward_resident_blocks(const ForwardTiling& t, int shared_bytes, int shared_limit) {
  // A multiprocessor has what it grants one block and that block's reserve.
  const int fit = (shared_limit + kReservedSharedBytes) / (shared_bytes + kReservedSharedBytes);
  return std::clamp(fit, 1, t.min_blocks);
}

namespace {

// What a device holds of a tiling: its blocks per multiprocessor, at most those it is made for.
int resident_blocks(const ForwardTiling& t, const ForwardNeeds& needs, int shared_limit) {
  const int bytes = forward_shared_bytes(t, needs.head_dim, needs.head_dim_v);
  return bytes > shared_limit ? 0 : forward_resident_blocks(t, bytes, shared_limit);
}

// Where scores are masked by a tensor. MEASURED (H200, 2026-11-21, README.md of the kernels): 32
// rows per warp read K and V half as often; where rows are bounded a step waits longer for its
// mask than for its matrices, and 16 rows per warp with pieces of 32 keys are faster.
ForwardTiling masked_tiling(const ForwardNeeds& needs, int held, int shared_limit) {
  const ForwardTiling wide_pieces{8, 16, 64, 32, 2, 1};
  if (held <= 96) {
    return needs.bounded ? ForwardTiling{4, 16, 64, 32, 2, 3} : ForwardTiling{4, 32, 64, 16, 2, 2};
  }
  if (held <= 192) {
    if (held > 144 && needs.bounded) return wide_pieces;
    const ForwardTiling two_blocks =
        held <= 144 ? ForwardTiling{4, 32, 64, 16, 2, 2, 4} : ForwardTiling{4, 32, 16, 16, 4, 2, 0};
    return resident_blocks(two_blocks, needs, shared_limit) > 1 ? two_blocks : wide_pieces;
  }
  const ForwardTiling large{8, 16, 32, 32, 3, 1, kSomeQuerySteps};
  if (held > 288 && resident_blocks(large, needs, shared_limit) > 0) return large;
  return {8, 16, 16, 16, 4, 1};
}

// Registers per thread: O and Q take dim_v + dim / 2 with 32 rows per warp, half with 16; scores
// and probabilities of a piece take about as many as it has keys.
ForwardTiling fastest_tiling(const ForwardNeeds& needs, int held, int shared_limit) {
  if (needs.rows <= 16) {
    // Bound by memory: three blocks of one warp (H200, 2026-11-21, README.md of the kernels).
    return held <= 96 ? ForwardTiling{1, 16, 32, 32, 4, 3} : ForwardTiling{1, 16, 16, 16, 4, 3};
  }
  if (needs.rows <= 64) {
    const int warps = needs.rows <= 32 ? 2 : 4;
    // MEASURED: with a mask tensor tiles of one piece are 12 to 29 % faster (H200, 2026-11-21).
    return needs.transformed && held > 96 ? ForwardTiling{warps, 16, 16, 16, 4, 2}
                                          : ForwardTiling{warps, 16, 32, 16, 3, 2};
  }
  if (needs.transformed) return masked_tiling(needs, held, shared_limit);
  if (held <= 96) return {4, 32, 64, 64, 2, 2};
  if (held <= 128) return {4, 32, 64, 32, 2, 2};
  if (held <= 192) {
    // MEASURED at head dim 128 (H200, 2026-11-21): pieces of 32 keys with most of Q in shared
    // memory are 7 % faster than pieces of 16, because more products of a step do not wait for each
    // other. Where one block of them fits (made so), one of eight warps and pieces of 16 is 20 to
    // 25 % faster; on sm_120 it would spill with a steady loop.
    const ForwardTiling two_blocks{4, 32, 32, 32, 3, 2, kFewQuerySteps},
        one_block{8, 32, 32, 16, 2, 1, kAllQuerySteps, false};
    return resident_blocks(two_blocks, needs, shared_limit) > 1 ? two_blocks : one_block;
  }
  return {8, 16, 32, 32, 4, 1, 14};
}

}  // namespace

ForwardTiling choose_forward_tiling(const ForwardNeeds& needs, int shared_limit) {
  const int held = divide_up(needs.head_dim_v, 16) * 16 + divide_up(needs.head_dim, 16) * 8;
  ForwardTiling t = fastest_tiling(needs, held, shared_limit);
  if (needs.transformed) {
    t.steady_loop = false;
    if (held > 288) t.query_steps = std::min(t.query_steps, kSomeQuerySteps);
  }
  // Elements on their way from row to tile need the registers of Q, and some of a mask's. On
  // devices with less shared memory (sm_80, sm_86, sm_89, sm_120) more is needed to spill nothing.
  if (needs.by_element) {
    const bool small = shared_limit < kLargeSharedBytes;
    t.query_steps = small && needs.rows <= 16 && needs.transformed ? kSomeQuerySteps / 2 : 0;
    if (small || needs.transformed) t.piece_k = 16;
    if (small) t.steady_loop = false;
  }
  const auto fits = [&] {
    return forward_shared_bytes(t, needs.head_dim, needs.head_dim_v) <= shared_limit;
  };
  if (!fits()) {
    t.tile_k = std::min(t.tile_k, 32);
    t.piece_k = std::min(t.piece_k, t.tile_k);
  }
  while (!fits() && t.stages > 2) --t.stages;
  while (!fits() && t.warps > 1) t.warps /= 2;
  return t;
}

int choose_key_splits(std::int64_t blocks, std::int64_t capacity, std::int64_t seqlen_k,
                      int tile_k) {
  const std::int64_t least = std::max(kMinTilesPerSplit * tile_k, kMinKeysPerSplit);
  const std::int64_t splits = std::min(
      {capacity / std::max<std::int64_t>(blocks, 1), seqlen_k / least, std::int64_t{kMaxSplits}});
  return static_cast<int>(std::max<std::int64_t>(splits, 1));
}

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
  const std::int64_t blocks = choice.tiles_q * choice.heads * g.batch;
  if (blocks > INT32_MAX) return too_long("query tiles", blocks, INT32_MAX);
  const int shared_limit = device.info().shared_bytes_per_block;
  if (const int needed = shared_bytes(g, choice.tiling); needed > shared_limit) {
    return Status::unsupported({"shared memory of one block", fmt::format("{}", needed),
                                fmt::format("at most {}", shared_limit),
                                "use smaller head dims or implementation 'naive'"});
  }

  auto plan = std::make_shared<GpuPlan>(device, problem, g);
  if (choice.splits > 1) {
    const auto rows = static_cast<std::size_t>(choice.splits * g.batch * g.heads_q * g.seqlen_q);
    plan->add_gpu_region("partial_o", rows * static_cast<std::size_t>(g.head_dim_v) * 4);
    plan->add_gpu_region("partial_lse", rows * 4);
    plan->parts = choice.splits;
  }
  const ConfigPrinter config = print(problem, g, choice);
  const ForwardFallbacks fallbacks = print_fallbacks(problem, g, choice, shared_limit);
  GpuStep step;
  step.name = "flash_fwd_sm80";
  step.spec = {"sm80/forward.cu", step.name, config.text(), {}, fallbacks.configs};
  step.shape.grid_x = static_cast<unsigned>(blocks);
  step.shape.grid_y = static_cast<unsigned>(choice.splits);
  step.shape.threads = static_cast<unsigned>(32 * choice.tiling.warps);
  step.shape.shared_bytes = static_cast<unsigned>(fallbacks.shared_bytes);
  step.configuration = fmt::format("{} · {} blocks of {} queries", config.summary(),
                                   blocks * choice.splits, choice.tiling.tile_q());
  plan->add_kernel(std::move(step));
  if (choice.splits > 1) {
    GpuStep merge;
    merge.name = "flash_fwd_sm80_merge";
    merge.spec = {"sm80/forward_merge.cu", merge.name, config.text(), {}};
    const std::int64_t rows = g.batch * g.heads_q * g.seqlen_q;
    merge.shape.grid_x = static_cast<unsigned>(rows);
    merge.shape.threads = 32 * kMergeWarps;
    merge.configuration = fmt::format("{} parts, {} rows", choice.splits, rows);
    plan->add_kernel(std::move(merge));
  }
  explain(*plan, problem, choice);
  return std::shared_ptr<internal::PlanState>(std::move(plan));
}

}  // namespace flashlab::cuda
