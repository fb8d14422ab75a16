// Naive attention, forward, in three steps with a matrix in memory between them:
//
//   scores    S = scale Q K^T + mask     [Sq, Sk]  2 Sq Sk D  operations, writes  Sq Sk elements
//   softmax   P = softmax(S)             [Sq, Sk]  an exp per score,  reads and writes Sq Sk
//   values    O = P V                    [Sq, Dv]  2 Sq Sk Dv operations, reads   Sq Sk elements
//
// S is kept in the type of the sums, P in the inputs' type T. Each step is as good as its product
// kernel. What is lost is the traffic of S and P, and their memory: 2 B Hq Sq Sk elements, four
// times as much when the lengths double.

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/naive/products.h"
#include "cpu/terms/sinks.h"
#include "runtime/program/observer.h"

namespace flashlab::internal {
namespace {

template <class Acc>
constexpr Acc kMinusInfinity = -std::numeric_limits<Acc>::infinity();

template <class Acc>
Acc row_maximum(std::int64_t count, const Acc* row) {
  Acc maximum = kMinusInfinity<Acc>;
  for (std::int64_t j = 0; j < count; ++j) maximum = row[j] > maximum ? row[j] : maximum;
  return maximum;
}

template <class Acc>
bool is_hidden_row(std::int64_t count, const Acc* row) {
  return std::all_of(row, row + count, [](Acc s) { return s == kMinusInfinity<Acc>; });
}

// 0 stands in for -inf as the number to subtract: exp(-inf - 0) = 0, and NaN stays NaN.
template <class Acc>
Acc finite_offset(Acc maximum) {
  return maximum == kMinusInfinity<Acc> ? Acc(0) : maximum;
}

template <class Acc>
void store_lse(const Tensor& lse, std::int64_t batch, std::int64_t head, std::int64_t i,
               Acc value) {
  store_element(lse.spec.dtype, lse.data, statistic_index(lse.spec, batch, head, i), value);
}

}  // namespace

template <class Acc>
void NaivePlan<Acc>::scores(ContextState& context, const ForwardTensors& x, const KeyRows& keys,
                            Workspace workspace) const {
  const Geometry& g = geometry;
  const ScoreTransform<Acc> transform(g, x.alibi_slopes);
  const ScoreMask mask(g, x.mask);
  for_each_block(context, g.batch, g.heads_q, g.seqlen_q, [&](const RowBlock& at) {
    const std::int64_t b = at.batch, h = at.head, first = at.first;
    NaiveBlocks<Acc> t = blocks(workspace, at.worker);
    rows_by_rows(*kernels, head_rows(x.q, b, h), head_rows(x.k, b, h / g.group(), keys.k()), first,
                 at.rows, g.seqlen_k, t,
                 [&](std::int64_t r, std::int64_t key, std::int64_t count, Acc* values) {
                   transform.apply(b, h, first + r, key, count, values);
                   mask.apply(b, h, first + r, key, count, count, values);
                   std::copy_n(values, count, score_row(workspace, b, h, first + r) + key);
                 });
  });
}

template <class Acc>
void NaivePlan<Acc>::softmax(ContextState& context, const ForwardTensors& x,
                             Workspace workspace) const {
  const Geometry& g = geometry;
  const DropoutMask dropout = dropout_mask_of(g, x);
  for_each_block(context, g.batch, g.heads_q, g.seqlen_q, [&](const RowBlock& at) {
    const std::int64_t b = at.batch, h = at.head;
    Acc* row = blocks(workspace, at.worker).row;
    const HeadRows p = matrix(workspace, probabilities_offset, b, h, 0, g.seqlen_k);
    for (std::int64_t i = at.first; i < at.first + at.rows; ++i) {
      const Acc* s = score_row(workspace, b, h, i);
      const Acc maximum = row_maximum(g.seqlen_k, s);
      std::copy_n(s, g.seqlen_k, row);
      const Acc sum = kernels->exponentials(g.seqlen_k, finite_offset(maximum), row);
      Acc factor = sum == Acc(0) ? Acc(0) : 1 / sum;  // an empty row stays 0
      Acc lse = sum == Acc(0) ? kMinusInfinity<Acc> : maximum + std::log(sum);
      if (x.sinks) {
        const SinkRow with = with_sink(static_cast<double>(lse), sink_of(x.sinks, h));
        factor *= static_cast<Acc>(with.factor);
        lse = static_cast<Acc>(with.lse);
      }
      for (std::int64_t j = 0; j < g.seqlen_k; ++j) row[j] *= factor;
      drop(dropout, b, h, i, 0, g.seqlen_k, row);
      store_row(p.dtype, p.data, p.row(i), g.seqlen_k, row);
      if (x.lse) store_lse(*x.lse, b, h, i, lse);
    }
  });
}

template <class Acc>
void NaivePlan<Acc>::values(ContextState& context, const ForwardTensors& tensors,
                            const KeyRows& keys, Workspace workspace) const {
  const Geometry& g = geometry;
  const ScoreMask mask(g, tensors.mask);
  const auto kept = static_cast<Acc>(dropout_mask_of(g, tensors).scale);
  for_each_block(context, g.batch, g.heads_q, g.seqlen_q, [&](const RowBlock& at) {
    const std::int64_t b = at.batch, h = at.head, first = at.first, rows = at.rows;
    NaiveBlocks<Acc> t = blocks(workspace, at.worker);
    weighted_rows(
        *kernels,
        [&](std::int64_t key, std::int64_t count) {
          return matrix(workspace, probabilities_offset, b, h, key, count);
        },
        head_rows(tensors.v, b, h / g.group(), keys.v()), first, rows, g.seqlen_k, t,
        [&](std::int64_t i, std::int64_t j) { return mask.visible(b, h, i, j); });
    const std::int64_t ld = padded<Acc>(g.head_dim_v);
    for (std::int64_t r = 0; r < rows; ++r) {
      // An empty row is 0, even where V is not finite at keys whose scores are all -inf.
      if (all_finite(ld, t.sums + r * ld)) continue;
      if (is_hidden_row(g.seqlen_k, score_row(workspace, b, h, first + r))) {
        std::fill_n(t.sums + r * ld, ld, Acc(0));
      }
    }
    store_tile(head_rows(tensors.o, b, h), first, rows, ld, kept, false, t.sums);
  });
}

template <class Acc>
Status NaivePlan<Acc>::forward(ContextState& context, Stream, const ForwardTensors& t,
                               Workspace workspace) const {
  const KeyRows keys(geometry, t);
  observed_step("scores", [&] { scores(context, t, keys, workspace); });
  observed_step("softmax", [&] { softmax(context, t, workspace); });
  observed_step("values", [&] { values(context, t, keys, workspace); });
  return {};
}

// The whole class is instantiated here but for the steps of backward.cpp.
#define FLASHLAB_INSTANTIATE(Acc)                                                                  \
  template void NaivePlan<Acc>::scores(ContextState&, const ForwardTensors&, const KeyRows&,       \
                                       Workspace) const;                                           \
  template void NaivePlan<Acc>::softmax(ContextState&, const ForwardTensors&, Workspace) const;    \
  template void NaivePlan<Acc>::values(ContextState&, const ForwardTensors&, const KeyRows&,       \
                                       Workspace) const;                                           \
  template Status NaivePlan<Acc>::forward(ContextState&, Stream, const ForwardTensors&, Workspace) \
      const;
FLASHLAB_INSTANTIATE(float)
FLASHLAB_INSTANTIATE(double)
#undef FLASHLAB_INSTANTIATE

}  // namespace flashlab::internal
