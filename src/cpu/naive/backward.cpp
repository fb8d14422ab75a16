// Naive attention, backward, one matrix product per step:
//
//   probabilities   P = exp(scale Q K^T + mask - LSE)
//   dv              dV = P^T dO
//   ds              dP = dO V^T,  dS = P * (dP - delta),  delta = rowsum(dO * O) - dLSE
//   dq, dk          dQ = scale dS K,  dK = scale dS^T Q
//
// With LSE given each probability stands by itself, so S is not stored: P and dS are.

#include <cmath>
#include <numeric>

#include "cpu/naive/products.h"
#include "cpu/terms/sinks.h"
#include "runtime/program/observer.h"

namespace flashlab::internal {
namespace {

// LSE of a row; -inf marks an empty row, which has no gradient.
template <class Acc>
Acc lse_of(const ConstTensor& lse, std::int64_t batch, std::int64_t head, std::int64_t i) {
  return load_element<Acc>(lse.spec.dtype, lse.data, statistic_index(lse.spec, batch, head, i));
}

template <class Acc>
bool is_empty(Acc lse) {
  return std::isinf(lse) && lse < 0;
}

// Whether a pair has a gradient. Looked at only where an operand is not finite.
template <class Acc>
auto pair_counts(const ScoreMask& mask, const ConstTensor& lse, std::int64_t b, std::int64_t h) {
  return [&mask, &lse, b, h](std::int64_t i, std::int64_t j) {
    return !is_empty(lse_of<Acc>(lse, b, h, i)) && mask.visible(b, h, i, j);
  };
}

// Divides row i of P by its sum, where that is what rounding the row's LSE has left
// (api/problem.h).
template <class Acc>
void normalise_row(const HeadRows& p, std::int64_t i, double lse, double sink, Acc* row) {
  load_row(p.dtype, p.data, p.row(i), p.dim, row);
  const Acc sum =
      std::accumulate(row, row + p.dim, Acc(0)) + static_cast<Acc>(std::exp(sink - lse));
  if (!rounds_to_lse(lse + std::log(static_cast<double>(sum)), lse)) return;
  for (std::int64_t j = 0; j < p.dim; ++j) row[j] /= sum;
  store_row(p.dtype, p.data, p.row(i), p.dim, row);
}

}  // namespace

template <class Acc>
void NaivePlan<Acc>::probabilities(ContextState& context, const BackwardTensors& x,
                                   Workspace workspace) const {
  const Geometry& g = geometry;
  const ScoreTransform<Acc> transform(g, x.alibi_slopes);
  const ScoreMask mask(g, x.mask);
  for_each_block(context, g.batch, g.heads_q, g.seqlen_q, [&](const RowBlock& at) {
    const std::int64_t b = at.batch, h = at.head, first = at.first, rows = at.rows;
    NaiveBlocks<Acc> t = blocks(workspace, at.worker);
    const HeadRows p = matrix(workspace, probabilities_offset, b, h, 0, g.seqlen_k);
    rows_by_rows(*kernels, head_rows(x.q, b, h), head_rows(x.k, b, h / g.group()), first, rows,
                 g.seqlen_k, t,
                 [&](std::int64_t r, std::int64_t key, std::int64_t keys, Acc* values) {
                   const Acc lse = lse_of<Acc>(x.lse, b, h, first + r);
                   if (transform.capped()) {
                     Acc* slopes = slope_row(workspace, b, h, first + r) + key;
                     for (std::int64_t j = 0; j < keys; ++j) {
                       slopes[j] = transform.derivative(values[j]);
                     }
                   }
                   transform.apply(b, h, first + r, key, keys, values);
                   mask.apply(b, h, first + r, key, keys, keys, values);
                   kernels->exponentials(keys, lse, values);
                   if (is_empty(lse)) std::fill_n(values, keys, Acc(0));
                   store_row(p.dtype, p.data, p.row(first + r) + key, keys, values);
                 });
    if (!x.mask || x.mask->spec.dtype == DType::kBool) return;
    for (std::int64_t i = first; i < first + rows; ++i) {
      const double lse = static_cast<double>(lse_of<Acc>(x.lse, b, h, i));
      if (is_large_lse(lse)) normalise_row(p, i, lse, sink_of(x.sinks, h), t.row);
    }
  });
}

template <class Acc>
void NaivePlan<Acc>::score_gradient(ContextState& context, const BackwardTensors& x,
                                    Workspace workspace) const {
  const Geometry& g = geometry;
  const DropoutMask dropout = dropout_mask_of(g, x);
  const auto kept = static_cast<Acc>(dropout.scale);
  for_each_block(context, g.batch, g.heads_q, g.seqlen_q, [&](const RowBlock& at) {
    const std::int64_t b = at.batch, h = at.head, first = at.first, rows = at.rows;
    NaiveBlocks<Acc> t = blocks(workspace, at.worker);
    const HeadRows d_o = head_rows(x.d_o, b, h), o = head_rows(x.o, b, h);
    const HeadRows p = matrix(workspace, probabilities_offset, b, h, 0, g.seqlen_k);
    const HeadRows ds = matrix(workspace, gradients_offset, b, h, 0, g.seqlen_k);
    for (std::int64_t r = 0; r < rows; ++r) {
      load_row(d_o.dtype, d_o.data, d_o.row(first + r), d_o.dim, t.left);
      load_row(o.dtype, o.data, o.row(first + r), o.dim, t.sums);
      Acc delta = 0;
      for (std::int64_t d = 0; d < o.dim; ++d) delta += t.left[d] * t.sums[d];
      if (x.d_lse) {
        delta -= load_element<Acc>(x.d_lse->spec.dtype, x.d_lse->data,
                                   statistic_index(x.d_lse->spec, b, h, first + r));
      }
      t.statistics[r] = delta;
    }
    rows_by_rows(*kernels, d_o, head_rows(x.v, b, h / g.group()), first, rows, g.seqlen_k, t,
                 [&](std::int64_t r, std::int64_t key, std::int64_t keys, Acc* dp) {
                   load_row(p.dtype, p.data, p.row(first + r) + key, keys, t.row);
                   drop(dropout, b, h, first + r, key, keys, dp);
                   for (std::int64_t j = 0; j < keys; ++j) {
                     dp[j] = t.row[j] * (kept * dp[j] - t.statistics[r]);
                   }
                   if (g.softcap > 0) {
                     const Acc* slopes = slope_row(workspace, b, h, first + r) + key;
                     for (std::int64_t j = 0; j < keys; ++j) dp[j] *= slopes[j];
                   }
                   if (is_empty(lse_of<Acc>(x.lse, b, h, first + r))) {
                     std::fill_n(dp, keys, Acc(0));
                   }
                   store_row(ds.dtype, ds.data, ds.row(first + r) + key, keys, dp);
                 });
  });
}

template <class Acc>
void NaivePlan<Acc>::query_gradient(ContextState& context, const BackwardTensors& x,
                                    Workspace workspace) const {
  const Geometry& g = geometry;
  const ScoreMask mask(g, x.mask);
  for_each_block(context, g.batch, g.heads_q, g.seqlen_q, [&](const RowBlock& at) {
    const std::int64_t b = at.batch, h = at.head, first = at.first, rows = at.rows;
    NaiveBlocks<Acc> t = blocks(workspace, at.worker);
    weighted_rows(
        *kernels,
        [&](std::int64_t key, std::int64_t keys) {
          return matrix(workspace, gradients_offset, b, h, key, keys);
        },
        head_rows(x.k, b, h / g.group()), first, rows, g.seqlen_k, t,
        pair_counts<Acc>(mask, x.lse, b, h));
    store_tile(head_rows(x.dq, b, h), first, rows, padded<Acc>(g.head_dim),
               static_cast<Acc>(g.scale),
               problem.options.gradient_mode == GradientMode::kAccumulate, t.sums);
  });
}

namespace {

// dV and dK: columns of P or dS times rows of dO or Q, summed over the heads of a group.
template <class Acc>
void column_gradient(ContextState& context, const NaivePlan<Acc>& plan, const BackwardTensors& x,
                     Workspace workspace, std::size_t weights_offset, const DropoutMask& dropout,
                     const ConstTensor& right, const Tensor& gradient, Acc factor) {
  const Geometry& g = plan.geometry;
  const ScoreMask mask(g, x.mask);
  for_each_block(context, g.batch, g.heads_k, g.seqlen_k, [&](const RowBlock& at) {
    const std::int64_t b = at.batch, hk = at.head, key = at.first, keys = at.rows;
    NaiveBlocks<Acc> t = plan.blocks(workspace, at.worker);
    const HeadRows out = head_rows(gradient, b, hk);
    std::fill_n(t.sums, keys * padded<Acc>(out.dim), Acc(0));
    for (std::int64_t h = hk * g.group(); h < (hk + 1) * g.group(); ++h) {
      weighted_columns(*plan.kernels, plan.matrix(workspace, weights_offset, b, h, key, keys),
                       head_rows(right, b, h), key, g.seqlen_q, t,
                       pair_counts<Acc>(mask, x.lse, b, h),
                       [&](std::int64_t i, Acc* row) { drop(dropout, b, h, i, key, keys, row); });
    }
    store_tile(out, key, keys, padded<Acc>(out.dim), factor,
               plan.problem.options.gradient_mode == GradientMode::kAccumulate, t.sums);
  });
}

}  // namespace

template <class Acc>
void NaivePlan<Acc>::value_gradient(ContextState& context, const BackwardTensors& x,
                                    Workspace workspace) const {
  const DropoutMask dropout = dropout_mask_of(geometry, x);
  column_gradient(context, *this, x, workspace, probabilities_offset, dropout, x.d_o, x.dv,
                  static_cast<Acc>(dropout.scale));
}

template <class Acc>
void NaivePlan<Acc>::key_gradient(ContextState& context, const BackwardTensors& x,
                                  Workspace workspace) const {
  column_gradient(context, *this, x, workspace, gradients_offset, DropoutMask{}, x.q, x.dk,
                  static_cast<Acc>(geometry.scale));
}

template <class Acc>
Status NaivePlan<Acc>::backward(ContextState& context, Stream, const BackwardTensors& t,
                                Workspace workspace) const {
  observed_step("probabilities", [&] { probabilities(context, t, workspace); });
  observed_step("dv", [&] { value_gradient(context, t, workspace); });
  observed_step("ds", [&] { score_gradient(context, t, workspace); });
  observed_step("dq", [&] { query_gradient(context, t, workspace); });
  observed_step("dk", [&] { key_gradient(context, t, workspace); });
  const bool accumulate = problem.options.gradient_mode == GradientMode::kAccumulate;
  write_sink_gradients(context.pool(), geometry, t, accumulate,
                       [&](std::int64_t b, std::int64_t h, std::int64_t i) {
                         const HeadRows d_o = head_rows(t.d_o, b, h), o = head_rows(t.o, b, h);
                         Acc delta = 0;
                         for (std::int64_t d = 0; d < o.dim; ++d) {
                           delta += load_element<Acc>(d_o.dtype, d_o.data, d_o.row(i) + d) *
                                    load_element<Acc>(o.dtype, o.data, o.row(i) + d);
                         }
                         if (t.d_lse) {
                           delta -= load_element<Acc>(t.d_lse->spec.dtype, t.d_lse->data,
                                                      statistic_index(t.d_lse->spec, b, h, i));
                         }
                         return SinkStatistics{static_cast<double>(lse_of<Acc>(t.lse, b, h, i)), 0,
                                               static_cast<double>(delta)};
                       });
  return {};
}

#define FLASHLAB_INSTANTIATE(Acc)                                                                \
  template void NaivePlan<Acc>::probabilities(ContextState&, const BackwardTensors&, Workspace)  \
      const;                                                                                     \
  template void NaivePlan<Acc>::value_gradient(ContextState&, const BackwardTensors&, Workspace) \
      const;                                                                                     \
  template void NaivePlan<Acc>::score_gradient(ContextState&, const BackwardTensors&, Workspace) \
      const;                                                                                     \
  template void NaivePlan<Acc>::query_gradient(ContextState&, const BackwardTensors&, Workspace) \
      const;                                                                                     \
  template void NaivePlan<Acc>::key_gradient(ContextState&, const BackwardTensors&, Workspace)   \
      const;                                                                                     \
  template Status NaivePlan<Acc>::backward(ContextState&, Stream, const BackwardTensors&,        \
                                           Workspace) const;
FLASHLAB_INSTANTIATE(float)
FLASHLAB_INSTANTIATE(double)
#undef FLASHLAB_INSTANTIATE

}  // namespace flashlab::internal
