// How the Hopper forward kernel cuts a problem, by registers and shared memory
// (kernels/sm90/README.md, "Budgets").

#include <algorithm>

#include "cuda/kernels/sm90/forward/plan.h"

namespace flashlab::cuda {
namespace {

constexpr int kMaxStages = 5;
// MEASURED (H200, 2026-11-24, kernels/sm90/NOTES.md): at head dim 64 steps of 128 keys are faster
// than of 64 from this many keys on; causal calls with fewer lose more at the diagonal.
constexpr std::int64_t kLongCausal = 1024;
// MEASURED (as above), head dim 128, up to so many keys: one head is fastest in tiles of two
// consumers, shared out in longer steps, and many heads of so many queries, of which tiles of 192
// leave an eighth empty, in such tiles in turns.
constexpr std::int64_t kFewKeys = 1024;
constexpr std::int64_t kTileOfTwo = 128, kTileOfThree = 192;

// As many places for K and V as shared memory has: one more for K, which is waited for first.
void add_stages(Sm90ForwardTiling& t, const Sm90ForwardNeeds& needs, int shared_limit) {
  const auto fits = [&](const Sm90ForwardTiling& tiling) {
    return shared_bytes(tiling, needs.head_dim, needs.head_dim_v, needs.ragged) <= shared_limit;
  };
  Sm90ForwardTiling more = t;
  while (more.stages_v < kMaxStages && (++more.stages_k, ++more.stages_v, fits(more))) t = more;
  more = t;
  if (++more.stages_k; fits(more)) t = more;
}

// Heads of 65 to 128 elements before few keys. False: nothing but the usual was measured.
bool choose_for_few_keys(Sm90ForwardTiling& t, const Sm90ForwardNeeds& needs) {
  const int least = std::min(needs.head_dim, needs.head_dim_v);
  if (least <= 64 || std::max(needs.head_dim, needs.head_dim_v) > 128) return false;
  if (needs.window || needs.score_terms || needs.packed || needs.seqlen_k > kFewKeys) return false;
  if (needs.ragged) return false;
  const auto rows = [&](std::int64_t tile) { return (needs.seqlen_q + tile - 1) / tile * tile; };
  const bool many = !needs.few_tiles && !needs.bounded && needs.seqlen_q <= kFewKeys &&
                    9 * rows(kTileOfTwo) <= 8 * rows(kTileOfThree);
  if (!needs.one_round && !many) return false;
  t.consumers = 2;
  t.block_keys = 128;
  t.turns = !needs.bounded;
  return true;
}

}  // namespace

Sm90ForwardTiling choose_sm90_forward_tiling(const Sm90ForwardNeeds& needs, int shared_limit) {
  Sm90ForwardTiling t;
  if (choose_for_few_keys(t, needs)) {
    add_stages(t, needs, shared_limit);
    return t;
  }
  // Registers: O takes head_dim_v / 2 of a thread's, and three consumers have 160.
  t.consumers = needs.head_dim_v <= 128 && !needs.many_score_terms ? 3 : 2;
  const bool small = needs.head_dim <= 64 && needs.head_dim_v <= 64;
  if (small && !needs.window && !needs.score_terms &&
      (!needs.bounded || needs.shares || needs.seqlen_k >= kLongCausal)) {
    t.block_keys = 128;
  }
  // MEASURED (H200, 2026-11-25, kernels/sm90/NOTES.md): at head dims 192 and 256 consumers in
  // turns take 0.96 to 0.99 of the time up to 4k keys, and as long beyond.
  const bool wide = needs.head_dim > 128 && needs.head_dim_v > 128 && !needs.score_terms;
  t.turns = (small || wide) && !needs.bounded;
  if (small) t.stages_q = 2;
  add_stages(t, needs, shared_limit);
  return t;
}

}  // namespace flashlab::cuda
