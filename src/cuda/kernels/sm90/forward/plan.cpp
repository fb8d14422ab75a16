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
#include "cuda/kernels/tile/bounded.h"
#include "cuda/launch/arguments.h"
#include "cuda/launch/config.h"
#include "cuda/launch/planning.h"
#include "cuda/launch/tensor_map.h"
#include "runtime/kernel_store/config.h"

namespace flashlab::cuda {
namespace {

using device::Sm90ForwardArguments;
using internal::Geometry;

constexpr int kMaxHeadDim = 256, kMaxMaskedHeadDim = 192, kMaxUnpairedHeadDim = 128;
constexpr int kWideMaskHeadDim = 64, kRowAlignment = 16;
constexpr std::int64_t kPartRows = 8;  // of a page: rows after which the swizzle repeats
constexpr int kWarpgroupRows = 64, kWarpgroupThreads = 128;
// MEASURED (H200, 2026-11-23, kernels/sm90/NOTES.md): beyond this many keys, or bytes of a head's K
// and V, the shorter half of the tiles of all heads is left for the end, where a section's longest
// tile would have nothing beside it. With fewer the second reading of K and V costs more.
constexpr std::int64_t kShortCausal = 2048, kSmallHeadBytes = (1 << 21) - 1;
// MEASURED (H200, 2026-11-23, kernels/sm90/README.md): sm80's smaller tiles are faster for fewer
// rows of a head or packed group. Few queries before few keys are not measured: they stay with
// sm80.
constexpr std::int64_t kMinRows = 32, kFewQueries = 64, kManyKeys = 1024;
constexpr std::int64_t kMinRaggedQueries = 10;  // of a sequence, the mean
// MEASURED (H200, 2026-11-28, kernels/sm90/NOTES.md; 32 / 8 heads of 128, pages of 64): as fast as
// 'decode' with about so many tiles of 64 rows; with few queries, which 'decode' reads at the speed
// of memory, where there are tiles for all multiprocessors.
constexpr std::int64_t kFewCachedQueries = 16, kCachedTiles = 48, kCachedTilesOfFew = 128;
constexpr std::int64_t kPackedQueries = 128;  // per head: up to here a group's heads share tiles
constexpr std::int64_t kUsualTile = 192;      // queries of three consumers
constexpr int kMaxTiles = 1 << 30;
constexpr int kMergeWarps = 4;                      // kernels/sm90/forward/merge.cu
constexpr std::int64_t kMaxStreamBlocks = 1 << 30;  // 31 bits in the kernel
// MEASURED (H200, 2026-11-23, kernels/sm90/NOTES.md): what a block of keys takes, and what parts of
// tiles and their merge cost.
constexpr double kFlopPerUs = 4.9e6, kLeastBlockUs = 0.7, kMergeUs = 4, kMergeUsPerByte = 1.2e-6;
constexpr double kLeastShare = 0.005;  // of the whole rounds' time: less is no gain one can see

struct Choice {
  CallForm call = CallForm::kGeneral;
  Sm90ForwardTiling tiling;
  bool bounded = false;
  std::int64_t group = 1;  ///< query heads whose rows share tiles
  device::TileOrder order{};
  device::KeyStream stream{};
  int grid = 0;

  bool streams() const { return stream.tiles > 0; }
  bool shares() const { return streams() || group > 1; }  ///< keys, or tiles
  bool counts() const { return bounded && !streams(); }
};

// Of the K and V that the heads of a group share.
std::int64_t bytes_of_group(const Geometry& g) {
  return g.seqlen_k * (g.head_dim + g.head_dim_v) * 2;
}

// Heads, or packed groups, of a section: equal sections of whole groups, of which one's K and V fit
// half of L2.
int heads_of_section(const Geometry& g, std::int64_t packed, std::int64_t l2_bytes) {
  const std::int64_t fit = std::max<std::int64_t>(l2_bytes / 2 / bytes_of_group(g), 1);
  const std::int64_t groups = g.batch * g.heads_k, sections = (groups + fit - 1) / fit;
  return static_cast<int>((groups + sections - 1) / sections * (g.group() / packed));
}

// What a sequence of a call has: of a ragged one the mean. So that bits depend on a sequence alone
// a deterministic one counts as long.
struct UsualLengths {
  std::int64_t queries, keys;
};
UsualLengths usual_lengths(const Problem& problem, const Geometry& g) {
  if (!g.has_lengths) return {g.seqlen_q, g.seqlen_k};
  if (problem.options.deterministic) return {kMaxLength, kMaxLength};
  const std::int64_t count = std::max<std::int64_t>(g.batch, 1);
  return {problem.cu_seqlens_q ? g.seqlen_q / count : g.seqlen_q,
          problem.cu_seqlens_k ? g.seqlen_k / count : g.seqlen_k};
}

// Packed where that leaves fewer warpgroups' rows empty. A group divides their rows: a box for the
// copy engine (Sm90Rows).
std::int64_t packed_heads(const Problem& problem, const Geometry& g) {
  const std::int64_t group = g.group(), queries = usual_lengths(problem, g).queries;
  if (group == 1 || kWarpgroupRows % group != 0 || queries > kPackedQueries) return 1;
  if (g.dropout > 0) return 1;  // drawn for one head
  const auto warpgroups = [](std::int64_t rows) {
    return (rows + kWarpgroupRows - 1) / kWarpgroupRows;
  };
  return warpgroups(queries * group) < warpgroups(queries) * group ? group : 1;
}

// Blocks of keys of the tile that begins at a row; one for a tile without keys, which has results
// all the same.
int blocks_of_tile(const device::Shape& shape, const Choice& choice, int first_row) {
  const Sm90ForwardTiling& tiling = choice.tiling;
  const std::int64_t rows = shape.seqlen_q * choice.group, first = first_row / choice.group;
  const std::int64_t last =
      (std::min<std::int64_t>(first_row + tiling.tile_q(), rows) - 1) / choice.group;
  const auto key = [&](std::int64_t at) { return std::clamp<std::int64_t>(at, 0, shape.seqlen_k); };
  const std::int64_t begin = key(first - shape.left), end = key(last + shape.right + 1);
  const std::int64_t blocks =
      (end + tiling.block_keys - 1) / tiling.block_keys - begin / tiling.block_keys;
  return static_cast<int>(std::max<std::int64_t>(blocks, 1));
}

// Shares out the keys of the last tiles where whole tiles would leave multiprocessors idle: those
// beyond full rounds of equal tiles, or, of a bounded call, all of them.
void choose_stream(Choice& choice, const Geometry& g, int multiprocessors) {
  const device::Shape shape = shape_of(g);
  device::KeyStream& stream = choice.stream;
  device::TileOrder& order = choice.order;
  const int rounds = choice.bounded ? 0 : order.tiles / multiprocessors;
  stream.first_tile = rounds * multiprocessors;
  const int tiles = order.tiles - stream.first_tile;
  stream.period = choice.bounded ? order.tiles_q : 1;
  if (tiles == 0 || stream.period > device::kMaxStreamPeriod) return;
  // In the order of tiles, one head behind the other.
  const int tile_q = choice.tiling.tile_q();
  const bool from_last = g.bounds.right < g.bounds.kUnbounded;
  int longest = 0;
  for (int rank = 0; rank < stream.period; ++rank) {
    const int tile = from_last ? order.tiles_q - 1 - rank : rank;
    const int blocks = blocks_of_tile(shape, choice, tile * tile_q - order.rows_before);
    stream.begins[rank + 1] = stream.begins[rank] + blocks;
    longest = std::max(longest, blocks);
  }
  const std::int64_t blocks = std::int64_t{tiles / stream.period} * stream.begins[stream.period];
  if (blocks > kMaxStreamBlocks) return;
  const int ranges = static_cast<int>(std::min<std::int64_t>(blocks, multiprocessors));
  const int each = static_cast<int>(blocks / ranges);
  const std::int64_t alone = std::max<std::int64_t>(longest, blocks / multiprocessors);
  const double rows = static_cast<double>(ranges + tiles) * tile_q;
  const double block_us =
      std::max(kLeastBlockUs, 2.0 * tile_q * choice.tiling.block_keys *
                                  static_cast<double>(g.head_dim + g.head_dim_v) / kFlopPerUs);
  const double merge_us = kMergeUs + kMergeUsPerByte * 4 * rows * static_cast<double>(g.head_dim_v);
  const double whole_us = rounds * static_cast<double>(longest) * block_us;
  const double gain_us = static_cast<double>(alone - each) * block_us - merge_us;
  if (gain_us < kLeastShare * whole_us) return;
  order.tiles = stream.first_tile;
  order.section_heads = choice.bounded ? 1 : order.section_heads;
  order.long_ranks = order.tiles_q;
  stream.tiles = tiles;
  stream.ranges = ranges;
  stream.each = each;
  stream.more = static_cast<int>(blocks % ranges);
  choice.grid = order.tiles > 0 ? multiprocessors : ranges;
}

// Softcap, ALiBi, mask tensors and dropout: work on scores or probabilities of every block.
int count_score_terms(const Problem& problem, const Geometry& g) {
  return (g.softcap > 0) + problem.alibi_slopes.has_value() + problem.mask.has_value() +
         (g.dropout > 0);
}

// Whether eight neighbouring elements of a mask are read at once, where its rows allow it. Larger
// heads have no registers for the exchange, and longer steps to read pairs in.
bool takes_wide_mask(const Problem& problem, const Geometry& g) {
  return problem.mask && g.head_dim_v <= kWideMaskHeadDim && size_of(problem.mask->dtype) == 2;
}

// Two or eight elements of a mask are read at once, of which the last of a row do not reach beyond
// it; those of all other masks are read one by one.
CallForm form_of(const Problem& problem, const Geometry& g) {
  if (!problem.mask) return CallForm::kPairs;
  const bool wide = takes_wide_mask(problem, g);
  const bool aligned = !wide || row_alignment_bytes(*problem.mask) == kRowAlignment;
  const bool whole = problem.mask->shape[3] % (wide ? 8 : 2) == 0;
  return call_form(problem) == CallForm::kPairs && aligned && whole ? CallForm::kPairs
                                                                    : CallForm::kGeneral;
}

bool has_wide_mask(const Problem& problem, const Geometry& g) {
  return takes_wide_mask(problem, g) && form_of(problem, g) == CallForm::kPairs;
}

// Whether a thread holds more of what scores are made of than three consumers have registers for.
bool has_many_score_terms(const Problem& problem, const Geometry& g) {
  const bool wide_mask = problem.mask && (problem.mask->dtype == DType::kFp32 ||
                                          form_of(problem, g) != CallForm::kPairs);
  const bool large = problem.mask && g.head_dim > 128;
  return wide_mask || large || count_score_terms(problem, g) > 1;
}

// Whether a step of 128 keys would spill at head dim 64. Dropout alone does not in dense calls, nor
// ALiBi of rows of one head.
bool has_score_terms(const Problem& problem, const Geometry& g) {
  return g.softcap > 0 || problem.mask || count_score_terms(problem, g) > 1 ||
         (g.dropout > 0 && g.has_lengths) || (problem.alibi_slopes && packed_heads(problem, g) > 1);
}

int shared_bytes_of(const Geometry& g, const Sm90ForwardTiling& t) {
  return shared_bytes(t, static_cast<int>(g.head_dim), static_cast<int>(g.head_dim_v),
                      g.has_lengths);
}

Choice choose(const Problem& problem, const Geometry& g, const DeviceInfo& device,
              const Sm90ForwardTiling& tiling) {
  const int multiprocessors =
      problem.options.deterministic ? kNominalMultiprocessors : device.multiprocessors;
  Choice choice;
  choice.call = form_of(problem, g);
  choice.bounded = g.bounds.bounded();
  choice.tiling = tiling;
  device::TileOrder& order = choice.order;
  choice.group = packed_heads(problem, g);
  if (g.has_lengths) return choice;
  const std::int64_t rows = g.seqlen_q * choice.group;
  order.tiles_q = static_cast<int>((rows + choice.tiling.tile_q() - 1) / choice.tiling.tile_q());
  order.heads = static_cast<int>(g.batch * g.heads_q / choice.group);
  order.tiles = order.tiles_q * order.heads;
  if (g.bounds.right < g.bounds.kUnbounded && g.bounds.left == g.bounds.kUnbounded) {
    const std::int64_t empty = std::int64_t{order.tiles_q} * choice.tiling.tile_q() - rows;
    order.rows_before = static_cast<int>(empty / kWarpgroupRows) * kWarpgroupRows;
  }
  order.section_heads = heads_of_section(g, choice.group, device.l2_bytes);
  const bool long_tiles = g.seqlen_k > kShortCausal || bytes_of_group(g) > kSmallHeadBytes;
  order.long_ranks = choice.bounded && long_tiles ? order.tiles_q / 2 : order.tiles_q;
  choice.grid = std::min(order.tiles, device.multiprocessors);
  choose_stream(choice, g, multiprocessors);
  return choice;
}

Status unsupported(const char* what, std::string got, std::string expected) {
  return Status::unsupported(
      {what, std::move(got), std::move(expected), "name no implementation, or 'sm80'"});
}

// A part of a page begins at a multiple of 8 rows of its step's tile: there the swizzle repeats.
Status check_pages(const Problem& problem, const Geometry& g) {
  const auto refuse = [](const char* what, std::string got, std::string expected) {
    return Status::unsupported(
        {what, std::move(got), std::move(expected), "name no implementation, or 'decode'"});
  };
  if (!problem.block_table) return {};
  if (g.page_size % kPartRows != 0) {
    return refuse("page size of implementation 'sm90'", fmt::format("{}", g.page_size),
                  fmt::format("a multiple of {}", kPartRows));
  }
  if (problem.leftpad_k) {
    return refuse("leftpad_k of implementation 'sm90'", "given with pages", "caches without pages");
  }
  // Of one page a stride is never used, and reads 0.
  if (problem.block_table->shape[1] > 1 && problem.block_table->strides[1] != 1) {
    return refuse("strides[1] of block_table for implementation 'sm90'",
                  fmt::format("{}", problem.block_table->strides[1]), "1");
  }
  return {};
}

Status check(const Problem& problem, const Geometry& g) {
  if (Status s = check_pages(problem, g); !s.ok()) return s;
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
  // Slopes and additive masks are divided by it.
  const float least_scale = problem.alibi_slopes || problem.mask ? 1e-10f : 1e-30f;
  if (!(g.scale > least_scale)) {
    return unsupported("scale of implementation 'sm90'", fmt::format("{}", g.scale), "positive");
  }
  // O has 128 of a thread's registers there: such masks would spill.
  const bool window = g.bounds.left < g.bounds.kUnbounded;
  const bool pairs = form_of(problem, g) == CallForm::kPairs;
  const bool wide = window || (problem.mask && problem.mask->dtype == DType::kFp32);
  if (problem.mask &&
      ((g.head_dim_v > kMaxUnpairedHeadDim && !pairs) ||
       (g.head_dim_v > kMaxUnpairedHeadDim && g.dropout > 0) ||
       (g.head_dim_v > kMaxMaskedHeadDim && (wide || count_score_terms(problem, g) > 1)))) {
    return unsupported("mask of implementation 'sm90'",
                       fmt::format("head_dim {} of v", g.head_dim_v),
                       fmt::format("up to {}, {} with dropout or where elements of a mask are not "
                                   "read in pairs; beyond only 16-bit or bool without window, "
                                   "softcap, ALiBi",
                                   kMaxMaskedHeadDim, kMaxUnpairedHeadDim));
  }
  for (const auto& [name, spec] :
       {std::pair{"q", &problem.q}, std::pair{"k", &problem.k}, std::pair{"v", &problem.v}}) {
    if (describable(*spec)) continue;
    return unsupported("rows of implementation 'sm90'",
                       fmt::format("{} aligned to {} bytes", name, row_alignment_bytes(*spec)),
                       "strides and addresses that are positive multiples of 16 bytes");
  }
  for (const auto& [name, spec] :
       {std::pair{"q", &problem.q}, std::pair{"k", &problem.k}, std::pair{"v", &problem.v}}) {
    if (!g.has_lengths || boundable(*spec)) continue;
    return unsupported("rows of sequences of implementation 'sm90'",
                       fmt::format("{} {}", name, to_string(*spec)),
                       fmt::format("at most {} rows, {} bytes apart, and entries of a batch that "
                                   "are whole rows apart",
                                   device::kBoundedRows, kMaxBoundedRowBytes));
  }
  if (row_alignment_bytes(problem.o) < kRowAlignment) {
    return unsupported("rows of implementation 'sm90'",
                       fmt::format("o aligned to {} bytes", row_alignment_bytes(problem.o)),
                       "strides and addresses that are multiples of 16 bytes");
  }
  return {};
}

// Whether two elements of a mask can be read at once, as sm80 does, but not eight.
bool has_mask_of_pairs_alone(const Problem& problem, const Geometry& g) {
  return problem.mask && takes_wide_mask(problem, g) && !has_wide_mask(problem, g) &&
         call_form(problem) == CallForm::kPairs && problem.mask->shape[3] % 2 == 0 &&
         row_alignment_bytes(*problem.mask) >= 4;
}

// Of caches: those whose tiles keep most multiprocessors at work. 'decode' shares out keys, in
// tiles of 64 rows. What it lacks is served here, and a deterministic choice looks at what a
// sequence has alone.
Status check_worth_of_cache(const Problem& problem, const Geometry& g) {
  if (problem.mask || g.dropout > 0) return {};
  const bool sure = problem.options.deterministic;
  const std::int64_t sequences = std::max<std::int64_t>(g.batch, 1);
  const std::int64_t queries = g.ragged_q ? g.seqlen_q / sequences : g.seqlen_q;
  const std::int64_t rows = queries * g.group();
  const std::int64_t tiles =
      (sure ? 1 : sequences) * g.heads_k * divide_up(rows, std::int64_t{kWarpgroupRows});
  const std::int64_t least = queries > kFewCachedQueries ? kCachedTiles : kCachedTilesOfFew;
  if (rows > kFewCachedQueries && tiles >= least && !(sure && g.ragged_q)) return {};
  return unsupported(
      "queries before a cache for 'sm90'",
      fmt::format("{} of a sequence, {} tiles of {} rows", queries, tiles, kWarpgroupRows),
      sure ? fmt::format("queries that are not ragged, in {} tiles of one sequence", least)
           : fmt::format("more than {} rows of a group's heads, {} tiles", kFewCachedQueries,
                         least));
}

// Where no implementation is named: what others serve faster.
Status check_worth(const Problem& problem, const Geometry& g) {
  if (!problem.options.implementation.empty()) return {};
  if (has_cache(problem)) return check_worth_of_cache(problem, g);
  // MEASURED (H200, 2026-11-24, 2 x 8 heads, 2046 keys, d 64, bf16): 127.7 us element by element,
  // sm80 109.7; causal 90.3 and 79.2.
  if (has_mask_of_pairs_alone(problem, g)) {
    return unsupported("rows of the mask for 'sm90'",
                       fmt::format("{} keys aligned to {} bytes", problem.mask->shape[3],
                                   row_alignment_bytes(*problem.mask)),
                       "multiples of 8 keys and 16 bytes");
  }
  const auto [queries, keys] = usual_lengths(problem, g);
  if (queries > kFewQueries) return {};
  // MEASURED (H200, 2026-11-28, 8192 sequences of 34 and of 10 tokens, 12 heads of 128): 1.74 and
  // 1.72 ms, sm80 3.41 and 2.71. Few queries before many keys are not measured.
  const bool few_of_few = queries >= kMinRaggedQueries && keys < kManyKeys;
  if (g.has_lengths && (queries >= kMinRows || few_of_few)) return {};
  if (queries * packed_heads(problem, g) >= kMinRows && keys >= kManyKeys) return {};
  return unsupported(
      "queries for 'sm90'", fmt::format("{} of {} keys", queries, keys),
      fmt::format("more than {}, or, with {} keys, {} rows of a head or of a group's heads",
                  kFewQueries, kManyKeys, kMinRows));
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
