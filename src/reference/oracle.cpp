#include "reference/oracle.h"

#include <cmath>
#include <limits>
#include <new>

#include "reference/heads.h"
#include "reference/scores.h"

namespace flashlab::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// The most that rounding changes a number by, relative to it: half a unit in the last place.
double rounding_of(DType dtype) {
  return dtype == DType::kBf16   ? 0x1p-8
         : dtype == DType::kFp16 ? 0x1p-11
         : dtype == DType::kFp64 ? 0x1p-53
                                 : 0x1p-24;
}

template <class Real>
bool all_finite(const Real* values, std::int64_t count) {
  for (std::int64_t n = 0; n < count; ++n) {
    if (!std::isfinite(values[n])) return false;
  }
  return true;
}

template <class Real>
double norm(const Real* values, std::int64_t count) {
  double sum = 0;
  for (std::int64_t d = 0; d < count; ++d) {
    sum += static_cast<double>(values[d]) * static_cast<double>(values[d]);
  }
  return std::sqrt(sum);
}

// Keys of one key head that a computation walks over, ascending: all of them or a selection.
template <class Real>
struct Keys {
  std::vector<std::int64_t> positions;
  std::vector<Real> k_columns;               // [D, keys]
  std::vector<Real> v_rows;                  // [keys, Dv]
  std::vector<Real> k_rows;                  // [keys, D]   backward only
  std::vector<Real> v_columns;               // [Dv, keys]  backward only
  std::vector<double> k_norm;                // [keys]
  std::vector<std::uint8_t> v_bad, any_bad;  // [keys] whether something is not finite
  bool has_v_bad = false, has_any_bad = false;

  std::size_t count() const { return positions.size(); }

  Keys(const ConstTensor& k, const ConstTensor& v, std::int64_t b, std::int64_t h,
       std::vector<std::int64_t> which, bool backward)
      : positions(std::move(which)) {
    const std::int64_t dim = k.spec.shape[3], dim_v = v.spec.shape[3];
    read_columns(k, b, h, positions, k_columns);
    read_rows(v, b, h, positions, v_rows);
    read_rows(k, b, h, positions, k_rows);
    if (backward) read_columns(v, b, h, positions, v_columns);
    k_norm.resize(count());
    v_bad.resize(count());
    any_bad.resize(count());
    for (std::size_t n = 0; n < count(); ++n) {
      k_norm[n] = norm(&k_rows[n * static_cast<std::size_t>(dim)], dim);
      v_bad[n] = !all_finite(&v_rows[n * static_cast<std::size_t>(dim_v)], dim_v);
      any_bad[n] = v_bad[n] || !all_finite(&k_rows[n * static_cast<std::size_t>(dim)], dim);
      has_v_bad = has_v_bad || v_bad[n];
      has_any_bad = has_any_bad || any_bad[n];
    }
    if (!backward) k_rows = {};
  }

  // How many of the leading keys lie before `end`.
  std::size_t before(std::int64_t end) const {
    return static_cast<std::size_t>(std::lower_bound(positions.begin(), positions.end(), end) -
                                    positions.begin());
  }
};

// What the scores of a problem are made by.
struct Scores {
  Visibility visibility;
  ScoreRule rule;
  DropoutRule dropout;
  std::optional<ConstTensor> sinks;
  double scale;

  template <class Tensors>
  Scores(const Tensors& t, const Sizes& sizes, const Options& options)
      : visibility(sizes, options, t.mask),
        rule(sizes, options, t.alibi_slopes),
        dropout(sizes, options, t),
        sinks(t.sinks),
        scale(scale_of(options, sizes.head_dim, t.q.spec.dtype)) {}

  // The score that every row of a head has beside those of its keys.
  double sink(std::int64_t h) const {
    return sinks ? load(sinks->data, sinks->spec.dtype, h) : -kInfinity;
  }
};

// One row of the score matrix: the scores of visible keys, and what dropout keeps of them.
template <class Real>
class ScoreRow {
 public:
  ScoreRow(const Scores& scores, std::int64_t dim) : scores_(scores), order_(range(dim)) {}

  void compute(const Real* q, const Keys<Real>& keys, std::int64_t b, std::int64_t h,
               std::int64_t i) {
    scores_.visibility.row(b, h, i, keys.positions, visible, bias);
    scores_.dropout.row(b, h, i, keys.positions, kept);
    count = keys.before(scores_.visibility.end_key(i));
    sink = static_cast<Real>(scores_.sink(h));
    s.resize(keys.count());
    slope.resize(keys.count());
    dot_columns(q, order_, keys.k_columns.data(), keys.count(), count, s.data());
    const ScoreRule::Row alibi = scores_.rule.row(b, h, i);
    for (std::size_t n = 0; n < count; ++n) {
      const Real x = static_cast<Real>(scores_.scale) * s[n];
      slope[n] = scores_.rule.derivative(x);
      s[n] = scores_.rule.capped(x) + static_cast<Real>(alibi(keys.positions[n])) +
             static_cast<Real>(bias[n]);
    }
  }

  // What multiplies a kept probability before V, and 0 for a dropped one.
  Real keep(std::size_t n) const {
    return kept[n] != 0 ? static_cast<Real>(scores_.dropout.scale()) : Real(0);
  }

  // |scale| |q| max |k| over the visible, finite keys of the row computed last: a key with an
  // infinity has a score without rounding.
  double magnitude(const Real* q, const Keys<Real>& keys) const {
    double largest = 0;
    for (std::size_t n = 0; n < count; ++n) {
      if (visible[n] != 0 && std::isfinite(keys.k_norm[n])) {
        largest = std::max(largest, keys.k_norm[n]);
      }
    }
    return std::fabs(scores_.scale) * largest * norm(q, static_cast<std::int64_t>(order_.size()));
  }

  std::vector<Real> s;                // valid where visible
  std::vector<Real> slope;            // [keys] d score / d (scale q.k)
  std::vector<std::uint8_t> visible;  // [keys]
  std::vector<std::uint8_t> kept;     // [keys] by dropout
  std::vector<double> bias;
  std::size_t count = 0;  // no key from here on is visible
  Real sink = 0;

 private:
  const Scores& scores_;
  std::vector<std::int64_t> order_;  // of the products in a score
};

// A row's LSE in two numbers: beside a mask of -1e30 one number would keep nothing of the
// logarithm. NaN for a row that sees NaN or +inf, -inf for an empty one.
template <class Real>
struct RowLse {
  Real maximum = 0;
  Real log_sum = 0;
  Real value() const { return maximum + log_sum; }
};

// Softmax of one row times V.
template <class Real>
RowLse<Real> forward_row(const ScoreRow<Real>& row, const Keys<Real>& keys, std::int64_t dim_v,
                         Real* o) {
  std::fill(o, o + dim_v, Real(0));
  Real maximum = row.sink;
  if (std::isnan(row.sink) || row.sink == static_cast<Real>(kInfinity)) {
    std::fill(o, o + dim_v, static_cast<Real>(kNaN));
    return {static_cast<Real>(kNaN), 0};
  }
  for (std::size_t n = 0; n < row.count; ++n) {
    if (row.visible[n] == 0) continue;
    if (std::isnan(row.s[n]) || row.s[n] == static_cast<Real>(kInfinity)) {
      std::fill(o, o + dim_v, static_cast<Real>(kNaN));
      return {static_cast<Real>(kNaN), 0};
    }
    maximum = std::max(maximum, row.s[n]);
  }
  if (maximum == -static_cast<Real>(kInfinity)) return {maximum, 0};
  Real sum = std::exp(row.sink - maximum);
  for (std::size_t n = 0; n < row.count; ++n) {
    if (row.visible[n] == 0) continue;
    const Real p = std::exp(row.s[n] - maximum);
    sum += p;
    if (row.kept[n] == 0) continue;
    add_scaled(p * row.keep(n), &keys.v_rows[n * static_cast<std::size_t>(dim_v)], dim_v, o);
  }
  for (std::int64_t d = 0; d < dim_v; ++d) o[d] /= sum;
  return {maximum, std::log(sum)};
}

template <class Real>
ForwardRows forward_as(const ForwardTensors& t, const Options& options, const Sample& sample) {
  const Sizes sizes = sizes_of(t.q, t.k, t.v);
  const Scores scores(t, sizes, options);
  ScoreRow<Real> row(scores, sizes.head_dim);
  const auto dim_v = static_cast<std::size_t>(sizes.head_dim_v);

  ForwardRows out;
  out.rows = sample.queries;
  out.o.resize(out.rows.size() * dim_v);
  out.lse.resize(out.rows.size());
  out.magnitude.resize(out.rows.size());
  out.dont_care.assign(out.rows.size(), 0);
  std::vector<Real> q, o(dim_v);
  for (std::int64_t b = 0; b < sizes.batch; ++b) {
    for (std::int64_t hk = 0; hk < sizes.heads_k; ++hk) {
      std::optional<Keys<Real>> keys;  // read once per key head, and only if a row needs it
      for (std::int64_t h = hk * sizes.group(); h < (hk + 1) * sizes.group(); ++h) {
        const HeadRows wanted = rows_of(out.rows, b, h);
        if (wanted.empty()) continue;
        if (!keys) keys.emplace(t.k, t.v, b, hk, range(sizes.seqlen_k), false);
        read_rows(t.q, b, h, wanted.positions, q);
        for (std::size_t n = 0; n < wanted.positions.size(); ++n) {
          const Real* q_row = &q[n * static_cast<std::size_t>(sizes.head_dim)];
          row.compute(q_row, *keys, b, h, wanted.positions[n]);
          const std::size_t slot = wanted.slots[n];
          out.magnitude[slot] = row.magnitude(q_row, *keys);
          out.lse[slot] =
              static_cast<double>(forward_row(row, *keys, sizes.head_dim_v, o.data()).value());
          std::copy(o.begin(), o.end(), out.o.begin() + static_cast<std::ptrdiff_t>(slot * dim_v));
          for (std::size_t j = 0; keys->has_v_bad && j < keys->count(); ++j) {
            if (keys->v_bad[j] != 0 && row.visible[j] == 0) out.dont_care[slot] = 1;
          }
        }
      }
    }
  }
  return out;
}

// Queries of one query head with everything backward needs of them.
template <class Real>
struct Queries {
  std::vector<std::int64_t> positions;
  std::vector<Real> q;                     // [rows, D]
  std::vector<Real> d_o;                   // [rows, Dv]
  std::vector<RowLse<Real>> lse;           // [rows]
  std::vector<Real> delta;                 // [rows]
  std::vector<std::uint8_t> bad;           // [rows] whether an operand is not finite
  std::vector<std::uint8_t> gradient_bad;  // [rows] ... and dS of a masked pair could become NaN
  std::vector<std::uint8_t> value_bad;     // [rows] ... and P dO of a masked pair could
};

template <class Real>
class Backward {
 public:
  Backward(const BackwardTensors& t, const Options& options, const Sample& sample,
           Statistics statistics)
      : t_(t),
        sizes_(sizes_of(t.q, t.k, t.v)),
        scores_(t, sizes_, options),
        row_(scores_, sizes_.head_dim),
        order_v_(range(sizes_.head_dim_v)),
        statistics_(statistics),
        all_(sample.all) {
    out_.queries = sample.queries;
    out_.keys = sample.keys;
    out_.dq.assign(out_.queries.size() * dim(), 0.0);
    out_.dk.assign(out_.keys.size() * dim(), 0.0);
    out_.dv.assign(out_.keys.size() * dim_v(), 0.0);
    if (t.sinks && all_) out_.d_sinks.assign(static_cast<std::size_t>(sizes_.heads_q), 0.0);
    out_.d_sinks_rounding = out_.d_sinks;
    out_.dq_dont_care.assign(out_.queries.size(), 0);
    out_.dk_dont_care.assign(out_.keys.size(), 0);
    out_.dv_dont_care.assign(out_.keys.size(), 0);
  }

  BackwardRows run() {
    for (std::int64_t b = 0; b < sizes_.batch; ++b) {
      for (std::int64_t hk = 0; hk < sizes_.heads_k; ++hk) key_head(b, hk);
    }
    return std::move(out_);
  }

 private:
  std::size_t dim() const { return static_cast<std::size_t>(sizes_.head_dim); }
  std::size_t dim_v() const { return static_cast<std::size_t>(sizes_.head_dim_v); }

  void key_head(std::int64_t b, std::int64_t hk) {
    const HeadRows wanted_keys = rows_of(out_.keys, b, hk);
    const Keys<Real> every_key(t_.k, t_.v, b, hk, range(sizes_.seqlen_k), true);
    std::optional<Keys<Real>> some_keys;
    if (!all_ && !wanted_keys.empty()) {
      some_keys.emplace(t_.k, t_.v, b, hk, wanted_keys.positions, true);
    }
    dk_.assign(wanted_keys.positions.size() * dim(), Real(0));
    dv_.assign(wanted_keys.positions.size() * dim_v(), Real(0));
    for (std::int64_t h = hk * sizes_.group(); h < (hk + 1) * sizes_.group(); ++h) {
      const HeadRows wanted = rows_of(out_.queries, b, h);
      if (all_) {
        const Queries<Real> queries = read_queries(b, h, wanted.positions, every_key);
        pass(b, h, queries, every_key, &wanted, &wanted_keys);
        continue;
      }
      if (!wanted.empty()) {
        const Queries<Real> queries = read_queries(b, h, wanted.positions, every_key);
        pass(b, h, queries, every_key, &wanted, nullptr);
      }
      if (some_keys) {
        const Queries<Real> queries = read_queries(b, h, range(sizes_.seqlen_q), every_key);
        pass(b, h, queries, *some_keys, nullptr, &wanted_keys);
      }
    }
    for (std::size_t n = 0; n < wanted_keys.slots.size(); ++n) {
      const std::size_t slot = wanted_keys.slots[n];
      for (std::size_t d = 0; d < dim(); ++d) {
        out_.dk[slot * dim() + d] =
            static_cast<double>(static_cast<Real>(scores_.scale) * dk_[n * dim() + d]);
      }
      for (std::size_t d = 0; d < dim_v(); ++d) {
        out_.dv[slot * dim_v() + d] = static_cast<double>(dv_[n * dim_v() + d]);
      }
    }
  }

  Queries<Real> read_queries(std::int64_t b, std::int64_t h, std::vector<std::int64_t> positions,
                             const Keys<Real>& every_key) {
    Queries<Real> out;
    out.positions = std::move(positions);
    const std::size_t count = out.positions.size();
    read_rows(t_.q, b, h, out.positions, out.q);
    read_rows(t_.d_o, b, h, out.positions, out.d_o);
    out.lse.resize(count);
    out.delta.resize(count);
    out.bad.resize(count);
    out.gradient_bad.resize(count);
    out.value_bad.resize(count);
    std::vector<Real> o(dim_v());
    for (std::size_t n = 0; n < count; ++n) {
      const std::int64_t i = out.positions[n];
      const Real* d_o = &out.d_o[n * dim_v()];
      if (statistics_ == Statistics::kRecomputed) {
        row_.compute(&out.q[n * dim()], every_key, b, h, i);
        out.lse[n] = forward_row(row_, every_key, sizes_.head_dim_v, o.data());
      } else {
        out.lse[n] = given_lse(b, h, i, &out.q[n * dim()], every_key);
        read_rows(t_.o, b, h, {i}, o);
      }
      Real delta = 0;
      for (std::size_t d = 0; d < dim_v(); ++d) delta += d_o[d] * o[d];
      const bool empty = out.lse[n].maximum == -static_cast<Real>(kInfinity);
      const double d_lse = t_.d_lse && !empty ? read_statistic(*t_.d_lse, b, h, i) : 0.0;
      out.delta[n] = delta - static_cast<Real>(d_lse);
      const auto sink = static_cast<Real>(scores_.sink(h));
      if (!out_.d_sinks.empty() && sink != -static_cast<Real>(kInfinity)) {
        const Real share = std::exp((sink - out.lse[n].maximum) - out.lse[n].log_sum);
        out_.d_sinks[static_cast<std::size_t>(h)] -= static_cast<double>(share * out.delta[n]);
        double& rounding = out_.d_sinks_rounding[static_cast<std::size_t>(h)];
        for (std::size_t d = 0; d < dim_v(); ++d) {
          rounding = std::hypot(
              rounding, rounding_of(t_.q.spec.dtype) * static_cast<double>(share * d_o[d] * o[d]));
        }
      }
      const bool gradient_finite =
          all_finite(d_o, sizes_.head_dim_v) && std::isfinite(out.delta[n]);
      out.bad[n] = !gradient_finite || !(empty || std::isfinite(out.lse[n].maximum)) ||
                   !all_finite(&out.q[n * dim()], sizes_.head_dim);
      out.gradient_bad[n] = !gradient_finite && !std::isnan(out.lse[n].maximum);
      out.value_bad[n] =
          !all_finite(d_o, sizes_.head_dim_v) || !(empty || std::isfinite(out.lse[n].maximum));
    }
    return out;
  }

  // The LSE that the API's backward uses. With an additive mask one fp32 number may keep nothing of
  // its logarithm; made again in full it is used where it is the given one within four units in the
  // last place of fp32.
  RowLse<Real> given_lse(std::int64_t b, std::int64_t h, std::int64_t i, const Real* q,
                         const Keys<Real>& every_key) {
    const double given = read_statistic(t_.lse, b, h, i);
    const bool additive = t_.mask && t_.mask->spec.dtype != DType::kBool;
    if (!additive || !std::isfinite(given) || std::fabs(given) < 256) {
      return {static_cast<Real>(given), 0};
    }
    std::vector<Real> o(dim_v());
    row_.compute(q, every_key, b, h, i);
    const RowLse<Real> in_full = forward_row(row_, every_key, sizes_.head_dim_v, o.data());
    const bool same =
        std::fabs(static_cast<double>(in_full.value()) - given) <= std::fabs(given) * 0x1p-21;
    return same ? in_full : RowLse<Real>{static_cast<Real>(given), 0};
  }

  // dS and P of `queries` x `keys`; dq where `wanted` is given, dk and dv where `wanted_keys` is.
  void pass(std::int64_t b, std::int64_t h, const Queries<Real>& queries, const Keys<Real>& keys,
            const HeadRows* wanted, const HeadRows* wanted_keys) {
    std::vector<Real> dp(keys.count()), dq(dim());
    for (std::size_t n = 0; n < queries.positions.size(); ++n) {
      const Real* q = &queries.q[n * dim()];
      const Real* d_o = &queries.d_o[n * dim_v()];
      row_.compute(q, keys, b, h, queries.positions[n]);
      mark_dont_care(queries, n, keys, wanted, wanted_keys);
      if (queries.lse[n].maximum == -static_cast<Real>(kInfinity))
        continue;  // an empty row gives nothing
      dot_columns(d_o, order_v_, keys.v_columns.data(), keys.count(), row_.count, dp.data());
      std::fill(dq.begin(), dq.end(), Real(0));
      for (std::size_t j = 0; j < row_.count; ++j) {
        if (row_.visible[j] == 0) continue;
        const Real p = std::exp((row_.s[j] - queries.lse[n].maximum) - queries.lse[n].log_sum);
        const Real kept = row_.keep(j);
        const Real d_p = kept == 0 ? Real(0) : kept * dp[j];
        const Real ds = p * (d_p - queries.delta[n]) * row_.slope[j];
        if (wanted != nullptr) add_scaled(ds, &keys.k_rows[j * dim()], sizes_.head_dim, dq.data());
        if (wanted_keys == nullptr) continue;
        add_scaled(ds, q, sizes_.head_dim, &dk_[j * dim()]);
        if (kept != 0) add_scaled(p * kept, d_o, sizes_.head_dim_v, &dv_[j * dim_v()]);
      }
      for (std::size_t d = 0; wanted != nullptr && d < dim(); ++d) {
        out_.dq[wanted->slots[n] * dim() + d] =
            static_cast<double>(static_cast<Real>(scores_.scale) * dq[d]);
      }
    }
  }

  // A masked pair has P = 0 and dS = 0 (dP - delta): what is not finite in dP, delta, K, Q or dO
  // survives the multiplication by zero in a kernel that does not skip the pair. A V that is not
  // finite at a masked key also leaves the row's own o open, and with it delta: then the row's dq
  // and the dk of every key it sees are open too.
  void mark_dont_care(const Queries<Real>& queries, std::size_t n, const Keys<Real>& keys,
                      const HeadRows* wanted, const HeadRows* wanted_keys) {
    if (queries.bad[n] == 0 && !keys.has_any_bad) return;
    bool output_open = false;
    for (std::size_t j = 0; j < keys.count(); ++j) {
      output_open |= row_.visible[j] == 0 && keys.v_bad[j] != 0;
    }
    if (output_open && wanted != nullptr) out_.dq_dont_care[wanted->slots[n]] = 1;
    for (std::size_t j = 0; output_open && wanted_keys != nullptr && j < keys.count(); ++j) {
      if (row_.visible[j] != 0) out_.dk_dont_care[wanted_keys->slots[j]] = 1;
    }
    for (std::size_t j = 0; j < keys.count(); ++j) {
      if (row_.visible[j] != 0) continue;
      if (wanted != nullptr && (keys.any_bad[j] != 0 || queries.gradient_bad[n] != 0)) {
        out_.dq_dont_care[wanted->slots[n]] = 1;
      }
      if (wanted_keys != nullptr && (keys.v_bad[j] != 0 || queries.bad[n] != 0)) {
        out_.dk_dont_care[wanted_keys->slots[j]] = 1;
      }
      // dV = P^T dO knows neither V nor delta.
      if (wanted_keys != nullptr && queries.value_bad[n] != 0) {
        out_.dv_dont_care[wanted_keys->slots[j]] = 1;
      }
    }
  }

  const BackwardTensors& t_;
  Sizes sizes_;
  Scores scores_;
  ScoreRow<Real> row_;
  std::vector<std::int64_t> order_v_;
  Statistics statistics_;
  bool all_;
  BackwardRows out_;
  std::vector<Real> dk_, dv_;  // [wanted keys, D], [wanted keys, Dv] of one key head
};

Status out_of_memory() {
  return Status::out_of_memory({"reference", "std::bad_alloc", "memory for fp64 copies of one head",
                                "use a smaller problem or a sample of rows"});
}

}  // namespace

Result<ForwardRows> forward(const ForwardTensors& tensors, const Options& options,
                            const Sample& sample) {
  try {
    if (tensors.q.spec.dtype == DType::kFp64) {
      return forward_as<long double>(tensors, options, sample);
    }
    return forward_as<double>(tensors, options, sample);
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  }
}

Result<BackwardRows> backward(const BackwardTensors& tensors, const Options& options,
                              const Sample& sample, Statistics statistics) {
  try {
    if (tensors.q.spec.dtype == DType::kFp64) {
      return Backward<long double>(tensors, options, sample, statistics).run();
    }
    return Backward<double>(tensors, options, sample, statistics).run();
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  }
}

double multiply_adds(const Sizes& sizes, const Options& options) {
  const Visibility visibility(sizes, options, std::nullopt);
  double pairs = 0;
  for (std::int64_t i = 0; i < sizes.seqlen_q; ++i) {
    pairs += static_cast<double>(
        std::max<std::int64_t>(visibility.end_key(i) - visibility.first_key(i), 0));
  }
  return static_cast<double>(sizes.batch) * static_cast<double>(sizes.heads_q) * pairs *
         static_cast<double>(sizes.head_dim + sizes.head_dim_v);
}

}  // namespace flashlab::reference
