// FlashAttention-2, forward: O = softmax(scale Q K^T + mask) V without ever holding all of S.
//
//   keys ->   tile 0   tile 1   tile 2
//   queries  +--------+--------+--------+    One task owns one tile of queries. It walks over
//   tile 0   |  task  |  ->    |  ->    |    the keys and keeps, per query,
//   tile 1   |        |        |        |      m  the largest score so far
//            +--------+--------+--------+      l  sum of exp(s - m)
//                                              O  sum of exp(s - m) v
//
// The one idea: when a tile brings a larger maximum m', what was summed so far is multiplied by
// exp(m - m'), as if m' had been known from the start. At the end O / l and LSE = m + log(l).
// Source: FlashAttention-2 (Dao 2023), algorithm 1.

#include <cmath>
#include <limits>

#include "api/context_state.h"
#include "cpu/plain/plan.h"
#include "cpu/plain/score_mask.h"
#include "cpu/plain/score_transform.h"
#include "cpu/sequences/key_rows.h"
#include "cpu/terms/dropout.h"
#include "cpu/terms/sinks.h"
#include "runtime/cpu/thread_pool.h"

namespace flashlab::internal {
namespace {

// Where a call stands: what every function below reads.
template <class Acc>
struct ForwardCall {
  const PlainPlan<Acc>& plan;
  const ForwardTensors& tensors;
  ScoreTransform<Acc> transform;
  ScoreMask mask;
  DropoutMask dropout;
  KeyRows keys;
};

// One tile of scores [rows][ld_k] becomes probabilities relative to the running maximum; l and O
// follow. A row that has seen only hidden keys keeps m = -inf, l = 0, O = 0.
template <class Acc>
void online_softmax(const PlainPlan<Acc>& plan, std::int64_t rows, ForwardTiles<Acc>& t) {
  for (std::int64_t r = 0; r < rows; ++r) {
    Acc* s = t.s + r * t.ld_k;
    const Acc before = t.maximum[r];
    Acc maximum = before;
    for (std::int64_t j = 0; j < t.ld_k; ++j) maximum = s[j] > maximum ? s[j] : maximum;
    // While every score is -inf, 0 stands in for the maximum: exp(-inf - 0) = 0, and NaN stays NaN.
    const Acc offset = std::isinf(maximum) && maximum < 0 ? Acc(0) : maximum;
    const Acc rescale = std::exp(before - offset);
    const Acc tile_sum = plan.kernels->exponentials(t.ld_k, offset, s);
    t.maximum[r] = maximum;
    t.sum[r] = t.sum[r] * rescale + tile_sum;
    if (rescale == Acc(1)) continue;
    for (std::int64_t d = 0; d < t.ld_v; ++d) t.o[r * t.ld_v + d] *= rescale;
  }
}

template <class Acc>
void query_tile(const ForwardCall<Acc>& call, std::int64_t batch, std::int64_t head,
                std::int64_t first, ForwardTiles<Acc>& t) {
  const PlainPlan<Acc>& plan = call.plan;
  const ForwardTensors& tensors = call.tensors;
  const ScoreMask& mask = call.mask;
  const Geometry& g = plan.geometry;
  const std::int64_t rows = std::min(plan.tile.q, g.seqlen_q - first);
  const HeadRows k = head_rows(tensors.k, batch, head / g.group(), call.keys.k());
  const HeadRows v = head_rows(tensors.v, batch, head / g.group(), call.keys.v());
  constexpr Acc kNone = -std::numeric_limits<Acc>::infinity();

  load_tile(head_rows(tensors.q, batch, head), first, rows, t.ld_d, t.q);
  std::fill_n(t.maximum, rows, kNone);
  std::fill_n(t.sum, rows, Acc(0));
  std::fill_n(t.o, rows * t.ld_v, Acc(0));

  for (std::int64_t key = 0; key < g.seqlen_k; key += plan.tile.k) {
    const std::int64_t keys = std::min(plan.tile.k, g.seqlen_k - key);
    if (!mask.tile_visible(first, rows, key, keys)) continue;
    load_transposed(k, key, keys, t.ld_k, t.kt, t.lines);
    const bool finite = load_tile(v, key, keys, t.ld_v, t.v);

    // S = scale Q K^T, softcap, ALiBi, mask
    std::fill_n(t.s, rows * t.ld_k, Acc(0));
    plan.kernels->multiply_add(rows, t.ld_k, g.head_dim, t.q, t.ld_d, 1, t.kt, t.ld_k, t.s, t.ld_k);
    for (std::int64_t r = 0; r < rows; ++r) {
      Acc* s = t.s + r * t.ld_k;
      call.transform.apply(batch, head, first + r, key, keys, s);
      mask.apply(batch, head, first + r, key, keys, t.ld_k, s);
    }

    online_softmax(plan, rows, t);

    for (std::int64_t r = 0; r < rows; ++r) {
      drop(call.dropout, batch, head, first + r, key, keys, t.s + r * t.ld_k);
    }

    // O += P V
    if (finite) {
      plan.kernels->multiply_add(rows, t.ld_v, keys, t.s, t.ld_k, 1, t.v, t.ld_v, t.o, t.ld_v);
    } else {
      multiply_add_visible(rows, t.ld_v, keys, t.s, t.ld_k, 1, t.v, t.ld_v, t.o, t.ld_v,
                           [&](std::int64_t r, std::int64_t j) {
                             return mask.visible(batch, head, first + r, key + j);
                           });
    }
  }

  const HeadRows o = head_rows(tensors.o, batch, head);
  for (std::int64_t r = 0; r < rows; ++r) {
    const bool empty = t.sum[r] == Acc(0);
    if (empty) std::fill_n(t.o + r * t.ld_v, t.ld_v, Acc(0));
    Acc factor = empty ? Acc(1) : static_cast<Acc>(call.dropout.scale) / t.sum[r];
    Acc lse = empty ? kNone : t.maximum[r] + std::log(t.sum[r]);
    if (tensors.sinks) {
      const SinkRow row = with_sink(static_cast<double>(lse), sink_of(tensors.sinks, head));
      factor *= static_cast<Acc>(row.factor);
      lse = static_cast<Acc>(row.lse);
    }
    store_tile(o, first + r, 1, t.ld_v, factor, false, t.o + r * t.ld_v);
    if (!tensors.lse) continue;
    const auto& strides = tensors.lse->spec.strides;
    store_element(tensors.lse->spec.dtype, tensors.lse->data,
                  batch * strides[0] + head * strides[1] + (first + r) * strides[2], lse);
  }
}

}  // namespace

template <class Acc>
Status PlainPlan<Acc>::forward(ContextState& context, Stream, const ForwardTensors& tensors,
                               Workspace workspace) const {
  const ForwardCall<Acc> call{*this,
                              tensors,
                              ScoreTransform<Acc>(geometry, tensors.alibi_slopes),
                              ScoreMask(geometry, tensors.mask),
                              dropout_mask_of(geometry, tensors),
                              KeyRows(geometry, tensors)};
  const std::int64_t heads = geometry.batch * geometry.heads_q;
  const std::int64_t tiles = tiles_in(geometry.seqlen_q, tile.q);
  // Under causal the last queries see the most keys: their tasks go first, so that no thread is
  // left with a long one at the end.
  context.pool().run(tiles * heads, [&](std::int64_t task, int worker) {
    Arena arena(scratch(workspace, worker));
    ForwardTiles<Acc> scratch_tiles(arena, geometry, tile);
    const std::int64_t index = tiles - 1 - task / heads, head = task % heads;
    query_tile(call, head / geometry.heads_q, head % geometry.heads_q, index * tile.q,
               scratch_tiles);
  });
  return {};
}

template Status PlainPlan<float>::forward(ContextState&, Stream, const ForwardTensors&,
                                          Workspace) const;
template Status PlainPlan<double>::forward(ContextState&, Stream, const ForwardTensors&,
                                           Workspace) const;

}  // namespace flashlab::internal
