#include "cuda/kernels/decode/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <numeric>
#include <random>
#include <utility>

#include "api/context_state.h"
#include "cuda/kernels/decode/launch_arguments.h"
#include "cuda/kernels/decode/tiles.h"
#include "cuda/launch/arguments.h"
#include "cuda/launch/config.h"
#include "cuda/launch/planning.h"
#include "cuda/launch/tensor_map.h"
#include "runtime/kernel_store/config.h"

namespace flashlab::cuda {
namespace {

using device::DecodeArguments;
using device::DecodeParts;
using device::DecodeTiling;
using device::Divisor;
using internal::Feature;
using internal::Geometry;

constexpr std::int64_t kMostQueries = 16;
constexpr std::int64_t kManyQueries = 128;  // of a cache
// MEASURED (H200, 2026-11-28, NOTES.md): dense calls that it serves faster than sm80 and sm90.
// Shorter ones lose what starting and joining cost more.
constexpr std::int64_t kManyKeys = 4096, kManyBytes = 1 << 28;
constexpr int kMeasuredMajor = 9;
// MEASURED (likewise): up to so many bytes of keys and values it is faster to leave what L2 holds,
// which would have to be written back, than to have all of L2.
constexpr std::int64_t kSparingBytes = 1 << 28;
constexpr int kMaxHeadDim = 256, kMaxHeadDimOfManyRows = 128, kRowAlignment = 16;
constexpr std::int64_t kMostGrains = 1 << 30;  // of all tiles: ints in the kernel
constexpr unsigned kUnusedThreads = 256;       // kernels/decode/unused.cu
constexpr std::int64_t kMostUnusedBlocks = 128;

// clang-format off
//                                        row   warp  step       min   query      warp-
//                                 teams warps rows  keys stages blocks steps sums groups
constexpr DecodeTiling
    kFewRows                    {   4,    1,    16,   32,   2,     1},
    kFewRowsLittleMemory        {   4,    1,    16,   16,   3,     1},
    kFewRowsLargeHeads          {   4,    1,    16,   16,   3,     1,   8},
    kFewRowsSmallHeads          {   4,    1,    16,   32,   5,     1},
    kSomeRows                   {   4,    2,    16,   16,   3,     1},
    kSomeRowsSmallHeads         {   4,    2,    16,   32,   5,     1},
    kManyRows                   {   2,    4,    16,   32,   5,     1,   4},
    kManyRowsSmallHeads         {   2,    4,    16,   32,   5,     1},
    kWarpgroups                 {   2,    4,    16,   64,   5,     1,   16,   1, true};
// clang-format on

struct Choice {
  DecodeTiling tiling;
  std::int64_t rows = 0;  ///< of the heads that share a key head
  std::int64_t all_tiles = 0;
  std::int64_t spread = 1;  ///< key heads whose keys as many blocks read side by side
  std::int64_t grain_keys = 0;
  std::int64_t grains = 0;  ///< of a tile, at most
  int blocks = 0;
  bool fixed = false;
};

bool runs_on(const DeviceInfo& gpu) {
  return gpu.major >= 8;
}

int shared_bytes(const Geometry& g, const DecodeTiling& t) {
  return device::shared_bytes(t, static_cast<int>(g.head_dim), static_cast<int>(g.head_dim_v));
}

// The largest divisor of the key heads that leaves few blocks without work.
std::int64_t spread_of(std::int64_t heads, std::int64_t resident) {
  const auto used = [&](std::int64_t spread) { return resident / spread * spread; };
  std::int64_t best = 1;
  for (std::int64_t spread = 1; spread <= std::min(heads, resident); ++spread) {
    if (heads % spread == 0 && 10 * used(spread) >= 9 * resident) best = spread;
  }
  return best;
}

// Queries of a sequence: of a ragged call as many as the hint says, or on average.
std::int64_t queries_of_sequence(const Problem& problem, const Geometry& g) {
  if (problem.options.max_seqlen_q) return *problem.options.max_seqlen_q;
  return g.ragged_q ? divide_up(g.seqlen_q, std::max<std::int64_t>(g.batch, 1)) : g.seqlen_q;
}

bool has_query_lengths(const Problem& problem) {
  return problem.cu_seqlens_q || problem.seqused_q;
}

// Rows of a copy by the copy engine; 0: threads copy. A box begins at a row that is a multiple of 8
// in its page and in its unit.
int box_rows(const Problem& problem, const Geometry& g, int unit_keys, const DeviceInfo& device) {
  if (device.major != kMeasuredMajor || !boundable(problem.k) || !boundable(problem.v)) return 0;
  if (!problem.block_table) return unit_keys;
  const auto rows = static_cast<int>(std::gcd(g.page_size, std::int64_t{unit_keys}));
  return problem.leftpad_k || rows % 8 != 0 ? 0 : rows;
}

Choice choose(const Problem& problem, const Geometry& g, const DeviceInfo& device) {
  Choice choice;
  choice.rows = queries_of_sequence(problem, g) * g.group();
  const std::int64_t dim = std::max(g.head_dim, g.head_dim_v);
  const bool small = dim <= 64;
  if (choice.rows <= kFewRows.rows() || dim > kMaxHeadDimOfManyRows) {
    choice.tiling = small ? kFewRowsSmallHeads : (dim <= 128 ? kFewRows : kFewRowsLargeHeads);
  } else if (choice.rows <= kSomeRows.rows()) {
    choice.tiling = small ? kSomeRowsSmallHeads : kSomeRows;
  } else {
    choice.tiling = small ? kManyRowsSmallHeads : kManyRows;
    if (box_rows(problem, g, kWarpgroups.unit_keys(), device) > 0) choice.tiling = kWarpgroups;
  }
  const int limit = device.shared_bytes_per_block;
  const auto fit = [&](DecodeTiling& t) {
    t.box_rows = box_rows(problem, g, t.unit_keys(), device);
    t.sums = t.row_warps == 1 && dim <= kMaxHeadDimOfManyRows ? t.teams : 1;
    while (t.stages > 2 && shared_bytes(g, t) > limit) --t.stages;
    return shared_bytes(g, t) <= limit;
  };
  if (!fit(choice.tiling)) {
    if (choice.tiling.step_keys == kFewRows.step_keys && choice.tiling.row_warps == 1 && !small) {
      choice.tiling = kFewRowsLittleMemory;
      fit(choice.tiling);
    }
    if (shared_bytes(g, choice.tiling) > limit) choice.tiling.sums = 1;
  }
  const DecodeTiling& t = choice.tiling;
  // A ragged sequence has at most one tile that is not full.
  choice.all_tiles =
      g.heads_k * (g.ragged_q ? divide_up(g.seqlen_q * g.group(), t.rows()) + g.batch
                              : divide_up(g.seqlen_q * g.group(), t.rows()) * g.batch);
  choice.fixed = problem.options.deterministic;
  choice.grain_keys = choice.fixed ? device::kFixedPartKeys : t.unit_keys();
  choice.grains = std::max<std::int64_t>(divide_up(g.seqlen_k, choice.grain_keys), 1);
  const std::int64_t resident = std::int64_t{device.multiprocessors} * t.min_blocks;
  choice.spread = spread_of(g.heads_k, resident);
  const std::int64_t grains = choice.all_tiles / choice.spread * choice.grains;
  choice.blocks = static_cast<int>(choice.spread * std::min(resident / choice.spread, grains));
  return choice;
}

Status unsupported(const char* what, std::string got, std::string expected) {
  return Status::unsupported({what, std::move(got), std::move(expected),
                              "name no implementation, or 'sm80'; caches: 'sm90'"});
}

// Where no implementation is named: what others do not serve, or serve slower.
Status check_worth(const Problem& problem, const Geometry& g, const DeviceInfo& device) {
  if (!problem.options.implementation.empty()) return {};
  const std::int64_t queries = queries_of_sequence(problem, g);
  // MEASURED (H200, 2026-11-28, 32 / 8 heads of 128, bf16, pages of 3 that threads copy): 2,048
  // queries of 32k keys 7.72 ms, sm80 4.04; 4 x 256 of 8k 0.977 and 0.545; 4 x 64 of 32k 1.01 and
  // 1.56. Boxes, pages of 16: 2.91 and 4.02. A choice of `deterministic` depends on no length.
  const bool by_threads = box_rows(problem, g, kWarpgroups.unit_keys(), device) == 0;
  if (has_cache(problem) && by_threads && queries > kManyQueries &&
      !problem.options.deterministic) {
    return unsupported("queries for 'decode' whose keys threads copy", fmt::format("{}", queries),
                       fmt::format("at most {} of each sequence", kManyQueries));
  }
  // Many queries read a mask as large as their scores, which sm80 and sm90 read a tile ahead.
  if (problem.mask && queries > kMostQueries) {
    return unsupported("queries for 'decode' with a mask", fmt::format("{}", queries),
                       fmt::format("at most {} of each sequence", kMostQueries));
  }
  if (has_cache(problem)) return {};
  // The other kernels do not split keys whose number only the device knows.
  if (problem.seqused_k && queries <= kMostQueries) return {};
  const std::int64_t bytes = g.batch * g.heads_k * g.seqlen_k * (g.head_dim + g.head_dim_v) * 2;
  if (device.major == kMeasuredMajor && g.batch > 1 && g.seqlen_q == 1 &&
      g.group() <= kFewRows.rows() && g.seqlen_k >= kManyKeys && bytes >= kManyBytes) {
    return {};
  }
  return unsupported(
      "keys for 'decode'", fmt::format("{} queries, {} keys, {} bytes", queries, g.seqlen_k, bytes),
      fmt::format("one query of several sequences, {} keys and {} bytes or more, on sm_90",
                  kManyKeys, kManyBytes));
}

Status check_keys(const Problem& problem, const Geometry& g) {
  // Of one page a stride is never used, and reads 0.
  if (problem.block_table && problem.block_table->shape[1] > 1 &&
      problem.block_table->strides[1] != 1) {
    return unsupported("strides[1] of block_table for implementation 'decode'",
                       fmt::format("{}", problem.block_table->strides[1]), "1");
  }
  if (g.seqlen_k > kMaxLength) {
    return unsupported("sequence length of implementation 'decode'", fmt::format("{}", g.seqlen_k),
                       fmt::format("at most {}", kMaxLength));
  }
  return {};
}

Status check(const Problem& problem, const Geometry& g) {
  // Of caches any number is served: but for some of sm_90's, by no other kernel of a GPU.
  const std::int64_t queries = queries_of_sequence(problem, g);
  if (queries > kMostQueries && !has_cache(problem)) {
    return unsupported("queries for implementation 'decode'", fmt::format("{}", queries),
                       fmt::format("at most {} of each sequence", kMostQueries));
  }
  if (Status s = check_keys(problem, g); !s.ok()) return s;
  for (const std::int64_t dim : {g.head_dim, g.head_dim_v}) {
    if (dim % 8 != 0 || dim > kMaxHeadDim) {
      return unsupported("head_dim of implementation 'decode'", fmt::format("{}", dim),
                         fmt::format("a multiple of 8 up to {}", kMaxHeadDim));
    }
  }
  const float least_scale = problem.alibi_slopes || problem.mask ? 1e-10f : 1e-30f;
  if (!(g.scale > least_scale)) {
    return unsupported("scale of implementation 'decode'", fmt::format("{}", g.scale), "positive");
  }
  for (const auto& [name, spec] :
       {std::pair{"q", &problem.q}, std::pair{"k", &problem.k}, std::pair{"v", &problem.v}}) {
    if (row_alignment_bytes(*spec) >= kRowAlignment) continue;
    return unsupported("rows of implementation 'decode'",
                       fmt::format("{} aligned to {} bytes", name, row_alignment_bytes(*spec)),
                       "strides and addresses that are multiples of 16 bytes");
  }
  if (call_form(problem) == CallForm::kGeneral) {
    return unsupported(
        "rows of implementation 'decode'",
        "o aligned to fewer bytes than packed, or one element of a mask for all keys",
        "strides and addresses of o as those of packed rows, a mask of all keys");
  }
  return {};
}

// Of whole slabs, heads a whole number of them apart: one box brings all columns of its rows.
bool takes_slabs_at_once(const Problem& problem, const DecodeTiling& t) {
  const auto takes = [](const TensorSpec& spec) {
    return spec.shape[spec.rank - 1] % kSlabColumns == 0 && slabs_between_heads(spec) > 0;
  };
  // A warpgroup reads the rows of all boxes as one.
  return t.box_rows > 0 && !t.warpgroups && takes(problem.k) && takes(problem.v);
}

ConfigPrinter print(const Problem& problem, const Geometry& g, const DecodeTiling& t) {
  ConfigPrinter config;
  print_call(config, problem, g, CallForm::kPairs);
  config.integer("kTeams", t.teams)
      .integer("kRowWarps", t.row_warps)
      .integer("kWarpRows", t.warp_rows)
      .integer("kRows", t.rows())
      .integer("kStepKeys", t.step_keys)
      .integer("kStages", t.stages)
      .integer("kMinBlocks", t.min_blocks)
      .integer("kQuerySteps", t.query_steps)
      .integer("kSums", t.sums)
      .integer("kBoxRows", t.box_rows)
      .boolean("kSlabsAtOnce", takes_slabs_at_once(problem, t))
      .boolean("kWarpgroups", t.warpgroups)
      .integer("kCopyWarps", t.copy_warps())
      .integer("kSharedBytes", shared_bytes(g, t))
      .boolean("kSinks", problem.sinks.has_value());
  return config;
}

/// Workspace: the sums of parts, and how many of a tile are there.
void add_steps(GpuPlan& plan, const Choice& choice) {
  const Problem& problem = plan.problem;
  const Geometry& g = plan.geometry;
  const DecodeTiling& t = choice.tiling;
  DecodeArguments arguments{};
  arguments.call = forward_arguments(problem, g);
  arguments.sequences = sequences_of(problem, g, t.rows(), t.unit_keys());
  arguments.cache = cache_of(problem, g);
  arguments.page = Divisor::of(static_cast<int>(std::max<std::int64_t>(g.page_size, 1)));
  DecodeParts& parts = arguments.parts;
  parts.slot_rows = has_query_lengths(problem)
                        ? t.rows()
                        : static_cast<int>(std::min<std::int64_t>(choice.rows, t.rows()));
  parts.heads = static_cast<int>(g.heads_k / choice.spread);
  parts.grain_log2 =
      std::countr_zero(static_cast<std::uint64_t>(choice.grain_keys / t.unit_keys()));
  parts.most = static_cast<int>(choice.all_tiles / choice.spread * choice.grains);
  parts.group = Divisor::of(static_cast<int>(std::max<std::int64_t>(g.group(), 1)));
  parts.fixed = choice.fixed ? 1 : 0;
  const std::int64_t slots =
      choice.fixed ? choice.all_tiles * choice.grains : 2 * std::int64_t{choice.blocks};
  const std::int64_t counts = choice.fixed ? slots : choice.blocks;
  parts.tag = fresh_tag();
  const std::int64_t bytes = g.batch * g.heads_k * g.seqlen_k * (g.head_dim + g.head_dim_v) * 2;
  arguments.waits_first = has_query_lengths(problem) ? 0 : 1;  // 'unused' writes nothing of it
  arguments.spares_l2 = bytes <= kSparingBytes ? 1 : 0;
  if (t.box_rows > 0) {
    arguments.between_k = static_cast<int>(rows_between_entries(problem.k));
    arguments.between_v = static_cast<int>(rows_between_entries(problem.v));
    arguments.slabs_k = slabs_between_heads(problem.k);
    arguments.slabs_v = slabs_between_heads(problem.v);
  }
  runtime::ParameterBlock block(arguments);
  patch_addresses(block, problem, 0, offsetof(DecodeArguments, call));
  if (t.box_rows > 0) {
    const bool at_once = takes_slabs_at_once(problem, t);
    const auto map = [&](std::size_t offset, TensorRole role, const TensorSpec& spec) {
      runtime::TensorMap of =
          at_once ? bounded_slabs_map(spec, t.box_rows) : bounded_map(spec, t.box_rows);
      // MEASURED (H200, 2026-11-28, NOTES.md): 6 % less time than in pieces of 256 bytes.
      of.fetch = runtime::TensorMap::Fetch::k128Bytes;
      block.tensor_map(offset, {buffer_of(role)}, of);
    };
    map(offsetof(DecodeArguments, k), TensorRole::kK, problem.k);
    map(offsetof(DecodeArguments, v), TensorRole::kV, problem.v);
  }
  patch_sequences(block, problem, offsetof(DecodeArguments, sequences));
  patch_cache(block, problem, offsetof(DecodeArguments, cache));
  const auto region = [&](std::size_t offset, const char* name, std::int64_t bytes) {
    const int index = plan.add_gpu_region(name, static_cast<std::size_t>(bytes));
    block.pointer(offsetof(DecodeArguments, parts) + offset, {buffer_of_region(index)});
  };
  region(offsetof(DecodeParts, o), "parts_o", slots * parts.slot_rows * g.head_dim_v * 4);
  region(offsetof(DecodeParts, statistics), "parts_sums", slots * parts.slot_rows * 8);
  region(offsetof(DecodeParts, counts), "parts_there", counts * 8);

  if (has_query_lengths(problem)) {
    ConfigPrinter config;
    print_element(config, "kOutput", problem.o.dtype);
    config.integer("kHeadDimV", g.head_dim_v);
    GpuStep unused = kernel_step("decode/unused.cu", "flash_fwd_decode_unused", config,
                                 std::min(g.batch + 2, kMostUnusedBlocks), kUnusedThreads, 0,
                                 "results of queries that no sequence has");
    unused.parameters = block;
    plan.add_kernel(std::move(unused));
  }
  GpuStep step = kernel_step(
      "decode/kernel.cu", "flash_fwd_decode", print(problem, g, t), choice.blocks, t.threads(),
      shared_bytes(g, t),
      fmt::format("{} tiles of {} rows, keys shared out in units of {} · {}", choice.all_tiles,
                  t.rows(), choice.grain_keys, stage_words(t.stages)));
  step.parameters = std::move(block);
  step.shape.grid_x = static_cast<unsigned>(choice.spread);
  step.shape.grid_y = static_cast<unsigned>(choice.blocks / choice.spread);
  step.shape.programmatic = true;
  plan.add_kernel(std::move(step));
}

Result<std::shared_ptr<internal::PlanState>> make_plan(const internal::ContextState& context,
                                                       const Problem& problem, const Geometry& g) {
  const GpuDevice& device = *context.gpu();
  if (!runs_on(device.info())) {
    return Status::unsupported(
        {"implementation 'decode'",
         fmt::format("compute capability {}.{}", device.info().major, device.info().minor),
         "8.0 or later", "name none"});
  }
  if (problem.q.dtype == DType::kFp32) {
    const bool named = !problem.options.implementation.empty();
    if (!named && !problem.seqused_k && !has_cache(problem)) {
      return unsupported("keys for 'decode' in fp32", "a dense call",
                         "lengths of keys, or a cache");
    }
    if (Status s = check_keys(problem, g); !s.ok()) return s;
    return plan_decode_fp32(device, problem, g);
  }
  if (Status s = check(problem, g); !s.ok()) return s;
  if (Status s = check_worth(problem, g, device.info()); !s.ok()) return s;
  const Choice choice = choose(problem, g, device.info());
  if (choice.all_tiles > kMostGrains / choice.grains) {
    return too_large("tiles of keys for implementation 'decode'", choice.all_tiles,
                     kMostGrains / choice.grains, "use implementation 'sm80'");
  }
  const int limit = device.info().shared_bytes_per_block;
  if (const int needed = shared_bytes(g, choice.tiling); needed > limit) {
    return unsupported("shared memory of one block", fmt::format("{}", needed),
                       fmt::format("at most {}", limit));
  }
  auto plan = std::make_shared<GpuPlan>(device, problem, g);
  plan->tile_q = choice.tiling.rows();
  plan->tile_k = choice.tiling.unit_keys();
  add_steps(*plan, choice);
  plan->reasons.push_back(fmt::format(
      "the keys of {} tiles are shared out equally over {} blocks, and the last block of a tile "
      "joins its parts",
      choice.all_tiles, choice.blocks));
  return std::shared_ptr<internal::PlanState>(std::move(plan));
}

}  // namespace

std::uint64_t fresh_tag() {
  static std::atomic<std::uint64_t> next{(std::uint64_t{std::random_device{}()} << 32) +
                                         std::random_device{}()};
  // Odd multiples of an odd number repeat after 2^64 of them.
  const std::uint64_t tag = 0x9e3779b97f4a7c15u * ++next & ~device::kCountMask;
  return tag != 0 ? tag : fresh_tag();
}

const internal::Implementation& decode_implementation() {
  static const internal::Implementation implementation{
      "decode",
      DeviceKind::kCuda,
      "few queries over many keys at the speed of memory, sm_80 and later: fp16, bf16; one in fp32",
      internal::FeatureSet{Feature::kForward,
                           Feature::kFp16,
                           Feature::kBf16,
                           Feature::kFp32,
                           Feature::kTf32,
                           Feature::kCausal,
                           Feature::kWindow,
                           Feature::kBesideDiagonal,
                           Feature::kChunk,
                           Feature::kBoolMask,
                           Feature::kAdditiveMask,
                           Feature::kSoftcap,
                           Feature::kGroupedQuery,
                           Feature::kUnequalHeadDims,
                           Feature::kDeterministic,
                           TensorRole::kLse,
                           TensorRole::kAlibiSlopes,
                           TensorRole::kSinks,
                           TensorRole::kCuSeqlensQ,
                           TensorRole::kSeqUsedQ,
                           TensorRole::kSeqUsedK,
                           TensorRole::kBlockTable,
                           TensorRole::kCacheBatchIdx,
                           TensorRole::kLeftPadK},
      make_plan,
      runs_on};
  return implementation;
}

}  // namespace flashlab::cuda
