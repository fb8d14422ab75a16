// Naive attention, forward, in three steps with a matrix in memory between them:
//
//   scores    S = scale Q K^T + mask     [Sq, Sk]  2 Sq Sk D  operations, writes  Sq Sk elements
//   softmax   P = softmax(S)             [Sq, Sk]  an exp per score,  reads and writes Sq Sk
//   values    O = P V                    [Sq, Dv]  2 Sq Sk Dv operations, reads   Sq Sk elements
//
// Each step is as good as its product kernel. What is lost is the traffic of S and P, and their
// memory: 2 B Hq Sq Sk elements, four times as much when the lengths double.

#include <algorithm>
#include <cmath>
#include <limits>

#include "api/observer.h"
#include "cpu/naive/products.h"

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
               Acc maximum, Acc sum) {
  store_element(lse.spec.dtype, lse.data, statistic_index(lse.spec, batch, head, i),
                sum == Acc(0) ? kMinusInfinity<Acc> : maximum + std::log(sum));
}

// The running maximum and sum of a row, given the next `count` scores.
template <class Acc>
void follow(const TileKernels<Acc>& kernels, std::int64_t count, const Acc* scores, Acc* scratch,
            Acc& maximum, Acc& sum) {
  const Acc before = maximum;
  maximum = std::max(before, row_maximum(count, scores));
  const Acc offset = finite_offset(maximum);
  std::copy_n(scores, count, scratch);
  sum = sum * std::exp(before - offset) + kernels.exponentials(count, offset, scratch);
}

}  // namespace

template <class Acc>
void NaivePlan<Acc>::scores(ContextState& context, const ConstTensor& q, const ConstTensor& k,
                            const std::optional<ConstTensor>& mask_tensor,
                            const std::optional<Tensor>& lse, Workspace workspace) const {
  const Geometry& g = geometry;
  const ScoreMask mask(g, mask_tensor);
  const bool with_lse = lse && lse_from_scores();
  for_each_block(context, g.batch, g.heads_q, g.seqlen_q, [&](const RowBlock& at) {
    const std::int64_t b = at.batch, h = at.head, first = at.first, rows = at.rows;
    NaiveBlocks<Acc> t = blocks(workspace, at.worker);
    Acc *maximum = t.statistics, *sum = t.statistics + kNaiveBlock;
    std::fill_n(maximum, rows, kMinusInfinity<Acc>);
    std::fill_n(sum, rows, Acc(0));
    const HeadRows s = matrix(workspace, scores_offset, b, h, 0, g.seqlen_k);
    rows_by_rows(*kernels, head_rows(q, b, h), head_rows(k, b, h / g.group()), first, rows,
                 g.seqlen_k, t,
                 [&](std::int64_t r, std::int64_t key, std::int64_t keys, Acc* values) {
                   for (std::int64_t j = 0; j < keys; ++j) values[j] *= static_cast<Acc>(g.scale);
                   mask.apply(b, h, first + r, key, keys, keys, values);
                   if (with_lse) follow(*kernels, keys, values, t.row, maximum[r], sum[r]);
                   store_row(s.dtype, s.data, s.row(first + r) + key, keys, values);
                 });
    for (std::int64_t r = 0; with_lse && r < rows; ++r) {
      store_lse(*lse, b, h, first + r, maximum[r], sum[r]);
    }
  });
}

template <class Acc>
void NaivePlan<Acc>::softmax(ContextState& context, const std::optional<Tensor>& lse,
                             Workspace workspace) const {
  const Geometry& g = geometry;
  for_each_block(context, g.batch, g.heads_q, g.seqlen_q, [&](const RowBlock& at) {
    const std::int64_t b = at.batch, h = at.head, first = at.first, rows = at.rows;
    Acc* row = blocks(workspace, at.worker).row;
    const HeadRows s = matrix(workspace, scores_offset, b, h, 0, g.seqlen_k);
    const HeadRows p = matrix(workspace, probabilities_offset, b, h, 0, g.seqlen_k);
    for (std::int64_t i = first; i < first + rows; ++i) {
      load_row(s.dtype, s.data, s.row(i), g.seqlen_k, row);
      const Acc maximum = row_maximum(g.seqlen_k, row);
      const Acc sum = kernels->exponentials(g.seqlen_k, finite_offset(maximum), row);
      const Acc factor = sum == Acc(0) ? Acc(0) : 1 / sum;  // an empty row stays 0
      for (std::int64_t j = 0; j < g.seqlen_k; ++j) row[j] *= factor;
      store_row(p.dtype, p.data, p.row(i), g.seqlen_k, row);
      if (lse && !lse_from_scores()) store_lse(*lse, b, h, i, maximum, sum);
    }
  });
}

template <class Acc>
void NaivePlan<Acc>::values(ContextState& context, const ForwardTensors& tensors,
                            Workspace workspace) const {
  const Geometry& g = geometry;
  const ScoreMask mask(g, tensors.mask);
  for_each_block(context, g.batch, g.heads_q, g.seqlen_q, [&](const RowBlock& at) {
    const std::int64_t b = at.batch, h = at.head, first = at.first, rows = at.rows;
    NaiveBlocks<Acc> t = blocks(workspace, at.worker);
    weighted_rows(
        *kernels,
        [&](std::int64_t key, std::int64_t keys) {
          return matrix(workspace, probabilities_offset, b, h, key, keys);
        },
        head_rows(tensors.v, b, h / g.group()), first, rows, g.seqlen_k, t,
        [&](std::int64_t i, std::int64_t j) { return mask.visible(b, h, i, j); });
    const HeadRows s = matrix(workspace, scores_offset, b, h, 0, g.seqlen_k);
    const std::int64_t ld = padded<Acc>(g.head_dim_v);
    for (std::int64_t r = 0; r < rows; ++r) {
      // An empty row is 0, even where V is not finite at keys whose scores are all -inf.
      if (all_finite(ld, t.sums + r * ld)) continue;
      load_row(s.dtype, s.data, s.row(first + r), g.seqlen_k, t.row);
      if (is_hidden_row(g.seqlen_k, t.row)) std::fill_n(t.sums + r * ld, ld, Acc(0));
    }
    store_tile(head_rows(tensors.o, b, h), first, rows, ld, Acc(1), false, t.sums);
  });
}

template <class Acc>
Status NaivePlan<Acc>::forward(ContextState& context, Stream, const ForwardTensors& t,
                               Workspace workspace) const {
  observed_step("scores", [&] { scores(context, t.q, t.k, t.mask, t.lse, workspace); });
  observed_step("softmax", [&] { softmax(context, t.lse, workspace); });
  observed_step("values", [&] { values(context, t, workspace); });
  return {};
}

// The whole class is instantiated here but for the steps of backward.cpp.
#define FLASHLAB_INSTANTIATE(Acc)                                                                  \
  template void NaivePlan<Acc>::scores(ContextState&, const ConstTensor&, const ConstTensor&,      \
                                       const std::optional<ConstTensor>&,                          \
                                       const std::optional<Tensor>&, Workspace) const;             \
  template void NaivePlan<Acc>::softmax(ContextState&, const std::optional<Tensor>&, Workspace)    \
      const;                                                                                       \
  template void NaivePlan<Acc>::values(ContextState&, const ForwardTensors&, Workspace) const;     \
  template Status NaivePlan<Acc>::forward(ContextState&, Stream, const ForwardTensors&, Workspace) \
      const;
FLASHLAB_INSTANTIATE(float)
FLASHLAB_INSTANTIATE(double)
#undef FLASHLAB_INSTANTIATE

}  // namespace flashlab::internal
