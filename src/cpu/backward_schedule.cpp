#include "cpu/backward_schedule.h"

#include <algorithm>
#include <queue>

namespace flashlab::internal {
namespace {

// A block packs its keys and writes its gradients however few queries see them: the cost of 14 to
// 20 queries (head dims 64 and 128, fp32 and bf16, Zen 4, 2026-11-21).
constexpr double kBlockOverheadQueries = 16;

// Shorter blocks copy a query tile and reload its dQ more often: 1 to 2% for 128 keys in place of
// 192 (Zen 4, 2026-11-21).
constexpr double kShortBlockPenalty = 0.02;

// A further split zeroes and adds one more partial dQ.
constexpr double kSplitPenalty = 0.002;

// More equal tasks than this per thread are balanced by the pool whatever the cut.
constexpr std::int64_t kPlentyOfTasks = 16;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

// Visible pairs of a block plus its overhead: the trapezoid between its first and last key.
double block_cost(const Geometry& g, std::int64_t begin, std::int64_t end) {
  const KeySplit first = visible_queries(g, begin, begin + 1);
  const KeySplit last = visible_queries(g, end - 1, end);
  const double queries = 0.5 * static_cast<double>(first.query_end - first.query_begin +
                                                   last.query_end - last.query_begin);
  return (queries + kBlockOverheadQueries) * static_cast<double>(end - begin);
}

// Contiguous ranges of whole blocks with nearly equal costs.
std::vector<KeySplit> cut(const Geometry& g, const std::vector<double>& costs, int block_keys,
                          int splits) {
  double total = 0;
  for (double cost : costs) total += cost;
  std::vector<KeySplit> ranges;
  const auto blocks = static_cast<std::int64_t>(costs.size());
  std::int64_t block = 0;
  double before = 0;
  for (int s = 0; s < splits; ++s) {
    const std::int64_t begin = block;
    const double goal = total * (s + 1) / splits;
    const std::int64_t blocks_to_leave = splits - 1 - s;
    while (block < blocks - blocks_to_leave &&
           (block == begin || before + 0.5 * costs[block] < goal)) {
      before += costs[block++];
    }
    if (s == splits - 1) block = blocks;
    ranges.push_back(
        visible_queries(g, begin * block_keys, std::min(block * block_keys, g.seqlen_k)));
  }
  return ranges;
}

double range_cost(const KeySplit& range, const std::vector<double>& costs, int block_keys) {
  double cost = 0;
  for (std::int64_t b = range.key_begin / block_keys; b * block_keys < range.key_end; ++b)
    cost += costs[b];
  return cost;
}

// Finishing time when `heads` copies of the ranges are handed out in order to `threads` threads.
double makespan(const std::vector<double>& sorted_costs, std::int64_t heads, int threads) {
  double total = 0;
  for (double cost : sorted_costs) total += cost * static_cast<double>(heads);
  const auto tasks = static_cast<std::int64_t>(sorted_costs.size()) * heads;
  if (tasks > kPlentyOfTasks * threads) {
    return total / threads + 0.5 * sorted_costs.back();
  }
  std::priority_queue<double, std::vector<double>, std::greater<>> free_at;
  for (int t = 0; t < threads; ++t) free_at.push(0);
  double last = 0;
  for (double cost : sorted_costs) {
    for (std::int64_t h = 0; h < heads; ++h) {
      const double end = free_at.top() + cost;
      free_at.pop();
      free_at.push(end);
      last = std::max(last, end);
    }
  }
  return last;
}

}  // namespace

KeySplit visible_queries(const Geometry& g, std::int64_t key_begin, std::int64_t key_end) {
  KeySplit range{key_begin, key_end, 0, 0};
  const auto clamp = [&](std::int64_t i) { return std::clamp<std::int64_t>(i, 0, g.seqlen_q); };
  if (key_begin < key_end) {
    const MaskBounds& b = g.bounds;
    std::int64_t first = key_begin - b.right, end = key_end + b.left;
    if (b.chunk > 0) {
      first = std::max(first, b.chunk_begin(key_begin));
      end = std::min(end, b.chunk_begin(key_end - 1) + b.chunk);
    }
    range.query_begin = clamp(first - g.shift());
    range.query_end = clamp(end - g.shift());
    range.query_end = std::max(range.query_end, range.query_begin);
  }
  return range;
}

BackwardSchedule schedule_backward(const Geometry& g, int threads, int max_block_keys,
                                   int panel_keys, int max_splits) {
  BackwardSchedule best;
  best.block_keys = max_block_keys;
  if (g.seqlen_k == 0) return best;

  const std::int64_t heads = g.batch * g.heads_k;
  double best_time = 0;
  const int panels = std::max(1, max_block_keys / panel_keys);
  for (int share = 1; share <= 3; ++share) {
    const int block_keys = panel_keys * std::max(1, panels / share);
    if (share > 1 && block_keys == best.block_keys) continue;
    const std::int64_t blocks = ceil_div(g.seqlen_k, block_keys);
    std::vector<double> costs(static_cast<std::size_t>(blocks));
    for (std::int64_t b = 0; b < blocks; ++b) {
      costs[b] = block_cost(g, b * block_keys, std::min((b + 1) * block_keys, g.seqlen_k));
    }
    const int limit = static_cast<int>(std::min<std::int64_t>(blocks, max_splits));
    for (int splits = 1; splits <= limit; ++splits) {
      std::vector<KeySplit> ranges = cut(g, costs, block_keys, splits);
      std::vector<double> sorted;
      for (const KeySplit& range : ranges) sorted.push_back(range_cost(range, costs, block_keys));
      std::sort(sorted.begin(), sorted.end(), std::greater<>());
      const double longest = makespan(sorted, heads, threads);
      const double time =
          longest * (1 + kSplitPenalty * (splits - 1)) * (1 + kShortBlockPenalty * (share - 1));
      if (best.splits.empty() || time < 0.995 * best_time) {
        double total = 0;
        for (double cost : sorted) total += cost * static_cast<double>(heads);
        best_time = time;
        best.block_keys = block_keys;
        best.splits = std::move(ranges);
        best.balance = std::min(1.0, total / (longest * threads));
      }
    }
  }
  const auto pairs = [&](const KeySplit& s) {
    double cost = 0;
    for (std::int64_t k = s.key_begin; k < s.key_end; k += best.block_keys) {
      cost += block_cost(g, k, std::min(k + best.block_keys, s.key_end));
    }
    return cost;
  };
  std::stable_sort(best.splits.begin(), best.splits.end(),
                   [&](const KeySplit& a, const KeySplit& b) { return pairs(a) > pairs(b); });
  return best;
}

}  // namespace flashlab::internal
