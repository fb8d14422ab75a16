#pragma once

// Small fp64 problems with their memory, for tests of the oracle.

#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "flashlab/attention.h"
#include "reference/oracle.h"

namespace flashlab::reference {

struct Shape {
  std::int64_t batch = 1, heads_q = 1, heads_k = 1, seqlen_q = 1, seqlen_k = 1, head_dim = 1,
               head_dim_v = 1;
};

// Deterministic numbers in about [-1, 1].
inline double wave(std::size_t n, double phase) {
  return std::sin(1.7 * static_cast<double>(n) + phase) *
         std::cos(0.31 * static_cast<double>(n) + 2 * phase);
}

class SmallProblem {
 public:
  explicit SmallProblem(const Shape& shape) : shape(shape) {
    const auto rows_q = static_cast<std::size_t>(shape.batch * shape.seqlen_q * shape.heads_q);
    const auto rows_k = static_cast<std::size_t>(shape.batch * shape.seqlen_k * shape.heads_k);
    const auto d = static_cast<std::size_t>(shape.head_dim);
    const auto dv = static_cast<std::size_t>(shape.head_dim_v);
    fill(q, rows_q * d, 0.1);
    fill(k, rows_k * d, 0.7);
    fill(v, rows_k * dv, 1.3);
    fill(d_o, rows_q * dv, 2.1);
    fill(d_lse, rows_q, 2.9);
    o.resize(rows_q * dv);
    lse.resize(rows_q);
    dq.resize(rows_q * d);
    dk.resize(rows_k * d);
    dv_.resize(rows_k * dv);
  }

  ForwardTensors forward() {
    ForwardTensors t;
    t.q = view(q, shape.seqlen_q, shape.heads_q, shape.head_dim);
    t.k = view(k, shape.seqlen_k, shape.heads_k, shape.head_dim);
    t.v = view(v, shape.seqlen_k, shape.heads_k, shape.head_dim_v);
    t.o = view(o, shape.seqlen_q, shape.heads_q, shape.head_dim_v);
    t.lse = tensor(lse.data(), {shape.batch, shape.heads_q, shape.seqlen_q});
    t.mask = mask;
    return t;
  }

  BackwardTensors backward(bool with_d_lse) {
    const ForwardTensors f = forward();
    BackwardTensors t;
    t.q = f.q;
    t.k = f.k;
    t.v = f.v;
    t.o = f.o;
    t.lse = *f.lse;
    t.mask = mask;
    t.d_o = view(d_o, shape.seqlen_q, shape.heads_q, shape.head_dim_v);
    if (with_d_lse) t.d_lse = tensor(d_lse.data(), {shape.batch, shape.heads_q, shape.seqlen_q});
    t.dq = view(dq, shape.seqlen_q, shape.heads_q, shape.head_dim);
    t.dk = view(dk, shape.seqlen_k, shape.heads_k, shape.head_dim);
    t.dv = view(dv_, shape.seqlen_k, shape.heads_k, shape.head_dim_v);
    return t;
  }

  Sizes sizes() { return sizes_of(forward().q, forward().k, forward().v); }
  Sample everything() { return Sample::everything(sizes()); }

  ForwardRows run_forward() { return reference::forward(forward(), options, everything()).value(); }
  BackwardRows run_backward(bool with_d_lse = false) {
    return reference::backward(backward(with_d_lse), options, everything(), Statistics::kRecomputed)
        .value();
  }

  // sum(dO * O) + sum(dLSE * LSE): the function whose gradient backward is.
  double loss(bool with_d_lse) {
    const ForwardRows out = run_forward();
    const auto dv = static_cast<std::size_t>(shape.head_dim_v);
    double sum = 0;
    for (std::size_t r = 0; r < out.rows.size(); ++r) {
      const Row& row = out.rows[r];
      const auto token = static_cast<std::size_t>(
          (row.batch * shape.seqlen_q + row.position) * shape.heads_q + row.head);
      for (std::size_t d = 0; d < dv; ++d) sum += d_o[token * dv + d] * out.o[r * dv + d];
      const auto statistic = static_cast<std::size_t>(
          (row.batch * shape.heads_q + row.head) * shape.seqlen_q + row.position);
      if (with_d_lse && std::isfinite(out.lse[r])) sum += d_lse[statistic] * out.lse[r];
    }
    return sum;
  }

  Shape shape;
  Options options;
  std::optional<ConstTensor> mask;
  std::vector<double> q, k, v, o, lse, d_o, d_lse, dq, dk, dv_;

 private:
  static void fill(std::vector<double>& values, std::size_t count, double phase) {
    values.resize(count);
    for (std::size_t n = 0; n < count; ++n) values[n] = wave(n, phase);
  }
  Tensor view(std::vector<double>& values, std::int64_t seqlen, std::int64_t heads,
              std::int64_t width) {
    return tensor(values.data(), {shape.batch, seqlen, heads, width});
  }
};

}  // namespace flashlab::reference
