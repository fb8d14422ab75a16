#include "reference/naive_rounded.h"

#include <cmath>
#include <limits>
#include <new>

#include "reference/heads.h"
#include "reference/scores.h"

namespace flashlab::reference {
namespace {

template <class Real>
constexpr Real kInfinite = std::numeric_limits<Real>::infinity();

// T's rounding of a value of the summing type.
struct Rounding {
  Rounding(DType type, const Options& options)
      : dtype(type), tf32(type == DType::kFp32 && options.precision == Precision::kTf32) {}

  float operator()(float value) const { return round_to(dtype, value); }
  double operator()(double value) const { return value; }

  // The same for what goes into another product: tf32 keeps 11 significant bits of it.
  float operand(float value) const { return tf32 ? round_to_tf32(value) : round_to(dtype, value); }
  double operand(double value) const { return value; }

  DType dtype;
  bool tf32;
};

// The orders of a variant's sums.
struct Orders {
  Orders(const Sizes& sizes, const NaiveVariant& variant)
      : features(shuffled(sizes.head_dim, variant.order)),
        values(shuffled(sizes.head_dim_v, variant.order * 3)),
        delta(shuffled(sizes.head_dim_v, variant.order * 5)),
        seed(variant.order),
        descending(variant.order % 2 == 1),
        base_two(variant.base_two) {}

  // Visits 0 .. count - 1, or the other way round.
  template <class Use>
  void each(std::size_t count, const Use& use) const {
    for (std::size_t n = 0; n < count; ++n) use(descending ? count - 1 - n : n);
  }

  // exp(x - y). In base two as FlashAttention-2's kernels do, both products rounded.
  float exponential(float x, float y) const {
    constexpr float kLog2E = 1.44269504088896341f;
    return base_two ? std::exp2(x * kLog2E - y * kLog2E) : std::exp(x - y);
  }
  double exponential(double x, double y) const {
    constexpr double kLog2E = 1.4426950408889634074;
    return base_two ? std::exp2(x * kLog2E - y * kLog2E) : std::exp(x - y);
  }

  std::vector<std::int64_t> features;  // of the products of a score
  std::vector<std::int64_t> values;    // of the products of dP
  std::vector<std::int64_t> delta;     // of the products of dO * O
  std::uint64_t seed;                  // 0: the formula as it stands
  bool descending;                     // keys and queries
  bool base_two;

 private:
  static std::vector<std::int64_t> shuffled(std::int64_t count, std::uint64_t seed) {
    std::vector<std::int64_t> order = range(count);
    std::uint64_t state = seed;
    for (std::size_t n = order.size(); seed != 0 && n > 1; --n) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      std::swap(order[n - 1], order[static_cast<std::size_t>((state >> 33) % n)]);
    }
    return order;
  }
};

template <class Real, class Tensors>
Real sink_of(const Tensors& t, std::int64_t h) {
  if (!t.sinks) return -kInfinite<Real>;
  return static_cast<Real>(load(t.sinks->data, t.sinks->spec.dtype, h));
}

// One row of the naive formula: S, then P in place.
template <class Real>
class NaiveRow {
 public:
  template <class Tensors>
  NaiveRow(const Tensors& t, const Sizes& sizes, const Options& options, Rounding rounding,
           const Orders& orders)
      : visibility_(sizes, options, t.mask),
        rule_(sizes, options, t.alibi_slopes),
        dropout_(sizes, options, t),
        scale_(scale_of(options, sizes.head_dim, t.q.spec.dtype)),
        rounding_(rounding),
        orders_(orders) {}

  void scores(const Real* q, const std::vector<std::int64_t>& keys,
              const std::vector<Real>& k_columns, std::int64_t b, std::int64_t h, std::int64_t i) {
    visibility_.row(b, h, i, keys, visible, bias_);
    count = static_cast<std::size_t>(
        std::lower_bound(keys.begin(), keys.end(), visibility_.end_key(i)) - keys.begin());
    p.resize(keys.size());
    dot_columns(q, orders_.features, k_columns.data(), keys.size(), count, p.data());
    dropout_.row(b, h, i, keys, kept);
    slope.resize(keys.size());
    const ScoreRule::Row alibi = rule_.row(b, h, i);
    for (std::size_t n = 0; n < count; ++n) {
      const Real x = static_cast<Real>(scale_) * p[n];
      slope[n] = rule_.derivative(x);
      p[n] = visible[n] == 0
                 ? -kInfinite<Real>
                 : rounding_(rule_.capped(x) + static_cast<Real>(alibi(keys[n]) + bias_[n]));
    }
  }

  // 1 / (1 - p) where dropout keeps the pair, else 0.
  Real keep(std::size_t n) const {
    return kept[n] != 0 ? static_cast<Real>(dropout_.scale()) : Real(0);
  }
  Real keep_scale() const { return static_cast<Real>(dropout_.scale()); }
  double scale() const { return scale_; }

  // S and a score to a key without a value -> rounded softmax; returns the LSE.
  Real softmax(Real sink) {
    Real maximum = sink;
    if (std::isnan(sink) || sink == kInfinite<Real>) return fill(NAN);
    for (std::size_t n = 0; n < count; ++n) {
      if (std::isnan(p[n]) || p[n] == kInfinite<Real>) return fill(NAN);
      maximum = std::max(maximum, p[n]);
    }
    if (maximum == -kInfinite<Real>) {
      fill(0);
      return maximum;
    }
    Real sum = sink == -kInfinite<Real> ? Real(0) : orders_.exponential(sink, maximum);
    orders_.each(count, [&](std::size_t n) {
      p[n] = orders_.exponential(p[n], maximum);
      sum += p[n];
    });
    for (std::size_t n = 0; n < count; ++n) p[n] = rounding_.operand(p[n] / sum);
    return maximum + std::log(sum);
  }

  // S -> rounded exp(S - LSE).
  void probabilities(Real lse) {
    if (lse == -kInfinite<Real>) {
      fill(0);
      return;
    }
    for (std::size_t n = 0; n < count; ++n) {
      p[n] = rounding_.operand(orders_.exponential(p[n], lse));
    }
  }

  std::vector<Real> p;
  std::vector<Real> slope;         // d score / d (scale q.k)
  std::vector<std::uint8_t> kept;  // by dropout
  std::vector<std::uint8_t> visible;
  std::size_t count = 0;

 private:
  Real fill(Real value) {
    std::fill(p.begin(), p.end(), value);
    return value;
  }

  Visibility visibility_;
  ScoreRule rule_;
  DropoutRule dropout_;
  double scale_;
  Rounding rounding_;
  const Orders& orders_;
  std::vector<double> bias_;
};

template <class Real>
ForwardRows forward_as(const ForwardTensors& t, const Options& options, const Sample& sample,
                       const NaiveVariant& variant) {
  const Sizes sizes = sizes_of(t.q, t.k, t.v);
  const Orders orders(sizes, variant);
  NaiveRow<Real> row(t, sizes, options, {t.q.spec.dtype, options}, orders);
  const auto dim = static_cast<std::size_t>(sizes.head_dim);
  const auto dim_v = static_cast<std::size_t>(sizes.head_dim_v);
  const std::vector<std::int64_t> all_keys = range(sizes.seqlen_k);

  ForwardRows out;
  out.rows = sample.queries;
  out.o.resize(out.rows.size() * dim_v);
  out.lse.resize(out.rows.size());
  std::vector<Real> q, k_columns, v_rows, o(dim_v);
  for (std::int64_t b = 0; b < sizes.batch; ++b) {
    for (std::int64_t hk = 0; hk < sizes.heads_k; ++hk) {
      bool read = false;
      for (std::int64_t h = hk * sizes.group(); h < (hk + 1) * sizes.group(); ++h) {
        const HeadRows wanted = rows_of(out.rows, b, h);
        if (wanted.empty()) continue;
        if (!read) {
          read_columns(t.k, b, hk, all_keys, k_columns);
          read_rows(t.v, b, hk, all_keys, v_rows);
          read = true;
        }
        read_rows(t.q, b, h, wanted.positions, q);
        for (std::size_t n = 0; n < wanted.positions.size(); ++n) {
          row.scores(&q[n * dim], all_keys, k_columns, b, h, wanted.positions[n]);
          const std::size_t slot = wanted.slots[n];
          out.lse[slot] = static_cast<double>(row.softmax(sink_of<Real>(t, h)));
          std::fill(o.begin(), o.end(), Real(0));
          orders.each(row.count, [&](std::size_t j) {
            if (row.visible[j] == 0 || row.kept[j] == 0) return;
            add_scaled(row.p[j], &v_rows[j * dim_v], sizes.head_dim_v, o.data());
          });
          for (std::size_t d = 0; d < dim_v; ++d) {
            out.o[slot * dim_v + d] =
                round_to(t.o.spec.dtype, static_cast<double>(o[d] * row.keep_scale()));
          }
        }
      }
    }
  }
  return out;
}

template <class Real>
class NaiveBackward {
 public:
  NaiveBackward(const BackwardTensors& t, const Options& options, const Sample& sample,
                Statistics statistics, const NaiveVariant& variant)
      : t_(t),
        sizes_(sizes_of(t.q, t.k, t.v)),
        orders_(sizes_, variant),
        rounding_(t.q.spec.dtype, options),
        row_(t, sizes_, options, rounding_, orders_),
        statistics_(statistics),
        all_(sample.all) {
    out_.queries = sample.queries;
    out_.keys = sample.keys;
    out_.dq.assign(out_.queries.size() * dim(), 0.0);
    out_.dk.assign(out_.keys.size() * dim(), 0.0);
    out_.dv.assign(out_.keys.size() * dim_v(), 0.0);
    if (t.sinks && all_) out_.d_sinks.assign(static_cast<std::size_t>(sizes_.heads_q), 0.0);
  }

  BackwardRows run() {
    for (std::int64_t b = 0; b < sizes_.batch; ++b) {
      for (std::int64_t hk = 0; hk < sizes_.heads_k; ++hk) key_head(b, hk);
    }
    for (double& sum : out_.d_sinks) sum = round_to(DType::kFp32, sum);
    return std::move(out_);
  }

 private:
  std::size_t dim() const { return static_cast<std::size_t>(sizes_.head_dim); }
  std::size_t dim_v() const { return static_cast<std::size_t>(sizes_.head_dim_v); }

  // Keys of one key head that rows walk over: all of them or a selection.
  struct Keys {
    std::vector<std::int64_t> positions;
    std::vector<Real> k_columns, v_columns, k_rows;  // [D, keys], [Dv, keys], [keys, D]
  };

  Keys read_keys(std::int64_t b, std::int64_t hk, std::vector<std::int64_t> positions) const {
    Keys out;
    out.positions = std::move(positions);
    read_columns(t_.k, b, hk, out.positions, out.k_columns);
    read_columns(t_.v, b, hk, out.positions, out.v_columns);
    read_rows(t_.k, b, hk, out.positions, out.k_rows);
    return out;
  }

  void key_head(std::int64_t b, std::int64_t hk) {
    const HeadRows wanted_keys = rows_of(out_.keys, b, hk);
    const Keys every_key = read_keys(b, hk, range(sizes_.seqlen_k));
    // The softmax needs every key of a row, a given LSE only those whose gradients are wanted.
    std::optional<Keys> some_keys;
    if (!all_ && statistics_ == Statistics::kGiven) {
      some_keys = read_keys(b, hk, wanted_keys.positions);
    }
    dk_.assign(wanted_keys.positions.size() * dim(), Real(0));
    dv_.assign(wanted_keys.positions.size() * dim_v(), Real(0));
    for (std::int64_t h = hk * sizes_.group(); h < (hk + 1) * sizes_.group(); ++h) {
      const HeadRows wanted = rows_of(out_.queries, b, h);
      rows(b, h, wanted.positions, every_key, &wanted, all_ ? &wanted_keys : nullptr);
      if (all_ || wanted_keys.empty()) continue;
      rows(b, h, range(sizes_.seqlen_q), some_keys ? *some_keys : every_key, nullptr, &wanted_keys);
    }
    const DType dk_type = t_.dk.spec.dtype, dv_type = t_.dv.spec.dtype;
    for (std::size_t n = 0; n < wanted_keys.slots.size(); ++n) {
      const std::size_t slot = wanted_keys.slots[n];
      for (std::size_t d = 0; d < dim(); ++d) {
        out_.dk[slot * dim() + d] = round_to(
            dk_type, static_cast<double>(static_cast<Real>(row_.scale()) * dk_[n * dim() + d]));
      }
      for (std::size_t d = 0; d < dim_v(); ++d) {
        out_.dv[slot * dim_v() + d] =
            round_to(dv_type, static_cast<double>(row_.keep_scale() * dv_[n * dim_v() + d]));
      }
    }
  }

  void rows(std::int64_t b, std::int64_t h, const std::vector<std::int64_t>& positions,
            const Keys& keys, const HeadRows* wanted, const HeadRows* wanted_keys) {
    if (positions.empty()) return;
    read_rows(t_.q, b, h, positions, q_);
    read_rows(t_.d_o, b, h, positions, d_o_);
    orders_.each(positions.size(), [&](std::size_t n) {
      const std::int64_t i = positions[n];
      row_.scores(&q_[n * dim()], keys.positions, keys.k_columns, b, h, i);
      dp_.resize(keys.positions.size());
      dot_columns(&d_o_[n * dim_v()], orders_.values, keys.v_columns.data(), keys.positions.size(),
                  row_.count, dp_.data());
      for (std::size_t j = 0; j < row_.count; ++j) {
        dp_[j] = row_.kept[j] == 0 ? Real(0) : rounding_(row_.keep(j) * dp_[j]);
      }
      Real delta = 0, lse = 0;
      const Real sink = sink_of<Real>(t_, h);
      if (statistics_ == Statistics::kGiven) {
        lse = static_cast<Real>(given_lse(b, h, i));
        row_.probabilities(lse);
        read_rows(t_.o, b, h, {i}, o_);
        for (std::int64_t feature : orders_.delta) {
          const auto d = static_cast<std::size_t>(feature);
          delta += d_o_[n * dim_v() + d] * o_[d];
        }
      } else {
        lse = row_.softmax(sink);
        orders_.each(row_.count, [&](std::size_t j) {
          if (row_.visible[j] != 0) delta += row_.p[j] * dp_[j];
        });
      }
      if (t_.d_lse) delta -= static_cast<Real>(read_statistic(*t_.d_lse, b, h, i));
      if (!out_.d_sinks.empty() && sink != -kInfinite<Real>) {
        const Real share = rounding_.operand(orders_.exponential(sink, lse));
        out_.d_sinks[static_cast<std::size_t>(h)] -= static_cast<double>(share * delta);
      }
      for (std::size_t j = 0; j < row_.count; ++j) {
        dp_[j] = row_.visible[j] == 0
                     ? Real(0)
                     : rounding_.operand(row_.p[j] * (dp_[j] - delta) * row_.slope[j]);  // dS
      }
      if (wanted != nullptr) query_gradient(wanted->slots[n], keys);
      if (wanted_keys != nullptr) key_gradients(*wanted_keys, n, keys);
    });
  }

  // A variant with an order also takes every LSE one ulp off, up or down by the row: an
  // implementation's own is no better, and few rows decide the gradients of a small problem.
  double given_lse(std::int64_t b, std::int64_t h, std::int64_t i) const {
    const double lse = read_statistic(t_.lse, b, h, i);
    if (orders_.seed == 0 || !std::isfinite(lse)) return lse;
    const std::uint64_t row = static_cast<std::uint64_t>(i) * 0x9E3779B97F4A7C15u;
    const bool up = ((row ^ orders_.seed * 0xD1B54A32D192ED03u) >> 63) != 0;
    const double target = up ? kInfinite<double> : -kInfinite<double>;
    if (t_.lse.spec.dtype == DType::kFp64) return std::nextafter(lse, target);
    return static_cast<double>(std::nextafter(static_cast<float>(lse), static_cast<float>(target)));
  }

  void query_gradient(std::size_t slot, const Keys& keys) {
    o_.assign(dim(), Real(0));
    orders_.each(row_.count, [&](std::size_t j) {
      if (row_.visible[j] == 0) return;
      add_scaled(dp_[j], &keys.k_rows[j * dim()], sizes_.head_dim, o_.data());
    });
    for (std::size_t d = 0; d < dim(); ++d) {
      out_.dq[slot * dim() + d] =
          round_to(t_.dq.spec.dtype, static_cast<double>(static_cast<Real>(row_.scale()) * o_[d]));
    }
  }

  void key_gradients(const HeadRows& wanted_keys, std::size_t n, const Keys& keys) {
    const bool selected = keys.positions.size() == wanted_keys.positions.size();
    for (std::size_t m = 0; m < wanted_keys.positions.size(); ++m) {
      const std::size_t j = selected ? m : static_cast<std::size_t>(wanted_keys.positions[m]);
      if (j >= row_.count || row_.visible[j] == 0) continue;
      add_scaled(dp_[j], &q_[n * dim()], sizes_.head_dim, &dk_[m * dim()]);
      if (row_.kept[j] == 0) continue;
      add_scaled(row_.p[j], &d_o_[n * dim_v()], sizes_.head_dim_v, &dv_[m * dim_v()]);
    }
  }

  const BackwardTensors& t_;
  Sizes sizes_;
  Orders orders_;
  Rounding rounding_;
  NaiveRow<Real> row_;
  Statistics statistics_;
  bool all_;
  BackwardRows out_;
  std::vector<Real> q_, d_o_, dp_, o_;  // [rows, D], [rows, Dv], [keys], [D or Dv]
  std::vector<Real> dk_, dv_;           // of the wanted keys of one key head
};

Status out_of_memory() {
  return Status::out_of_memory({"naive baseline", "std::bad_alloc", "memory for copies of one head",
                                "use a smaller problem or a sample of rows"});
}

// Where `other` is further from `exact` than `worst`, takes it over.
void keep_worst(const std::vector<double>& exact, const std::vector<double>& other,
                std::vector<double>& worst) {
  for (std::size_t n = 0; n < exact.size(); ++n) {
    const double error = std::fabs(other[n] - exact[n]), kept = std::fabs(worst[n] - exact[n]);
    if (std::isfinite(error) && !(error <= kept)) worst[n] = other[n];
  }
}

// The variants of a yardstick. The first is the formula as it stands.
std::vector<NaiveVariant> variants(const Sizes& sizes, const Options& options,
                                   const Sample& sample) {
  std::vector<NaiveVariant> out = {{0, false}, {1, true}};
  if (sample.all && multiply_adds(sizes, options) < kSmallProblem) {
    out.insert(out.end(), {{2, false}, {3, true}, {4, true}, {5, false}});
  }
  return out;
}

}  // namespace

Result<ForwardRows> naive_forward(const ForwardTensors& tensors, const Options& options,
                                  const Sample& sample, const NaiveVariant& variant) {
  try {
    if (tensors.q.spec.dtype == DType::kFp64) {
      return forward_as<double>(tensors, options, sample, variant);
    }
    return forward_as<float>(tensors, options, sample, variant);
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  }
}

Result<BackwardRows> naive_backward(const BackwardTensors& tensors, const Options& options,
                                    const Sample& sample, Statistics statistics,
                                    const NaiveVariant& variant) {
  try {
    if (tensors.q.spec.dtype == DType::kFp64) {
      return NaiveBackward<double>(tensors, options, sample, statistics, variant).run();
    }
    return NaiveBackward<float>(tensors, options, sample, statistics, variant).run();
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  }
}

Result<ForwardRows> naive_yardstick(const ForwardTensors& tensors, const Options& options,
                                    const Sample& sample, const ForwardRows& exact) {
  const Sizes sizes = sizes_of(tensors.q, tensors.k, tensors.v);
  std::optional<ForwardRows> worst;
  for (const NaiveVariant& variant : variants(sizes, options, sample)) {
    auto next = naive_forward(tensors, options, sample, variant);
    if (!next.ok()) return next.status();
    if (!worst) {
      worst = std::move(*next);
      continue;
    }
    keep_worst(exact.o, next->o, worst->o);
    keep_worst(exact.lse, next->lse, worst->lse);
  }
  return std::move(*worst);
}

Result<BackwardRows> naive_yardstick(const BackwardTensors& tensors, const Options& options,
                                     const Sample& sample, const BackwardRows& exact,
                                     bool given_only) {
  const Sizes sizes = sizes_of(tensors.q, tensors.k, tensors.v);
  std::optional<BackwardRows> worst;
  for (const NaiveVariant& variant : variants(sizes, options, sample)) {
    const bool given = given_only || variant.order % 2 == 1;
    auto next = naive_backward(tensors, options, sample,
                               given ? Statistics::kGiven : Statistics::kRecomputed, variant);
    if (!next.ok()) return next.status();
    if (!worst) {
      worst = std::move(*next);
      continue;
    }
    keep_worst(exact.dq, next->dq, worst->dq);
    keep_worst(exact.dk, next->dk, worst->dk);
    keep_worst(exact.dv, next->dv, worst->dv);
    keep_worst(exact.d_sinks, next->d_sinks, worst->d_sinks);
  }
  for (std::size_t h = 0; h < exact.d_sinks.size(); ++h) {
    const double error = std::fabs(worst->d_sinks[h] - exact.d_sinks[h]);
    if (error < exact.d_sinks_rounding[h]) {
      worst->d_sinks[h] = exact.d_sinks[h] + exact.d_sinks_rounding[h];
    }
  }
  return std::move(*worst);
}

}  // namespace flashlab::reference
