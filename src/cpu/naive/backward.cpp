// Naive attention, backward, one matrix product per step:
//
//   probabilities   P = exp(scale Q K^T + mask - LSE)
//   dv              dV = P^T dO
//   dp              dP = dO V^T
//   ds              dS = P * (dP - delta),  delta = rowsum(P * dP) - dLSE
//   dq, dk          dQ = scale dS K,  dK = scale dS^T Q
//
// With LSE given each probability stands by itself, so S is not stored; dS takes the place of dP.
// delta is the softmax's own derivative, taken from the rounded P and dP. rowsum(dO * O) is the
// same number on paper, but O here comes from rounded scores: with large scores in bf16 the two
// differ, and dP - delta cancels only with its own.

#include <cmath>

#include "api/observer.h"
#include "cpu/naive/products.h"

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

// Sixteen sums side by side: one alone would wait for itself at every addition.
template <class Acc>
Acc dot(std::int64_t count, const Acc* a, const Acc* b) {
  constexpr std::int64_t kSums = 16;
  Acc sums[kSums] = {};
  std::int64_t j = 0;
  for (; j + kSums <= count; j += kSums) {
    for (std::int64_t s = 0; s < kSums; ++s) sums[s] += a[j + s] * b[j + s];
  }
  Acc sum = 0;
  for (; j < count; ++j) sum += a[j] * b[j];
  for (Acc part : sums) sum += part;
  return sum;
}

// Whether a pair has a gradient. Looked at only where an operand is not finite.
template <class Acc>
auto pair_counts(const ScoreMask& mask, const ConstTensor& lse, std::int64_t b, std::int64_t h) {
  return [&mask, &lse, b, h](std::int64_t i, std::int64_t j) {
    return !is_empty(lse_of<Acc>(lse, b, h, i)) && mask.visible(b, h, i, j);
  };
}

}  // namespace

template <class Acc>
void NaivePlan<Acc>::probabilities(ContextState& context, const BackwardTensors& x,
                                   Workspace workspace) const {
  const Geometry& g = geometry;
  const ScoreMask mask(g, x.mask);
  for_each_block(context, g.batch, g.heads_q, g.seqlen_q, [&](const RowBlock& at) {
    const std::int64_t b = at.batch, h = at.head, first = at.first, rows = at.rows;
    NaiveBlocks<Acc> t = blocks(workspace, at.worker);
    const HeadRows p = matrix(workspace, probabilities_offset, b, h, 0, g.seqlen_k);
    rows_by_rows(*kernels, head_rows(x.q, b, h), head_rows(x.k, b, h / g.group()), first, rows,
                 g.seqlen_k, t,
                 [&](std::int64_t r, std::int64_t key, std::int64_t keys, Acc* values) {
                   const Acc lse = lse_of<Acc>(x.lse, b, h, first + r);
                   for (std::int64_t j = 0; j < keys; ++j) values[j] *= static_cast<Acc>(g.scale);
                   mask.apply(b, h, first + r, key, keys, keys, values);
                   kernels->exponentials(keys, lse, values);
                   if (is_empty(lse)) std::fill_n(values, keys, Acc(0));
                   store_row(p.dtype, p.data, p.row(first + r) + key, keys, values);
                 });
  });
}

template <class Acc>
void NaivePlan<Acc>::probability_gradient(ContextState& context, const BackwardTensors& x,
                                          Workspace workspace) const {
  const Geometry& g = geometry;
  for_each_block(context, g.batch, g.heads_q, g.seqlen_q, [&](const RowBlock& at) {
    const std::int64_t b = at.batch, h = at.head, first = at.first, rows = at.rows;
    NaiveBlocks<Acc> t = blocks(workspace, at.worker);
    const HeadRows dp = matrix(workspace, gradients_offset, b, h, 0, g.seqlen_k);
    rows_by_rows(*kernels, head_rows(x.d_o, b, h), head_rows(x.v, b, h / g.group()), first, rows,
                 g.seqlen_k, t,
                 [&](std::int64_t r, std::int64_t key, std::int64_t keys, Acc* values) {
                   store_row(dp.dtype, dp.data, dp.row(first + r) + key, keys, values);
                 });
  });
}

template <class Acc>
void NaivePlan<Acc>::score_gradient(ContextState& context, const BackwardTensors& x,
                                    Workspace workspace) const {
  const Geometry& g = geometry;
  const ScoreMask mask(g, x.mask);
  for_each_block(context, g.batch, g.heads_q, g.seqlen_q, [&](const RowBlock& at) {
    const std::int64_t b = at.batch, h = at.head;
    const NaiveBlocks<Acc> t = blocks(workspace, at.worker);
    Acc *ds = t.row, *p = t.other_row;
    const HeadRows gradients = matrix(workspace, gradients_offset, b, h, 0, g.seqlen_k);
    const HeadRows weights = matrix(workspace, probabilities_offset, b, h, 0, g.seqlen_k);
    for (std::int64_t i = at.first; i < at.first + at.rows; ++i) {
      load_row(gradients.dtype, gradients.data, gradients.row(i), g.seqlen_k, ds);
      load_row(weights.dtype, weights.data, weights.row(i), g.seqlen_k, p);
      if (!all_finite(g.seqlen_k, ds)) {  // 0 * NaN of a hidden pair must not reach delta
        for (std::int64_t j = 0; j < g.seqlen_k; ++j) {
          if (!mask.visible(b, h, i, j)) ds[j] = 0;
        }
      }
      Acc delta = dot(g.seqlen_k, p, ds);
      if (x.d_lse) {
        delta -= load_element<Acc>(x.d_lse->spec.dtype, x.d_lse->data,
                                   statistic_index(x.d_lse->spec, b, h, i));
      }
      for (std::int64_t j = 0; j < g.seqlen_k; ++j) ds[j] = p[j] * (ds[j] - delta);
      if (is_empty(lse_of<Acc>(x.lse, b, h, i))) std::fill_n(ds, g.seqlen_k, Acc(0));
      store_row(gradients.dtype, gradients.data, gradients.row(i), g.seqlen_k, ds);
    }
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
                     Workspace workspace, std::size_t weights_offset, const ConstTensor& right,
                     const Tensor& gradient, Acc factor) {
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
                       pair_counts<Acc>(mask, x.lse, b, h));
    }
    store_tile(out, key, keys, padded<Acc>(out.dim), factor,
               plan.problem.options.gradient_mode == GradientMode::kAccumulate, t.sums);
  });
}

}  // namespace

template <class Acc>
void NaivePlan<Acc>::value_gradient(ContextState& context, const BackwardTensors& x,
                                    Workspace workspace) const {
  column_gradient(context, *this, x, workspace, probabilities_offset, x.d_o, x.dv, Acc(1));
}

template <class Acc>
void NaivePlan<Acc>::key_gradient(ContextState& context, const BackwardTensors& x,
                                  Workspace workspace) const {
  column_gradient(context, *this, x, workspace, gradients_offset, x.q, x.dk,
                  static_cast<Acc>(geometry.scale));
}

template <class Acc>
Status NaivePlan<Acc>::backward(ContextState& context, Stream, const BackwardTensors& t,
                                Workspace workspace) const {
  observed_step("probabilities", [&] { probabilities(context, t, workspace); });
  observed_step("dv", [&] { value_gradient(context, t, workspace); });
  observed_step("dp", [&] { probability_gradient(context, t, workspace); });
  observed_step("ds", [&] { score_gradient(context, t, workspace); });
  observed_step("dq", [&] { query_gradient(context, t, workspace); });
  observed_step("dk", [&] { key_gradient(context, t, workspace); });
  return {};
}

#define FLASHLAB_INSTANTIATE(Acc)                                                                \
  template void NaivePlan<Acc>::probabilities(ContextState&, const BackwardTensors&, Workspace)  \
      const;                                                                                     \
  template void NaivePlan<Acc>::value_gradient(ContextState&, const BackwardTensors&, Workspace) \
      const;                                                                                     \
  template void NaivePlan<Acc>::probability_gradient(ContextState&, const BackwardTensors&,      \
                                                     Workspace) const;                           \
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
