#include "cuda/kernels/sm90/backward/parts_plan.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <vector>

#include "cuda/launch/planning.h"

namespace flashlab::cuda {
namespace {

using internal::Geometry;

// MEASURED (H100 and H200, NOTES.md), in steps of a block, 1.8 to 2 us: a block's beginning and
// end; leaving a part's sums and reading them, at head dim 128; a block without a part.
constexpr double kBlockSteps = 2.7, kLeaveSteps = 0.6, kReadSteps = 0.02, kEmptySteps = 0.3;
constexpr double kLeastGain = 1.05, kLeastSaved = 4;  // of whole tiles' time, and of its steps
constexpr int kMostParts = 32;                        // of a tile
constexpr int kMostLeast = 4;                         // of KeyParts::least
constexpr int kFewTiles = 2;                          // for each multiprocessor: more fill them

/// Steps of the tiles of a head.
std::vector<int> steps_of_tiles(const Geometry& g, const Sm90BackwardTiling& t) {
  const std::int64_t tiles_q = divide_up(g.seqlen_q, t.tile_q);
  const auto bound = [&](std::int64_t query) {
    return std::clamp<std::int64_t>(query, 0, g.seqlen_q);
  };
  std::vector<int> steps;
  for (std::int64_t key = 0; key < g.seqlen_k; key += t.tile_k) {
    std::int64_t first = 0, end = tiles_q;
    if (g.bounds.right < g.bounds.kUnbounded) first = bound(key - g.bounds.right) / t.tile_q;
    if (g.bounds.left < g.bounds.kUnbounded) {
      end = divide_up(bound(key + t.tile_k + g.bounds.left), t.tile_q);
    }
    steps.push_back(static_cast<int>(std::max<std::int64_t>(end - first, 0) * g.group()));
  }
  return steps;
}

/// Places that blocks come to in order, each to the one that is free first.
class Places {
 public:
  explicit Places(int count) : free_(std::greater<>(), std::vector<double>(count, 0.0)) {}
  void take(double steps) {
    const double end = free_.top() + steps;
    free_.pop();
    free_.push(end);
    last_ = std::max(last_, end);
  }
  double last() const { return last_; }

 private:
  std::priority_queue<double, std::vector<double>, std::greater<>> free_;
  double last_ = 0;
};

double whole_steps(const std::vector<int>& tiles, std::int64_t heads, int multiprocessors) {
  Places places(multiprocessors);
  for (const int steps : tiles) {
    for (std::int64_t head = 0; head < heads; ++head) places.take(steps + kBlockSteps);
  }
  return places.last();
}

double cut_steps(const std::vector<int>& tiles, std::int64_t heads, int multiprocessors,
                 const device::KeyParts& cut, double part_of_128) {
  Places places(multiprocessors);
  double count = 0;
  for (const int steps : tiles) {
    const int parts = cut.of(steps);
    for (std::int64_t head = 0; head < heads; ++head) {
      for (int part = 0; part < cut.most; ++part) {
        const int own =
            part < parts ? cut.first(steps, part + 1, parts) - cut.first(steps, part, parts) : 0;
        places.take(own > 0 ? own + kBlockSteps + kLeaveSteps * part_of_128 : kEmptySteps);
      }
      count += parts;
    }
  }
  return places.last() + count * kReadSteps * part_of_128;
}

}  // namespace

std::optional<device::KeyParts> choose_key_parts(const Geometry& g, const Sm90BackwardTiling& t,
                                                 int multiprocessors) {
  const std::int64_t heads = g.batch * g.heads_k;
  const std::int64_t count = heads * divide_up(g.seqlen_k, t.tile_k);
  if (t.ragged || t.dropout || count >= std::int64_t{kFewTiles} * multiprocessors) return {};
  const std::vector<int> tiles = steps_of_tiles(g, t);
  const int longest = tiles.empty() ? 0 : *std::max_element(tiles.begin(), tiles.end());
  std::int64_t sum = 0;
  for (const int steps : tiles) sum += steps * heads;
  const double whole = whole_steps(tiles, heads, multiprocessors);
  double best = std::min(whole / kLeastGain, whole - kLeastSaved);
  std::optional<device::KeyParts> found;
  // Parts of a quarter of a multiprocessor's share up to four shares.
  constexpr int kFirst = 4, kEnd = 64, kUnit = 16;
  for (int least = 1; least <= kMostLeast; ++least) {
    int before = 0;
    for (int sixteenths = kFirst; sixteenths < kEnd; ++sixteenths) {
      const auto steps = static_cast<int>(
          std::max<std::int64_t>(sum * sixteenths / (std::int64_t{kUnit} * multiprocessors), 1));
      device::KeyParts cut{1, least, steps};
      cut.most = cut.of(longest);
      if (steps == before || cut.most < 2 || cut.most > kMostParts) continue;
      before = steps;
      const double ends = cut_steps(tiles, heads, multiprocessors, cut, t.tile_dim / 128.0);
      if (ends < best) best = ends, found = cut;
    }
  }
  return found;
}

}  // namespace flashlab::cuda
