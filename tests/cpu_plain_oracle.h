#pragma once

// A problem with its tensors and an fp64 loop over it, for the tests of the CPU implementations.
// Shares no code with them: elements are converted by the public functions alone.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "flashlab/flashlab.h"

namespace flashlab::testing {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// What a test asks. The defaults are one small head.
struct Ask {
  std::int64_t batch = 1, heads_q = 1, heads_k = 1, seqlen_q = 8, seqlen_k = 8;
  std::int64_t head_dim = 8, head_dim_v = 8;
  DType dtype = DType::kFp32;
  Causal causal = Causal::kNone;
  enum class MaskKind { kNone, kBool, kAdditive } mask = MaskKind::kNone;
  std::optional<double> scale = std::nullopt;
  bool lse_gradient = false;
  bool fp32_outputs = false;
  bool accumulate = false;
  bool broadcast_mask = false;   ///< mask [1, 1, 1, Sk]
  std::int64_t row_padding = 0;  ///< extra elements after each row, filled with NaN
  bool heads_first = false;      ///< memory order [B, H, S, D]
  bool fp64_lse = false;
  std::uint32_t seed = 1;
};

/// Memory of one tensor and a view of it.
struct Buffer {
  std::vector<std::byte> bytes;
  TensorSpec spec;

  double get(std::int64_t at) const {
    const void* p = bytes.data() + at * static_cast<std::int64_t>(size_of(spec.dtype));
    if (spec.dtype == DType::kFp64) return *static_cast<const double*>(p);
    if (spec.dtype == DType::kFp32) return *static_cast<const float*>(p);
    if (spec.dtype == DType::kBool) return *static_cast<const std::uint8_t*>(p);
    const std::uint16_t bits = *static_cast<const std::uint16_t*>(p);
    return spec.dtype == DType::kFp16 ? float_from_fp16(bits) : float_from_bf16(bits);
  }
  void set(std::int64_t at, double value) {
    void* p = bytes.data() + at * static_cast<std::int64_t>(size_of(spec.dtype));
    const float narrow = static_cast<float>(value);
    switch (spec.dtype) {
      case DType::kFp64:
        *static_cast<double*>(p) = value;
        break;
      case DType::kFp32:
        *static_cast<float*>(p) = narrow;
        break;
      case DType::kFp16:
        *static_cast<std::uint16_t*>(p) = fp16_from_float(narrow);
        break;
      case DType::kBool:
        *static_cast<std::uint8_t*>(p) = value != 0;
        break;
      default:
        *static_cast<std::uint16_t*>(p) = bf16_from_float(narrow);
    }
  }
  std::int64_t at(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d = 0) const {
    std::int64_t index = 0;
    const std::int64_t where[4] = {a, b, c, d};
    for (int i = 0; i < spec.rank; ++i) {
      if (spec.shape[i] > 1) index += where[i] * spec.strides[i];
    }
    return index;
  }
  double operator()(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d = 0) const {
    return get(at(a, b, c, d));
  }
  Tensor view() { return {bytes.data(), spec}; }
};

/// Calls visit(a, b, c, d) for every element of a rank 3 or 4 tensor.
inline void for_each(
    const TensorSpec& spec,
    const std::function<void(std::int64_t, std::int64_t, std::int64_t, std::int64_t)>& visit) {
  const std::int64_t last = spec.rank == 4 ? spec.shape[3] : 1;
  for (std::int64_t a = 0; a < spec.shape[0]; ++a)
    for (std::int64_t b = 0; b < spec.shape[1]; ++b)
      for (std::int64_t c = 0; c < spec.shape[2]; ++c)
        for (std::int64_t d = 0; d < last; ++d) visit(a, b, c, d);
}

/// All tensors of a problem, and the outputs in fp64.
class Trial {
 public:
  explicit Trial(const Ask& ask) : ask(ask), random_(ask.seed) {
    const DType out = ask.fp32_outputs ? DType::kFp32 : ask.dtype;
    const DType statistic = ask.fp64_lse ? DType::kFp64 : DType::kFp32;
    q = rows(ask.seqlen_q, ask.heads_q, ask.head_dim, ask.dtype);
    k = rows(ask.seqlen_k, ask.heads_k, ask.head_dim, ask.dtype);
    v = rows(ask.seqlen_k, ask.heads_k, ask.head_dim_v, ask.dtype);
    o = rows(ask.seqlen_q, ask.heads_q, ask.head_dim_v, out);
    d_o = rows(ask.seqlen_q, ask.heads_q, ask.head_dim_v, ask.dtype);
    dq = rows(ask.seqlen_q, ask.heads_q, ask.head_dim, out);
    dk = rows(ask.seqlen_k, ask.heads_k, ask.head_dim, out);
    dv = rows(ask.seqlen_k, ask.heads_k, ask.head_dim_v, out);
    lse = dense({ask.batch, ask.heads_q, ask.seqlen_q}, statistic);
    d_lse = dense({ask.batch, ask.heads_q, ask.seqlen_q}, statistic);
    if (ask.mask != Ask::MaskKind::kNone) {
      const bool one = ask.broadcast_mask;
      mask =
          dense({one ? 1 : ask.batch, one ? 1 : ask.heads_q, one ? 1 : ask.seqlen_q, ask.seqlen_k},
                ask.mask == Ask::MaskKind::kBool ? DType::kBool : DType::kFp32);
      std::uniform_real_distribution<double> uniform(0, 1);
      for_each(mask.spec, [&](auto a, auto b, auto c, auto d) {
        const bool hidden = uniform(random_) < 0.3;
        const double bias = hidden ? -kInfinity : uniform(random_);
        mask.set(mask.at(a, b, c, d), ask.mask == Ask::MaskKind::kBool ? !hidden : bias);
      });
    }
  }

  Options options(std::string implementation) const {
    Options options;
    options.scale = ask.scale;
    options.causal = ask.causal;
    options.implementation = std::move(implementation);
    options.gradient_mode = ask.accumulate ? GradientMode::kAccumulate : GradientMode::kOverwrite;
    return options;
  }
  ForwardTensors forward_tensors() {
    ForwardTensors t;
    t.q = q.view(), t.k = k.view(), t.v = v.view(), t.o = o.view(), t.lse = lse.view();
    if (ask.mask != Ask::MaskKind::kNone) t.mask = mask.view();
    return t;
  }
  BackwardTensors backward_tensors() {
    BackwardTensors t;
    t.q = q.view(), t.k = k.view(), t.v = v.view(), t.o = o.view(), t.lse = lse.view();
    t.d_o = d_o.view(), t.dq = dq.view(), t.dk = dk.view(), t.dv = dv.view();
    if (ask.lse_gradient) t.d_lse = d_lse.view();
    if (ask.mask != Ask::MaskKind::kNone) t.mask = mask.view();
    return t;
  }

  bool visible(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    const std::int64_t shift = ask.causal == Causal::kBottomRight ? ask.seqlen_k - ask.seqlen_q : 0;
    if (ask.causal != Causal::kNone && j > i + shift) return false;
    if (ask.mask == Ask::MaskKind::kBool) return mask(b, h, i, j) != 0;
    return ask.mask == Ask::MaskKind::kNone || mask(b, h, i, j) != -kInfinity;
  }

  /// Fills want_* from q, k, v, d_o, d_lse and what dq, dk, dv hold now (when accumulating).
  void solve() {
    want_o = zeros(o), want_lse = zeros(lse), want_dq = held(dq), want_dk = held(dk),
    want_dv = held(dv);
    for (std::int64_t b = 0; b < ask.batch; ++b) {
      for (std::int64_t h = 0; h < ask.heads_q; ++h) {
        for (std::int64_t i = 0; i < ask.seqlen_q; ++i) solve_row(b, h, i);
      }
    }
  }

  const Ask ask;
  Buffer q, k, v, o, d_o, dq, dk, dv, lse, d_lse, mask;
  std::vector<double> want_o, want_lse, want_dq, want_dk, want_dv;  ///< indexed as the buffers

 private:
  void solve_row(std::int64_t b, std::int64_t h, std::int64_t i) {
    const std::int64_t hk = h / (ask.heads_q / ask.heads_k);
    double scale = ask.scale.value_or(1 / std::sqrt(static_cast<double>(ask.head_dim)));
    if (ask.dtype != DType::kFp64) scale = static_cast<float>(scale);  // as the API rounds it
    std::vector<double> s(ask.seqlen_k, -kInfinity), p(ask.seqlen_k, 0);
    double maximum = -kInfinity, sum = 0;
    for (std::int64_t j = 0; j < ask.seqlen_k; ++j) {
      if (!visible(b, h, i, j)) continue;
      double dot = 0;
      for (std::int64_t d = 0; d < ask.head_dim; ++d) dot += q(b, i, h, d) * k(b, j, hk, d);
      s[j] = scale * dot + (ask.mask == Ask::MaskKind::kAdditive ? mask(b, h, i, j) : 0);
      if (s[j] > maximum || std::isnan(s[j])) maximum = s[j];
      if (std::isnan(maximum)) break;
    }
    const std::int64_t at_lse = lse.at(b, h, i);
    if (maximum == -kInfinity) {
      want_lse[at_lse] = -kInfinity;
      return;
    }
    for (std::int64_t j = 0; j < ask.seqlen_k; ++j) {
      if (visible(b, h, i, j)) sum += p[j] = std::exp(s[j] - maximum);
    }
    if (maximum == kInfinity) sum = std::nan("");
    want_lse[at_lse] = maximum + std::log(sum);
    double delta = ask.lse_gradient ? -d_lse(b, h, i) : 0;
    for (std::int64_t d = 0; d < ask.head_dim_v; ++d) {
      double total = 0;
      for (std::int64_t j = 0; j < ask.seqlen_k; ++j) {
        if (visible(b, h, i, j)) total += p[j] / sum * v(b, j, hk, d);
      }
      want_o[o.at(b, i, h, d)] = total;
      delta += total * d_o(b, i, h, d);
    }
    for (std::int64_t j = 0; j < ask.seqlen_k; ++j) {
      if (!visible(b, h, i, j)) continue;
      double dp = 0;
      for (std::int64_t d = 0; d < ask.head_dim_v; ++d) {
        dp += d_o(b, i, h, d) * v(b, j, hk, d);
        want_dv[dv.at(b, j, hk, d)] += p[j] / sum * d_o(b, i, h, d);
      }
      const double ds = p[j] / sum * (dp - delta) * scale;
      for (std::int64_t d = 0; d < ask.head_dim; ++d) {
        want_dq[dq.at(b, i, h, d)] += ds * k(b, j, hk, d);
        want_dk[dk.at(b, j, hk, d)] += ds * q(b, i, h, d);
      }
    }
  }

  Buffer rows(std::int64_t seqlen, std::int64_t heads, std::int64_t dim, DType dtype) {
    Buffer buffer;
    const std::int64_t row = dim + ask.row_padding;
    buffer.spec = contiguous_spec(dtype, {ask.batch, seqlen, heads, dim});
    buffer.spec.strides =
        ask.heads_first ? std::array<std::int64_t, 4>{heads * seqlen * row, row, seqlen * row, 1}
                        : std::array<std::int64_t, 4>{seqlen * heads * row, heads * row, row, 1};
    buffer.bytes.resize(ask.batch * seqlen * heads * row * size_of(dtype), std::byte{0xff});
    fill(buffer);
    return buffer;
  }
  Buffer dense(std::initializer_list<std::int64_t> shape, DType dtype) {
    Buffer buffer;
    buffer.spec = contiguous_spec(dtype, shape);
    buffer.bytes.resize(buffer.spec.bytes());
    fill(buffer);
    return buffer;
  }
  void fill(Buffer& buffer) {
    std::normal_distribution<double> normal;
    for_each(buffer.spec, [&](auto a, auto b, auto c, auto d) {
      buffer.set(buffer.at(a, b, c, d), normal(random_));
    });
  }
  static std::vector<double> zeros(const Buffer& buffer) {
    return std::vector<double>(buffer.bytes.size() / size_of(buffer.spec.dtype), 0);
  }
  std::vector<double> held(const Buffer& buffer) const {
    std::vector<double> values = zeros(buffer);
    if (!ask.accumulate) return values;
    for_each(buffer.spec, [&](auto a, auto b, auto c, auto d) {
      values[buffer.at(a, b, c, d)] = buffer(a, b, c, d);
    });
    return values;
  }

  std::mt19937 random_;
};

/// Largest |got - want|, infinity where one is NaN or infinite and the other is not the same.
inline double distance(const Buffer& got, const std::vector<double>& want) {
  double worst = 0;
  for_each(got.spec, [&](auto a, auto b, auto c, auto d) {
    const double x = got(a, b, c, d), y = want[got.at(a, b, c, d)];
    const bool same_special = (std::isnan(x) && std::isnan(y)) || x == y;
    if (same_special) return;
    const double error = std::abs(x - y);
    worst = std::max(worst, std::isfinite(error) ? error : kInfinity);
  });
  return worst;
}

/// Largest finite magnitude.
inline double largest(const std::vector<double>& values) {
  double worst = 0;
  for (double x : values) {
    if (std::isfinite(x)) worst = std::max(worst, std::abs(x));
  }
  return worst;
}

/// Bytes of the view's elements are equal.
inline bool same_bits(const Buffer& a, const Buffer& b) {
  return a.bytes == b.bytes;
}

}  // namespace flashlab::testing
