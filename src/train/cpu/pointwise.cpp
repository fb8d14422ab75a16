// The unfused set's operations: one element at a time, as plain loops.

#include <algorithm>
#include <cmath>

#include "train/cpu/call.h"

namespace flashlab::train::cpu {
namespace {

template <class T>
T silu_slope(T x) {
  const T sigmoid = 1 / (1 + std::exp(-x));
  return sigmoid * (1 + x * (1 - sigmoid));
}

// Of the tangent that softcap ended with.
template <class T>
T softcap_slope(T tangent) {
  return (1 - tangent) * (1 + tangent);
}

}  // namespace

template <class T>
void pointwise(const Call<T>& call) {
  const auto& p = call.template attributes<PointwiseAttributes>();
  const T* a = call.in(Slot::kA);
  const T* b = call.in(Slot::kB);
  T* y = call.out(Slot::kY);
  const T factor = static_cast<T>(p.factor);
  call.parallel(p.rows, 32, [&](std::int64_t first, std::int64_t rows) {
    const std::int64_t begin = first * p.width, end = begin + rows * p.width;
    switch (p.function) {
      case Pointwise::kAdd:
        for (std::int64_t i = begin; i < end; ++i) y[i] = a[i] + b[i];
        break;
      case Pointwise::kAddRow:
        for (std::int64_t i = begin; i < end; i += p.width) {
          for (std::int64_t j = 0; j < p.width; ++j) y[i + j] = a[i + j] + b[j];
        }
        break;
      case Pointwise::kMultiply:
        for (std::int64_t i = begin; i < end; ++i) y[i] = a[i] * b[i];
        break;
      case Pointwise::kSilu:
        for (std::int64_t i = begin; i < end; ++i) y[i] = a[i] / (1 + std::exp(-a[i]));
        break;
      case Pointwise::kSiluBackward:
        for (std::int64_t i = begin; i < end; ++i) y[i] = a[i] * silu_slope(b[i]);
        break;
      case Pointwise::kScale:
        for (std::int64_t i = begin; i < end; ++i) y[i] = factor * a[i];
        break;
      case Pointwise::kSoftcap:
        for (std::int64_t i = begin; i < end; ++i) y[i] = factor * std::tanh(a[i] / factor);
        break;
      case Pointwise::kSoftcapBackward:
        for (std::int64_t i = begin; i < end; ++i) y[i] = a[i] * softcap_slope(b[i] / factor);
        break;
      case Pointwise::kCopy:
        std::copy(a + begin, a + end, y + begin);
        break;
    }
  });
}

template void pointwise<float>(const Call<float>&);
template void pointwise<double>(const Call<double>&);

}  // namespace flashlab::train::cpu
