#include "cuda/kernels/sm90/forward/order_plan.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <vector>

#include "cuda/kernels/sm90/forward/limits_plan.h"
#include "cuda/launch/arguments.h"
#include "cuda/launch/planning.h"

namespace flashlab::cuda::sm90_forward {
namespace {

using internal::Geometry;

// MEASURED (H200, 2026-11-28, kernels/sm90/NOTES.md): beyond this many keys, or bytes of a head's K
// and V, the shorter tiles of all heads are left for the end, where the last heads' longest tiles
// would have nothing beside them. With fewer the second reading of K and V costs more.
constexpr std::int64_t kShortCausal = 2048, kSmallHeadBytes = (1 << 21) - 1;
// MEASURED (H200, 2026-11-24, kernels/sm90/NOTES.md): up to here the last heads' equally long tiles
// go rank by rank, too: full 512 and 1k 1.5 % faster.
constexpr std::int64_t kRankedHeadDim = 64;
constexpr std::int64_t kPackedQueries = 128;  // per head: up to here a group's heads share tiles
constexpr std::int64_t kMaxStreamBlocks = 1 << 30;  // 31 bits in the kernel
// MEASURED (H200, 2026-11-23, kernels/sm90/NOTES.md): what a block of keys takes, and what parts of
// tiles and their merge cost.
constexpr double kFlopPerUs = 4.9e6, kLeastBlockUs = 0.7, kMergeUs = 4, kMergeUsPerByte = 1.2e-6;
// MEASURED (as above, 2026-11-28): what a score takes at least, that of a step of few features.
constexpr double kScoreUs = 4.1e-5;
constexpr int kListedRounds = 16;      // of more tiles the last one ends soon behind the mean
constexpr double kLeastShare = 0.005;  // of the whole rounds' time: less is no gain one can see

// Of the K and V that the heads of a group share.
std::int64_t bytes_of_group(const Geometry& g) {
  return g.seqlen_k * (g.head_dim + g.head_dim_v) * 2;
}

// Heads, or packed groups, that go rank by rank at the end: those of the last of equal sections of
// whole groups, of which one's K and V fit half of L2.
int last_heads(const Geometry& g, std::int64_t packed, std::int64_t l2_bytes) {
  const std::int64_t fit = std::max<std::int64_t>(l2_bytes / 2 / bytes_of_group(g), 1);
  const std::int64_t groups = g.batch * g.heads_k, sections = divide_up(groups, fit);
  const std::int64_t of_section = divide_up(groups, sections);
  return static_cast<int>((groups - (divide_up(groups, of_section) - 1) * of_section) *
                          (g.group() / packed));
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

// When the last of the tiles that are not in rounds ends, in blocks of keys, if blocks of threads
// take them as they come. `stream` says how long each is.
std::int64_t end_of_whole_tiles(const device::TileOrder& order, const device::KeyStream& stream,
                                int multiprocessors) {
  const std::int64_t blocks =
      std::int64_t{stream.tiles / stream.period} * stream.begins[stream.period];
  std::int64_t last = blocks / multiprocessors;
  if (stream.tiles > kListedRounds * multiprocessors) return last;
  std::priority_queue<std::int64_t, std::vector<std::int64_t>, std::greater<>> ends;
  for (int i = 0; i < multiprocessors; ++i) ends.push(0);
  for (int tile = 0; tile < stream.tiles; ++tile) {
    const int rank = order.place(stream.first_tile + tile).rank % stream.period;
    const std::int64_t end = ends.top() + stream.begins[rank + 1] - stream.begins[rank];
    ends.pop();
    ends.push(end);
    last = std::max(last, end);
  }
  return last;
}

// Shares out the keys of the last tiles where whole tiles would leave multiprocessors idle: those
// beyond full rounds of equal tiles, or, of a bounded call, all of them.
void choose_stream(Choice& choice, const Geometry& g, int multiprocessors) {
  const device::Shape shape = shape_of(g);
  device::TileOrder& order = choice.order;
  device::KeyStream stream{};
  const int rounds = choice.bounded ? 0 : order.tiles / multiprocessors;
  stream.first_tile = rounds * multiprocessors;
  stream.tiles = order.tiles - stream.first_tile;
  stream.period = choice.bounded ? order.tiles_q : 1;
  if (stream.tiles == 0 || stream.period > device::kMaxStreamPeriod) return;
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
  const std::int64_t blocks =
      std::int64_t{stream.tiles / stream.period} * stream.begins[stream.period];
  if (blocks > kMaxStreamBlocks) return;
  stream.ranges = static_cast<int>(std::min<std::int64_t>(blocks, multiprocessors));
  stream.each = static_cast<int>(blocks / stream.ranges);
  stream.more = static_cast<int>(blocks % stream.ranges);
  const std::int64_t alone = end_of_whole_tiles(order, stream, multiprocessors);
  const double scores = static_cast<double>(tile_q) * choice.tiling.block_keys;
  const double block_us =
      std::max({kLeastBlockUs, kScoreUs * scores,
                2.0 * scores * static_cast<double>(g.head_dim + g.head_dim_v) / kFlopPerUs});
  // A range ends inside at most one tile, which is then in parts.
  const int cut = std::min(stream.tiles, stream.ranges - 1);
  const double rows = static_cast<double>(stream.ranges - 1 + cut) * tile_q;
  const double merge_us = kMergeUs + kMergeUsPerByte * 4 * rows * static_cast<double>(g.head_dim_v);
  const double whole_us = rounds * static_cast<double>(longest) * block_us;
  const double gain_us = static_cast<double>(alone - stream.each) * block_us - merge_us;
  if (gain_us < kLeastShare * whole_us) return;
  order.tiles = stream.first_tile;
  if (choice.bounded) order.go_by_head();
  choice.stream = stream;
  choice.grid = order.tiles > 0 ? multiprocessors : stream.ranges;
}

}  // namespace

UsualLengths usual_lengths(const Problem& problem, const Geometry& g) {
  if (!g.has_lengths) return {g.seqlen_q, g.seqlen_k};
  if (problem.options.deterministic) return {kMaxLength, kMaxLength};
  const std::int64_t count = std::max<std::int64_t>(g.batch, 1);
  return {problem.cu_seqlens_q ? g.seqlen_q / count : g.seqlen_q,
          problem.cu_seqlens_k ? g.seqlen_k / count : g.seqlen_k};
}

std::int64_t packed_heads(const Problem& problem, const Geometry& g) {
  const std::int64_t group = g.group(), queries = usual_lengths(problem, g).queries;
  if (group == 1 || kWarpgroupRows % group != 0 || queries > kPackedQueries) return 1;
  if (g.dropout > 0) return 1;  // drawn for one head
  const auto warpgroups = [](std::int64_t rows) {
    return (rows + kWarpgroupRows - 1) / kWarpgroupRows;
  };
  return warpgroups(queries * group) < warpgroups(queries) * group ? group : 1;
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
  const bool long_tiles = g.seqlen_k > kShortCausal || bytes_of_group(g) > kSmallHeadBytes;
  if (choice.bounded && long_tiles) {
    order.go_in_runs();
  } else if (!choice.bounded && g.head_dim > kRankedHeadDim) {
    order.go_by_head();
  } else {
    order.end_by_rank(last_heads(g, choice.group, device.l2_bytes));
  }
  choice.grid = std::min(order.tiles, device.multiprocessors);
  choose_stream(choice, g, multiprocessors);
  return choice;
}

}  // namespace flashlab::cuda::sm90_forward
