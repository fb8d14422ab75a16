// FlashAttention-2, backward, in two passes over tiles that are recomputed, never stored:
//
//   P = exp(S - LSE)    delta = rowsum(dO * O) - dLSE    dP = dO V^T    dS = P * (dP - delta)
//   dV = P^T dO         dK = scale dS^T Q                dQ = scale dS K
//
//   pass 1: a task owns one tile of keys             pass 2: a task owns one tile of queries
//           and walks down the queries                       and walks along the keys
//                 keys                                             keys
//          q   |   | v |   |   dK, dV stay                  q   |   |   |   |   dQ stays
//              |   | v |   |   with the task                    | > | > | > |   with the task
//
// The one idea: S and P are cheap to make again from Q, K and LSE. Every output has one owner that
// sums in a fixed order, so results do not depend on the number of threads; the price is making S
// and dP twice. Source: FlashAttention-2 (Dao 2023), algorithm 2, without its atomic adds.

#include <algorithm>

#include "api/context_state.h"
#include "cpu/plain/backward_tiles.h"
#include "runtime/cpu/thread_pool.h"

namespace flashlab::internal {
namespace {

// Pass 1: dK and dV of one tile of keys, summed over the query heads that read this key head.
template <class Acc>
void key_tile(const BackwardCall<Acc>& call, std::int64_t batch, std::int64_t head_k,
              std::int64_t key, BackwardTiles<Acc>& t) {
  const PlainPlan<Acc>& plan = call.plan;
  const Geometry& g = plan.geometry;
  const BackwardTensors& x = call.tensors;
  const std::int64_t keys = std::min(plan.tile.k, g.seqlen_k - key);
  bool keys_finite =
      load_transposed(head_rows(x.k, batch, head_k), key, keys, t.ld_k, t.kt, t.lines);
  keys_finite &= load_transposed(head_rows(x.v, batch, head_k), key, keys, t.ld_k, t.vt, t.lines);
  std::fill_n(t.dk, keys * t.ld_d, Acc(0));
  std::fill_n(t.dv, keys * t.ld_v, Acc(0));

  for (std::int64_t head = head_k * g.group(); head < (head_k + 1) * g.group(); ++head) {
    for (std::int64_t first = 0; first < g.seqlen_q; first += plan.tile.q) {
      const std::int64_t rows = std::min(plan.tile.q, g.seqlen_q - first);
      if (!call.mask.tile_visible(first, rows, key, keys)) continue;
      const bool finite = load_queries(call, batch, head, first, rows, t) && keys_finite;
      probabilities(call, batch, head, first, rows, key, keys, t);
      // dV += P^T dO, dK += dS^T Q: the left factor is read transposed, column by column.
      if (finite) {
        plan.kernels->multiply_add(keys, t.ld_v, rows, t.p, 1, t.ld_k, t.d_o, t.ld_v, t.dv, t.ld_v);
        plan.kernels->multiply_add(keys, t.ld_d, rows, t.ds, 1, t.ld_k, t.q, t.ld_d, t.dk, t.ld_d);
      } else {
        const auto visible = [&](std::int64_t j, std::int64_t r) {
          return call.visible(batch, head, first + r, key + j, t.lse[r]);
        };
        multiply_add_visible(keys, t.ld_v, rows, t.p, 1, t.ld_k, t.d_o, t.ld_v, t.dv, t.ld_v,
                             visible);
        multiply_add_visible(keys, t.ld_d, rows, t.ds, 1, t.ld_k, t.q, t.ld_d, t.dk, t.ld_d,
                             visible);
      }
    }
  }
  const bool accumulate = plan.problem.options.gradient_mode == GradientMode::kAccumulate;
  store_tile(head_rows(x.dk, batch, head_k), key, keys, t.ld_d, plan.scale, accumulate, t.dk);
  store_tile(head_rows(x.dv, batch, head_k), key, keys, t.ld_v,
             static_cast<Acc>(call.dropout.scale), accumulate, t.dv);
}

// Pass 2: dQ of one tile of queries.
template <class Acc>
void query_tile(const BackwardCall<Acc>& call, std::int64_t batch, std::int64_t head,
                std::int64_t first, BackwardTiles<Acc>& t) {
  const PlainPlan<Acc>& plan = call.plan;
  const Geometry& g = plan.geometry;
  const HeadRows k = head_rows(call.tensors.k, batch, head / g.group());
  const HeadRows v = head_rows(call.tensors.v, batch, head / g.group());
  const std::int64_t rows = std::min(plan.tile.q, g.seqlen_q - first);
  const bool queries_finite = load_queries(call, batch, head, first, rows, t);
  std::fill_n(t.dq, rows * t.ld_d, Acc(0));

  for (std::int64_t key = 0; key < g.seqlen_k; key += plan.tile.k) {
    const std::int64_t keys = std::min(plan.tile.k, g.seqlen_k - key);
    if (!call.mask.tile_visible(first, rows, key, keys)) continue;
    bool finite = load_transposed(k, key, keys, t.ld_k, t.kt, t.lines) && queries_finite;
    finite &= load_transposed(v, key, keys, t.ld_k, t.vt, t.lines);
    load_tile(k, key, keys, t.ld_d, t.k);
    probabilities(call, batch, head, first, rows, key, keys, t);
    if (finite) {
      plan.kernels->multiply_add(rows, t.ld_d, keys, t.ds, t.ld_k, 1, t.k, t.ld_d, t.dq, t.ld_d);
    } else {
      multiply_add_visible(rows, t.ld_d, keys, t.ds, t.ld_k, 1, t.k, t.ld_d, t.dq, t.ld_d,
                           [&](std::int64_t r, std::int64_t j) {
                             return call.visible(batch, head, first + r, key + j, t.lse[r]);
                           });
    }
  }
  store_tile(head_rows(call.tensors.dq, batch, head), first, rows, t.ld_d, plan.scale,
             plan.problem.options.gradient_mode == GradientMode::kAccumulate, t.dq);
}

}  // namespace

template <class Acc>
Status PlainPlan<Acc>::backward(ContextState& context, Stream, const BackwardTensors& tensors,
                                Workspace workspace) const {
  const Geometry& g = geometry;
  const ScoreMask mask(g, tensors.mask);
  auto* delta = reinterpret_cast<Acc*>(static_cast<char*>(workspace.data) + delta_offset);
  const ScoreTransform<Acc> transform(g, tensors.alibi_slopes);
  const DropoutMask dropout = dropout_mask_of(g, tensors);
  BackwardCall<Acc> call{*this, tensors, mask, transform, dropout, delta};
  if (additive_mask) {
    call.lse = reinterpret_cast<Acc*>(static_cast<char*>(workspace.data) + parts_offset);
    call.factor = call.lse + g.batch * g.heads_q * g.seqlen_q;
  }
  const std::int64_t heads_q = g.batch * g.heads_q, heads_k = g.batch * g.heads_k;
  const std::int64_t tiles_q = tiles_in(g.seqlen_q, tile.q), tiles_k = tiles_in(g.seqlen_k, tile.k);
  const auto tiles_of = [&](int worker) {
    Arena arena(scratch(workspace, worker));
    return BackwardTiles<Acc>(arena, g, tile);
  };

  context.pool().run(tiles_q * heads_q, [&](std::int64_t task, int worker) {
    BackwardTiles<Acc> t = tiles_of(worker);
    const std::int64_t head = task % heads_q, first = task / heads_q * tile.q;
    const std::int64_t end = std::min(first + tile.q, g.seqlen_q);
    for (std::int64_t i = first; i < end; ++i) {
      delta_row(call, head / g.heads_q, head % g.heads_q, i, t.d_o, t.dv);
    }
    if (call.lse != nullptr) {
      lse_in_parts(call, head / g.heads_q, head % g.heads_q, first, end - first, t);
    }
  });
  // Under causal the first keys are seen by the most queries, and the last queries see the most
  // keys: the longest tasks go first.
  context.pool().run(tiles_k * heads_k, [&](std::int64_t task, int worker) {
    BackwardTiles<Acc> t = tiles_of(worker);
    const std::int64_t head = task % heads_k;
    key_tile(call, head / g.heads_k, head % g.heads_k, task / heads_k * tile.k, t);
  });
  context.pool().run(tiles_q * heads_q, [&](std::int64_t task, int worker) {
    BackwardTiles<Acc> t = tiles_of(worker);
    const std::int64_t index = tiles_q - 1 - task / heads_q, head = task % heads_q;
    query_tile(call, head / g.heads_q, head % g.heads_q, index * tile.q, t);
  });
  const bool accumulate = problem.options.gradient_mode == GradientMode::kAccumulate;
  write_sink_gradients(
      context.pool(), g, tensors, accumulate,
      [&call](std::int64_t b, std::int64_t head, std::int64_t i) {
        const std::int64_t at = call.statistic(b, head, i);
        const auto delta = static_cast<double>(call.delta[at]);
        if (call.lse == nullptr) {
          return SinkStatistics{static_cast<double>(given_lse(call, b, head, i)), 0, delta};
        }
        // P = factor exp(S - lse)
        return SinkStatistics{static_cast<double>(call.lse[at]),
                              -std::log(static_cast<double>(call.factor[at])), delta};
      });
  return {};
}

template Status PlainPlan<float>::backward(ContextState&, Stream, const BackwardTensors&,
                                           Workspace) const;
template Status PlainPlan<double>::backward(ContextState&, Stream, const BackwardTensors&,
                                            Workspace) const;

}  // namespace flashlab::internal
