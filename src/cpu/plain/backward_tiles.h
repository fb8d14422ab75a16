#pragma once

// What both passes of backward.cpp do to a tile: load its queries, make P and dS again.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "cpu/plain/plan.h"
#include "cpu/plain/score_mask.h"
#include "cpu/plain/score_transform.h"
#include "cpu/terms/dropout.h"
#include "cpu/terms/sinks.h"

namespace flashlab::internal {

// Where a call stands: what every function below reads.
template <class Acc>
struct BackwardCall {
  const PlainPlan<Acc>& plan;
  const BackwardTensors& tensors;
  const ScoreMask& mask;
  const ScoreTransform<Acc>& transform;
  const DropoutMask& dropout;
  Acc* delta;  // [batch, heads_q, seqlen_q]
  // With an additive mask P = factor exp(S - lse), both [batch, heads_q, seqlen_q]; else null.
  Acc* lse = nullptr;
  Acc* factor = nullptr;

  std::int64_t statistic(std::int64_t batch, std::int64_t head, std::int64_t i) const {
    return (batch * plan.geometry.heads_q + head) * plan.geometry.seqlen_q + i;
  }
  // Whether key j gives row i a gradient: visible, and the row is not empty.
  bool visible(std::int64_t batch, std::int64_t head, std::int64_t i, std::int64_t j,
               Acc lse) const {
    return !(std::isinf(lse) && lse < 0) && mask.visible(batch, head, i, j);
  }
};

// delta[i] = sum_d dO[i, d] O[i, d] - dLSE[i]
template <class Acc>
void delta_row(const BackwardCall<Acc>& call, std::int64_t batch, std::int64_t head, std::int64_t i,
               Acc* d_o, Acc* o) {
  const BackwardTensors& t = call.tensors;
  const HeadRows d_o_rows = head_rows(t.d_o, batch, head), o_rows = head_rows(t.o, batch, head);
  load_row(d_o_rows.dtype, d_o_rows.data, d_o_rows.row(i), d_o_rows.dim, d_o);
  load_row(o_rows.dtype, o_rows.data, o_rows.row(i), o_rows.dim, o);
  Acc sum = 0;
  for (std::int64_t d = 0; d < o_rows.dim; ++d) sum += d_o[d] * o[d];
  if (t.d_lse) {
    const auto& s = t.d_lse->spec.strides;
    sum -= load_element<Acc>(t.d_lse->spec.dtype, t.d_lse->data,
                             batch * s[0] + head * s[1] + i * s[2]);
  }
  call.delta[call.statistic(batch, head, i)] = sum;
}

// The LSE that was given for a row.
template <class Acc>
Acc given_lse(const BackwardCall<Acc>& call, std::int64_t batch, std::int64_t head,
              std::int64_t i) {
  const ConstTensor& lse = call.tensors.lse;
  const auto& s = lse.spec.strides;
  return load_element<Acc>(lse.spec.dtype, lse.data, batch * s[0] + head * s[1] + i * s[2]);
}

// lse and factor of a tile of queries: the given LSE and 1, but the maximum and 1 / sum of exp(S -
// maximum) for a row whose LSE is large (api/problem.h says why).
template <class Acc>
void lse_in_parts(const BackwardCall<Acc>& call, std::int64_t batch, std::int64_t head,
                  std::int64_t first, std::int64_t rows, BackwardTiles<Acc>& t) {
  const Geometry& g = call.plan.geometry;
  const TileKernels<Acc>& kernels = *call.plan.kernels;
  Acc* lse = call.lse + call.statistic(batch, head, first);
  Acc* factor = call.factor + call.statistic(batch, head, first);
  bool any = false;
  for (std::int64_t r = 0; r < rows; ++r) {
    lse[r] = given_lse(call, batch, head, first + r);
    factor[r] = 1;
    any |= is_large_lse(static_cast<double>(lse[r]));
    t.lse[r] = -std::numeric_limits<Acc>::infinity();  // the maximum so far
    t.delta[r] = 0;                                    // the sum of exp(S - maximum) so far
  }
  if (!any) return;
  load_tile(head_rows(call.tensors.q, batch, head), first, rows, t.ld_d, t.q);
  for (std::int64_t key = 0; key < g.seqlen_k; key += call.plan.tile.k) {
    const std::int64_t keys = std::min(call.plan.tile.k, g.seqlen_k - key);
    load_transposed(head_rows(call.tensors.k, batch, head / g.group()), key, keys, t.ld_k, t.kt,
                    t.lines);
    std::fill_n(t.p, rows * t.ld_k, Acc(0));
    kernels.multiply_add(rows, t.ld_k, g.head_dim, t.q, t.ld_d, 1, t.kt, t.ld_k, t.p, t.ld_k);
    for (std::int64_t r = 0; r < rows; ++r) {
      Acc* s = t.p + r * t.ld_k;
      call.transform.apply(batch, head, first + r, key, keys, s);
      call.mask.apply(batch, head, first + r, key, keys, t.ld_k, s);
      const Acc old = t.lse[r];
      t.lse[r] = std::max(old, *std::max_element(s, s + t.ld_k));
      if (std::isinf(t.lse[r])) continue;
      t.delta[r] =
          t.delta[r] * std::exp(old - t.lse[r]) + kernels.exponentials(t.ld_k, t.lse[r], s);
    }
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    if (call.tensors.sinks) {
      const auto sink = static_cast<Acc>(sink_of(call.tensors.sinks, head));
      const Acc maximum = t.lse[r];
      t.lse[r] = std::max(maximum, sink);
      if (!std::isinf(t.lse[r])) {
        t.delta[r] = t.delta[r] * std::exp(maximum - t.lse[r]) + std::exp(sink - t.lse[r]);
      }
    }
    const auto given = static_cast<double>(lse[r]);
    const double in_full =
        static_cast<double>(t.lse[r]) + std::log(static_cast<double>(t.delta[r]));
    if (!is_large_lse(given) || !rounds_to_lse(in_full, given)) continue;
    lse[r] = t.lse[r];
    factor[r] = 1 / t.delta[r];
  }
}

// Q, dO, LSE and delta of a tile of queries. Returns whether products of them stay finite.
template <class Acc>
bool load_queries(const BackwardCall<Acc>& call, std::int64_t batch, std::int64_t head,
                  std::int64_t first, std::int64_t rows, BackwardTiles<Acc>& t) {
  bool finite = load_tile(head_rows(call.tensors.q, batch, head), first, rows, t.ld_d, t.q);
  finite &= load_tile(head_rows(call.tensors.d_o, batch, head), first, rows, t.ld_v, t.d_o);
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t at = call.statistic(batch, head, first + r);
    t.lse[r] = call.lse != nullptr ? call.lse[at] : given_lse(call, batch, head, first + r);
    t.factor[r] = call.factor != nullptr ? call.factor[at] : Acc(1);
    t.delta[r] = call.delta[at];
    const bool empty = std::isinf(t.lse[r]) && t.lse[r] < 0;
    finite &= empty || (std::isfinite(t.lse[r]) && std::isfinite(t.delta[r]));
  }
  return finite;
}

// P [rows][keys] and dS [rows][keys] of one tile from Q, K^T, dO, V^T, LSE and delta. Of P dropout
// keeps what dV takes; its factor 1 / (1 - p) comes when dV is stored.
template <class Acc>
void probabilities(const BackwardCall<Acc>& call, std::int64_t batch, std::int64_t head,
                   std::int64_t first, std::int64_t rows, std::int64_t key, std::int64_t keys,
                   BackwardTiles<Acc>& t) {
  const Geometry& g = call.plan.geometry;
  const TileKernels<Acc>& kernels = *call.plan.kernels;
  std::fill_n(t.p, rows * t.ld_k, Acc(0));
  std::fill_n(t.ds, rows * t.ld_k, Acc(0));
  kernels.multiply_add(rows, t.ld_k, g.head_dim, t.q, t.ld_d, 1, t.kt, t.ld_k, t.p, t.ld_k);
  kernels.multiply_add(rows, t.ld_k, g.head_dim_v, t.d_o, t.ld_v, 1, t.vt, t.ld_k, t.ds, t.ld_k);
  for (std::int64_t r = 0; r < rows; ++r) {
    Acc *p = t.p + r * t.ld_k, *ds = t.ds + r * t.ld_k;
    if (std::isinf(t.lse[r]) && t.lse[r] < 0) {  // an empty row has no gradient
      std::fill_n(p, t.ld_k, Acc(0));
      std::fill_n(ds, t.ld_k, Acc(0));
      continue;
    }
    drop(call.dropout, batch, head, first + r, key, keys, ds);
    const Acc kept = static_cast<Acc>(call.dropout.scale);
    for (std::int64_t j = 0; j < t.ld_k; ++j) ds[j] = kept * ds[j] - t.delta[r];
    if (call.transform.capped()) {
      for (std::int64_t j = 0; j < keys; ++j) ds[j] *= call.transform.derivative(p[j]);
    }
    call.transform.apply(batch, head, first + r, key, keys, p);
    call.mask.apply(batch, head, first + r, key, keys, t.ld_k, p);
    kernels.exponentials(t.ld_k, t.lse[r], p);
    for (std::int64_t j = 0; j < t.ld_k; ++j) p[j] *= t.factor[r];
    for (std::int64_t j = 0; j < t.ld_k; ++j) ds[j] *= p[j];
    drop(call.dropout, batch, head, first + r, key, keys, p);
  }
}

}  // namespace flashlab::internal
