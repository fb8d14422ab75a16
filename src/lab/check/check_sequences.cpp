#include "lab/check/check_sequences.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <type_traits>

namespace flashlab::lab {
namespace {

namespace ref = flashlab::reference;
using cases::Case;

// Where one sequence's rows are, and what no sequence has behind them.
struct Span {
  std::int64_t index = 0;
  std::int64_t q0 = 0, k0 = 0;
  cases::SequenceLengths length;
};

std::vector<Span> spans_of(const Case& c) {
  std::vector<Span> out;
  Span next;
  for (const cases::SequenceLengths& s : c.sequences) {
    next.length = s;
    out.push_back(next);
    ++next.index;
    next.q0 += s.q + s.unused_q;
    next.k0 += s.k + s.unused_k;
  }
  return out;
}

template <class View>
View cut(View view, std::size_t dimension, std::int64_t first, std::int64_t count) {
  const std::int64_t bytes =
      first * view.spec.strides[dimension] * static_cast<std::int64_t>(size_of(view.spec.dtype));
  if (view.data != nullptr) view.data = static_cast<const char*>(view.data) + bytes;
  view.spec.shape[dimension] = count;
  return view;
}

// Entry `index` of a dimension of the batch, unless that broadcasts.
ConstTensor entry(const ConstTensor& t, std::int64_t index) {
  return t.spec.shape[0] > 1 ? cut(t, 0, index, 1) : t;
}

// What a sequence's tensors point to beside the case's memory: what dropout is drawn by (seed,
// offset and the head index of the sequence's first head), and keys and values that were gathered.
struct Own {
  std::array<std::int64_t, 3> words;
  std::vector<char> k, v;
};

// A sequence's rows of a cache [pages or entries, rows, heads, dim], one after the other.
ConstTensor gathered(const Case& c, const ConstTensor& cache, const Span& s,
                     std::vector<char>& copy) {
  const TensorSpec& from = cache.spec;
  const auto size = static_cast<std::int64_t>(size_of(from.dtype));
  for (std::int64_t key = 0; key < s.length.k; ++key) {
    const std::int64_t row = c.cache_row(static_cast<std::size_t>(s.index), key);
    for (std::int64_t h = 0; h < from.shape[2]; ++h) {
      const std::int64_t offset = row / from.shape[1] * from.strides[0] +
                                  row % from.shape[1] * from.strides[1] + h * from.strides[2];
      const char* at = static_cast<const char*>(cache.data) + offset * size;
      copy.insert(copy.end(), at, at + from.shape[3] * size);
    }
  }
  return {copy.data(), contiguous_spec(from.dtype, {1, s.length.k, from.shape[2], from.shape[3]})};
}

// A sequence's tensors as a dense call has them.
template <class Tensors>
Tensors part_of(const Case& c, const Tensors& all, const Span& s, Own& own) {
  Tensors t = all;
  t.q = cut(t.q, 1, s.q0, s.length.q);
  t.k = c.cache ? gathered(c, all.k, s, own.k) : cut(t.k, 1, s.k0, s.length.k);
  t.v = c.cache ? gathered(c, all.v, s, own.v) : cut(t.v, 1, s.k0, s.length.k);
  if (t.mask) {
    t.mask = entry(*t.mask, s.index);
    if (t.mask->spec.shape[2] > 1) t.mask = cut(*t.mask, 2, 0, s.length.q);
    if (t.mask->spec.shape[3] > 1) t.mask = cut(*t.mask, 3, 0, s.length.k);
  }
  if (t.alibi_slopes) t.alibi_slopes = entry(*t.alibi_slopes, s.index);
  if constexpr (std::is_same_v<Tensors, BackwardTensors>) {
    t.o = cut(t.o, 1, s.q0, s.length.q);
    t.d_o = cut(t.d_o, 1, s.q0, s.length.q);
    t.lse = cut(t.lse, 2, s.q0, s.length.q);
    if (t.d_lse) t.d_lse = cut(*t.d_lse, 2, s.q0, s.length.q);
  }
  const DropoutSeed seed = c.dropout_seed();
  own.words = {static_cast<std::int64_t>(seed.seed), static_cast<std::int64_t>(seed.offset),
               s.index * c.heads_q};
  t.dropout_state = {own.words.data(), contiguous_spec(DType::kInt64, {3})};
  return t;
}

template <class T>
void extend(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

void extend(std::vector<ref::Row>& to, const std::vector<ref::Row>& from, std::int64_t first) {
  for (const ref::Row& row : from) to.push_back({0, row.head, first + row.position});
}

void extend(ref::ForwardRows& to, const ref::ForwardRows& from, const Span& s) {
  extend(to.rows, from.rows, s.q0);
  extend(to.o, from.o);
  extend(to.lse, from.lse);
  extend(to.magnitude, from.magnitude);
  extend(to.dont_care, from.dont_care);
}

void extend(ref::BackwardRows& to, const ref::BackwardRows& from, const Span& s) {
  extend(to.queries, from.queries, s.q0);
  extend(to.keys, from.keys, s.k0);
  extend(to.dq, from.dq);
  extend(to.dk, from.dk);
  extend(to.dv, from.dv);
  extend(to.dq_dont_care, from.dq_dont_care);
  extend(to.dk_dont_care, from.dk_dont_care);
  extend(to.dv_dont_care, from.dv_dont_care);
}

// Rows of every head behind a sequence.
std::vector<ref::Row> rows_behind(std::int64_t heads, std::int64_t first, std::int64_t count) {
  std::vector<ref::Row> out;
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int64_t n = 0; n < count; ++n) out.push_back({0, h, first + n});
  }
  return out;
}

void extend_unused(const Case& c, ref::ForwardRows& to, const Span& s) {
  extend(to.rows, rows_behind(c.heads_q, s.q0 + s.length.q, s.length.unused_q), 0);
  to.o.resize(to.rows.size() * static_cast<std::size_t>(c.head_dim_v));
  to.lse.resize(to.rows.size(), -std::numeric_limits<double>::infinity());
  to.magnitude.resize(to.magnitude.empty() ? 0 : to.rows.size());
  to.dont_care.resize(to.dont_care.empty() ? 0 : to.rows.size());
}

void extend_unused(const Case& c, ref::BackwardRows& to, const Span& s) {
  extend(to.queries, rows_behind(c.heads_q, s.q0 + s.length.q, s.length.unused_q), 0);
  extend(to.keys, rows_behind(c.heads_k, s.k0 + s.length.k, s.length.unused_k), 0);
  to.dq.resize(to.queries.size() * static_cast<std::size_t>(c.head_dim));
  to.dk.resize(to.keys.size() * static_cast<std::size_t>(c.head_dim));
  to.dv.resize(to.keys.size() * static_cast<std::size_t>(c.head_dim_v));
  to.dq_dont_care.resize(to.queries.size());
  to.dk_dont_care.resize(to.keys.size());
  to.dv_dont_care.resize(to.keys.size());
}

// Sums over sequences; what each one's naive formula errs adds up.
void add_sinks(BackwardTruth& to, const BackwardTruth& from) {
  auto& exact = to.exact.d_sinks;
  auto& naive = to.naive.d_sinks;
  exact.resize(from.exact.d_sinks.size());
  naive.resize(exact.size());
  for (std::size_t h = 0; h < exact.size(); ++h) {
    const double errors =
        std::fabs(naive[h] - exact[h]) + std::fabs(from.naive.d_sinks[h] - from.exact.d_sinks[h]);
    exact[h] += from.exact.d_sinks[h];
    naive[h] = exact[h] + errors;
  }
}

// A few rows of each, fewer where they are many.
ref::Sample sample_of_sequence(const Case& c, const Span& s, const ref::Sizes& sizes) {
  constexpr std::int64_t kRows = 256, kHeads = 4;
  const std::int64_t rows = std::max<std::int64_t>(4, kRows / c.batch);
  return ref::Sample::seeded(sizes, rows, kHeads, c.seed + static_cast<std::uint64_t>(s.index));
}

template <class Truth, class Tensors, class TruthOf>
Result<Truth> by_sequences(const Case& c, const Tensors& tensors, const TruthOf& truth_of) {
  Truth out;
  const bool sampled = !sample_of_ragged(c).all;
  for (const Span& s : spans_of(c)) {
    Own own;
    const Tensors part = part_of(c, tensors, s, own);
    const ref::Sizes sizes = ref::sizes_of(part.q, part.k, part.v);
    auto truth =
        truth_of(part, c.options(),
                 sampled ? sample_of_sequence(c, s, sizes) : ref::Sample::everything(sizes));
    if (!truth.ok()) return truth.status();
    extend(out.exact, truth->exact, s);
    extend(out.naive, truth->naive, s);
    extend_unused(c, out.exact, s);
    extend_unused(c, out.naive, s);
    if constexpr (std::is_same_v<Truth, ForwardTruth>) {
      out.tf32 = truth->tf32;
    } else {
      add_sinks(out, *truth);
    }
  }
  return out;
}

}  // namespace

ref::Sample sample_of_ragged(const Case& c) {
  ref::Sample sample;
  sample.all = c.flops(Pass::kForward) / 2 < kSampledMultiplyAdds;
  if (!sample.all) sample.description = fmt::format("rows of each sequence, seed {}", c.seed);
  return sample;
}

Result<ForwardTruth> forward_truth_by_sequences(const Case& problem,
                                                const ForwardTensors& tensors) {
  return by_sequences<ForwardTruth>(problem, tensors,
                                    [](const auto&... of) { return forward_truth(of...); });
}

Result<BackwardTruth> backward_truth_by_sequences(const Case& problem,
                                                  const BackwardTensors& tensors) {
  return by_sequences<BackwardTruth>(problem, tensors,
                                     [](const auto&... of) { return backward_truth(of...); });
}

}  // namespace flashlab::lab
