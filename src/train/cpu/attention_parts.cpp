// RoPE and the naive attention's softmax.

#include <algorithm>
#include <cmath>

#include "train/cpu/call.h"

namespace flashlab::train::cpu {

template <class T>
void rope_angles(const Call<T>& call) {
  const auto& a = call.template attributes<RopeAttributes>();
  const std::int64_t half = a.head_dim / 2;
  T* cosine = call.out(Slot::kCosine);
  T* sine = call.out(Slot::kSine);
  const double* scalars = call.template in<double>(Slot::kScalars);
  const auto start = scalars ? static_cast<std::int64_t>(scalars[kPosition]) : 0;
  call.parallel(a.context, 16, [&](std::int64_t first, std::int64_t count) {
    for (std::int64_t position = first; position < first + count; ++position) {
      for (std::int64_t i = 0; i < half; ++i) {
        const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(a.head_dim);
        const double frequency = scaled_frequency(std::pow(a.theta, exponent), a.scaling);
        const double angle = static_cast<double>(start + position) * frequency;
        cosine[position * half + i] = static_cast<T>(std::cos(angle));
        sine[position * half + i] = static_cast<T>(std::sin(angle));
      }
    }
  });
}

// (x, y) -> (cos x - sin y, sin x + cos y) for neighbouring elements of q and k, or for those of a
// head's halves; in backward by the negative angle. v, the end of a row, stays.
template <class T>
void rope(const Call<T>& call) {
  const auto& a = call.template attributes<RopeAttributes>();
  const std::int64_t half = a.head_dim / 2, row_elements = (a.heads + 2 * a.kv()) * a.head_dim;
  const T* cosine = call.in(Slot::kCosine);
  const T* sine = call.in(Slot::kSine);
  T* qkv = call.out(Slot::kQkv);
  const T sign = a.inverse ? T(-1) : T(1);
  const std::int64_t step = a.halves ? 1 : 2, apart = a.halves ? half : 1;
  call.parallel(a.batch * a.context, 32, [&](std::int64_t first, std::int64_t rows) {
    for (std::int64_t row = first; row < first + rows; ++row) {
      const T* c = cosine + row % a.context * half;
      const T* s = sine + row % a.context * half;
      for (std::int64_t head = 0; head < a.heads + a.kv(); ++head) {
        T* x = qkv + row * row_elements + head * a.head_dim;
        for (std::int64_t i = 0; i < half; ++i) {
          T &low = x[step * i], &high = x[step * i + apart];
          const T even = low, odd = high, turn = sign * s[i];
          low = c[i] * even - turn * odd;
          high = turn * even + c[i] * odd;
        }
      }
    }
  });
}

namespace {

// body(row, visible): rows of [batch, heads, context] and how many of their scores count.
template <class T, class Body>
void each_row(const Call<T>& call, const AttentionAttributes& a, const Body& body) {
  call.parallel(a.batch * a.heads * a.context, 32, [&](std::int64_t first, std::int64_t rows) {
    for (std::int64_t row = first; row < first + rows; ++row) {
      body(row, a.causal ? row % a.context + 1 : a.context);
    }
  });
}

}  // namespace

template <class T>
void row_max(const Call<T>& call) {
  const auto& a = call.template attributes<AttentionAttributes>();
  each_row(call, a, [&](std::int64_t row, std::int64_t visible) {
    const T* s = call.in(Slot::kScores) + row * a.context;
    std::int64_t best = 0;
    for (std::int64_t i = 1; i < visible; ++i) best = s[i] > s[best] ? i : best;
    call.out(Slot::kMax)[row] = s[best];
    call.template out<std::int64_t>(Slot::kArgmax)[row] = best;
  });
}

template <class T>
void softmax(const Call<T>& call) {
  const auto& a = call.template attributes<AttentionAttributes>();
  each_row(call, a, [&](std::int64_t row, std::int64_t visible) {
    call.out(Slot::kSum)[row] =
        call.kernels.softmax_row(call.in(Slot::kScores) + row * a.context, call.in(Slot::kMax)[row],
                                 call.out(Slot::kP) + row * a.context, visible, a.context);
  });
}

// P = E / sum with E = exp(S - max):  dS = P (dP - sum_j P_j dP_j). The maximum's own gradient
// cancels exactly, so argmax is read by none of this; autograd keeps it all the same.
template <class T>
void softmax_backward(const Call<T>& call) {
  const auto& a = call.template attributes<AttentionAttributes>();
  each_row(call, a, [&](std::int64_t row, std::int64_t visible) {
    const T* dp = call.in(Slot::kDP) + row * a.context;
    T* ds = call.out(Slot::kDScores) + row * a.context;
    call.kernels.softmax_row(call.in(Slot::kScores) + row * a.context, call.in(Slot::kMax)[row], ds,
                             visible, a.context);
    T dot = 0;
    for (std::int64_t i = 0; i < visible; ++i) dot += ds[i] * dp[i];
    for (std::int64_t i = 0; i < visible; ++i) ds[i] *= dp[i] - dot;
  });
}

#define FLASHLAB_INSTANTIATE(T)                 \
  template void rope_angles<T>(const Call<T>&); \
  template void rope<T>(const Call<T>&);        \
  template void row_max<T>(const Call<T>&);     \
  template void softmax<T>(const Call<T>&);     \
  template void softmax_backward<T>(const Call<T>&);
FLASHLAB_INSTANTIATE(float)
FLASHLAB_INSTANTIATE(double)
#undef FLASHLAB_INSTANTIATE

}  // namespace flashlab::train::cpu
