#include "cuda/launch/sm90_forward.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "api/context_state.h"
#include "cuda/kernels/sm90_forward_arguments.h"
#include "cuda/launch/arguments.h"
#include "cuda/launch/config.h"
#include "cuda/launch/gpu_plan.h"
#include "runtime/kernel_store/config.h"

namespace flashlab::cuda {
namespace {

using device::Sm90ForwardArguments;
using internal::Geometry;

constexpr int kMaxHeadDim = 256;
constexpr std::int64_t kMaxLength = INT32_MAX - 1024;  // positions are 32-bit in the kernel
constexpr std::int64_t kMaxStrideBytes = std::int64_t{1} << 40;
constexpr int kMapAlignment = 16;  // of a tensor map's address and strides, in bytes
constexpr int kWarpgroupRows = 64, kWarpgroupThreads = 128;
constexpr int kSlabColumns = 64, kSlabRowBytes = 128;  // kernels/tile/slab.h
constexpr int kSharedAlignment = 1024;
constexpr int kMaxStages = 5;
// MEASURED (H200, 2026-11-22, kernels/sm90/NOTES.md): at head dim 64 steps of 128 keys are faster
// than of 64 from this many keys on; causal calls with fewer lose more at the diagonal.
constexpr std::int64_t kLongCausal = 2048;
constexpr int kMinQueries = 65;               // below, sm80 packs the heads of a group into a tile
constexpr std::int64_t kFewTiles = 2;         // tiles must fill 1 / this of the multiprocessors
constexpr int kNominalMultiprocessors = 128;  // of a deterministic plan, whatever the real number

constexpr int divide_up(int a, int b) {
  return (a + b - 1) / b;
}
constexpr int slabs(int dim) {
  return divide_up(dim, kSlabColumns);
}

struct Choice {
  Sm90ForwardTiling tiling;
  bool bounded = false;
  int tiles_q = 0;  ///< per (batch, head)
  std::int64_t tiles = 0;
  int section_heads = 1;
};

// Heads whose K and V share L2: sections of them are worked off one after the other.
int heads_of_section(const Geometry& g, std::int64_t l2_bytes) {
  const std::int64_t per_group = g.seqlen_k * (g.head_dim + g.head_dim_v) * 2;
  const std::int64_t groups =
      std::max<std::int64_t>(l2_bytes / 2 / std::max<std::int64_t>(per_group, 1), 1);
  return static_cast<int>(std::min(groups * g.group(), g.batch * g.heads_q));
}

Choice choose(const Geometry& g, const DeviceInfo& device) {
  Choice choice;
  choice.bounded = std::min(g.bounds.left, g.bounds.right) < g.bounds.kUnbounded;
  choice.tiling = choose_sm90_forward_tiling(
      {static_cast<int>(g.head_dim), static_cast<int>(g.head_dim_v), g.seqlen_k, choice.bounded},
      device.shared_bytes_per_block);
  choice.tiles_q =
      static_cast<int>((g.seqlen_q + choice.tiling.tile_q() - 1) / choice.tiling.tile_q());
  choice.tiles = choice.tiles_q * g.heads_q * g.batch;
  choice.section_heads = heads_of_section(g, device.l2_bytes);
  return choice;
}

bool describable(const TensorSpec& spec) {
  if (row_alignment_bytes(spec) < kMapAlignment) return false;
  const auto size = static_cast<std::int64_t>(size_of(spec.dtype));
  for (std::size_t i = 0; i < 3; ++i) {
    const std::int64_t bytes = spec.strides[i] * size;
    if (spec.shape[i] > 1 && (bytes <= 0 || bytes >= kMaxStrideBytes)) return false;
  }
  return true;
}

Status unsupported(const char* what, std::string got, std::string expected) {
  return Status::unsupported(
      {what, std::move(got), std::move(expected), "name no implementation, or 'sm80'"});
}

Status check(const Problem& problem, const Geometry& g) {
  for (const std::int64_t dim : {g.head_dim, g.head_dim_v}) {
    if (dim % 8 != 0 || dim > kMaxHeadDim) {
      return unsupported("head_dim of implementation 'sm90'", fmt::format("{}", dim),
                         fmt::format("a multiple of 8 up to {}", kMaxHeadDim));
    }
  }
  if (std::max(g.seqlen_q, g.seqlen_k) > kMaxLength || std::min(g.seqlen_q, g.seqlen_k) < 1) {
    return unsupported("sequence length of implementation 'sm90'",
                       fmt::format("{} and {}", g.seqlen_q, g.seqlen_k),
                       fmt::format("1 to {}", kMaxLength));
  }
  if (!(g.scale > 1e-30f)) {
    return unsupported("scale of implementation 'sm90'", fmt::format("{}", g.scale), "positive");
  }
  for (const auto& [name, spec] :
       {std::pair{"q", &problem.q}, std::pair{"k", &problem.k}, std::pair{"v", &problem.v}}) {
    if (describable(*spec)) continue;
    return unsupported("rows of implementation 'sm90'",
                       fmt::format("{} aligned to {} bytes", name, row_alignment_bytes(*spec)),
                       "strides and addresses that are positive multiples of 16 bytes");
  }
  return {};
}

// Where no implementation is named: what sm80 serves faster, because it splits the keys and packs
// the heads of a group.
Status check_worth(const Problem& problem, const Geometry& g, const Choice& choice,
                   const DeviceInfo& device) {
  if (!problem.options.implementation.empty()) return {};
  if (g.seqlen_q < kMinQueries) {
    return unsupported("queries for 'sm90'", fmt::format("{}", g.seqlen_q),
                       fmt::format("at least {}", kMinQueries));
  }
  const int multiprocessors =
      problem.options.deterministic ? kNominalMultiprocessors : device.multiprocessors;
  if (choice.tiles * kFewTiles < multiprocessors) {
    return unsupported("query tiles for 'sm90'", fmt::format("{}", choice.tiles),
                       fmt::format("at least {}", multiprocessors / kFewTiles));
  }
  return {};
}

ConfigPrinter print(const Problem& problem, const Geometry& g, const Choice& choice) {
  const Sm90ForwardTiling& t = choice.tiling;
  ConfigPrinter config;
  print_call(config, problem, g);
  config.integer("kConsumers", t.consumers)
      .integer("kBlockKeys", t.block_keys)
      .integer("kStagesQ", t.stages_q)
      .integer("kStagesK", t.stages_k)
      .integer("kStagesV", t.stages_v)
      .boolean("kTurns", t.turns)
      .integer("kSharedBytes", sm90_forward_shared_bytes(t, static_cast<int>(g.head_dim),
                                                         static_cast<int>(g.head_dim_v)));
  return config;
}

/// [batch, heads, seqlen, dim] in boxes of `rows` x 64. A dimension of one element has no stride of
/// its own: any valid one does.
runtime::TensorMap tensor_map(const TensorSpec& spec, int rows) {
  runtime::TensorMap map;
  map.dtype = spec.dtype;
  map.rank = 4;
  constexpr std::array<std::size_t, 4> kInnermostFirst{3, 1, 2, 0};
  for (std::size_t i = 0; i < 4; ++i) {
    const std::size_t axis = kInnermostFirst[i];
    map.extents[i] = static_cast<std::uint64_t>(spec.shape[axis]);
    if (i == 0) continue;
    map.strides_bytes[i - 1] =
        spec.shape[axis] > 1 ? static_cast<std::uint64_t>(spec.strides[axis]) * size_of(spec.dtype)
                             : kSlabRowBytes;
  }
  map.box = {kSlabColumns, static_cast<std::uint32_t>(rows), 1, 1};
  map.swizzle = runtime::TensorMap::Swizzle::k128Bytes;
  return map;
}

runtime::ParameterBlock parameters(const Problem& problem, const Geometry& g, const Choice& choice,
                                   int regions) {
  Sm90ForwardArguments arguments{};
  arguments.call = forward_arguments(problem, g);
  arguments.order.tiles_q = choice.tiles_q;
  arguments.order.heads = static_cast<int>(g.batch * g.heads_q);
  arguments.order.section_heads = choice.section_heads;
  arguments.order.tiles = static_cast<int>(choice.tiles);
  runtime::ParameterBlock block(arguments);
  patch_addresses(block, problem, regions, offsetof(Sm90ForwardArguments, call));
  const auto map = [&](std::size_t offset, TensorRole role, const TensorSpec& spec, int rows) {
    block.tensor_map(offset, {buffer_of(role)}, tensor_map(spec, rows));
  };
  map(offsetof(Sm90ForwardArguments, q), TensorRole::kQ, problem.q, kWarpgroupRows);
  map(offsetof(Sm90ForwardArguments, k), TensorRole::kK, problem.k, choice.tiling.block_keys);
  map(offsetof(Sm90ForwardArguments, v), TensorRole::kV, problem.v, choice.tiling.block_keys);
  if (choice.bounded) {
    block.pointer(offsetof(Sm90ForwardArguments, order) + offsetof(device::TileOrder, counter),
                  {buffer_of_region(0)});
  }
  return block;
}

}  // namespace

int sm90_forward_shared_bytes(const Sm90ForwardTiling& t, int head_dim, int head_dim_v) {
  const int q = t.consumers * t.stages_q * kWarpgroupRows * kSlabRowBytes * slabs(head_dim);
  const int k = t.stages_k * t.block_keys * kSlabRowBytes * slabs(head_dim);
  const int v = t.stages_v * t.block_keys * kSlabRowBytes * slabs(head_dim_v);
  constexpr int kTasks = 4;  // queued: a task of seven numbers and two barriers each
  const int barriers =
      kTasks * (28 + 16) + 16 * (t.consumers * t.stages_q + t.stages_k + t.stages_v);
  return divide_up(q + k + v + barriers, kSharedAlignment) * kSharedAlignment;
}

Sm90ForwardTiling choose_sm90_forward_tiling(const Sm90ForwardNeeds& needs, int shared_limit) {
  Sm90ForwardTiling t;
  // Registers: O takes head_dim_v / 2 of a thread's, and three consumers have 160.
  t.consumers = needs.head_dim_v <= 128 ? 3 : 2;
  const bool small = needs.head_dim <= 64 && needs.head_dim_v <= 64;
  if (small && (!needs.bounded || needs.seqlen_k >= kLongCausal)) t.block_keys = 128;
  t.turns = small && !needs.bounded;
  if (small) t.stages_q = 2;
  const auto fits = [&](const Sm90ForwardTiling& tiling) {
    return sm90_forward_shared_bytes(tiling, needs.head_dim, needs.head_dim_v) <= shared_limit;
  };
  Sm90ForwardTiling more = t;
  while (more.stages_v < kMaxStages && (++more.stages_k, ++more.stages_v, fits(more))) t = more;
  more = t;
  if (++more.stages_k; fits(more)) t = more;
  return t;
}

Result<std::shared_ptr<internal::PlanState>> plan_sm90_forward(
    const internal::ContextState& context, const Problem& problem, const Geometry& g) {
  const GpuDevice& device = *context.gpu();
  if (Status s = check(problem, g); !s.ok()) return s;
  const Choice choice = choose(g, device.info());
  if (Status s = check_worth(problem, g, choice, device.info()); !s.ok()) return s;
  if (choice.tiles > INT32_MAX - device.info().multiprocessors) {
    return unsupported("query tiles of implementation 'sm90'", fmt::format("{}", choice.tiles),
                       fmt::format("at most {}", INT32_MAX - device.info().multiprocessors));
  }
  auto plan = std::make_shared<GpuPlan>(device, problem, g);
  if (choice.bounded) {
    plan->add_zero("next_tile_zero", plan->add_gpu_region("next_tile", sizeof(int)));
    plan->reasons.push_back("blocks take tiles of queries as they come: causal tiles differ");
  }
  const ConfigPrinter config = print(problem, g, choice);
  GpuStep step;
  step.name = "flash_fwd_sm90";
  step.spec = {"sm90/forward/kernel.cu", step.name, config.text(), {}};
  step.shape.grid_x =
      static_cast<unsigned>(std::min<std::int64_t>(choice.tiles, device.info().multiprocessors));
  step.shape.threads = static_cast<unsigned>((choice.tiling.consumers + 1) * kWarpgroupThreads);
  step.shape.shared_bytes = static_cast<unsigned>(sm90_forward_shared_bytes(
      choice.tiling, static_cast<int>(g.head_dim), static_cast<int>(g.head_dim_v)));
  step.configuration = fmt::format("{} · {} tiles of {} queries", config.summary(), choice.tiles,
                                   choice.tiling.tile_q());
  step.parameters = parameters(problem, g, choice, choice.bounded ? 1 : 0);
  plan->add_kernel(std::move(step));
  return std::shared_ptr<internal::PlanState>(std::move(plan));
}

}  // namespace flashlab::cuda
