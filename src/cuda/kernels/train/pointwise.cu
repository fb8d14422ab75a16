// One element at a time: what the unfused set of operations does between products.
//
//   add        y = a + b            add row    y[r, c] = a[r, c] + b[c]
//   multiply   y = a b              silu       y = a / (1 + exp(-a))
//   d silu     y = a silu'(b)      copy       y = a, in another type
//   scale      y = f a             softcap    y = f tanh(a / f)
//   d softcap  y = a (1 - (b / f)^2)
//
// Config: Element kElement, of a copy also kFrom; int kFunction (a Pointwise), kWidth, kVector
// (divides the width); where there is a factor f, its bits: int kFactorBits.

#include "train/arguments.h"
#include "train/packs.h"

namespace flashlab::device {

inline constexpr int kPointwiseBlock = 256;

enum class Pointwise {
  kAdd,
  kAddRow,
  kMultiply,
  kSilu,
  kSiluBackward,
  kCopy,
  kScale,
  kSoftcap,
  kSoftcapBackward
};

template <Pointwise kFunction>
__device__ inline float pointwise_of(float a, float b) {
  if constexpr (kFunction == Pointwise::kAdd || kFunction == Pointwise::kAddRow) return a + b;
  if constexpr (kFunction == Pointwise::kMultiply) return a * b;
  const float x = kFunction == Pointwise::kSilu ? a : b;
  const float sigmoid = 1.0f / (1.0f + expf(-x));
  if constexpr (kFunction == Pointwise::kSilu) return x * sigmoid;
  return a * sigmoid * (1.0f + x * (1.0f - sigmoid));
}

template <class Config>
__device__ inline float by_factor(float a, float b) {
  constexpr Pointwise kFunction = static_cast<Pointwise>(Config::kFunction);
  const float factor = __int_as_float(Config::kFactorBits);
  if constexpr (kFunction == Pointwise::kScale) return factor * a;
  if constexpr (kFunction == Pointwise::kSoftcap) return factor * tanhf(a / factor);
  const float tangent = b / factor;
  return a * (1.0f - tangent) * (1.0f + tangent);
}

template <class Config>
__device__ inline void pointwise(const PointwiseArguments& args) {
  constexpr Element kT = Config::kElement;
  constexpr int kVector = Config::kVector;
  constexpr Pointwise kFunction = static_cast<Pointwise>(Config::kFunction);
  const Index at = (static_cast<Index>(blockIdx.x) * kPointwiseBlock + threadIdx.x) * kVector;
  if (at >= args.elements) return;
  if constexpr (kFunction == Pointwise::kCopy) {
    store_pack<kT>(args.y, at, load_pack<Config::kFrom, kVector>(args.a, at));
    return;
  }
  const auto a = load_pack<kT, kVector>(args.a, at);
  Pack<kVector> b{}, y;
  if constexpr (kFunction == Pointwise::kAddRow) {
    b = load_pack<kT, kVector>(args.b, at % Config::kWidth);
  } else if constexpr (kFunction != Pointwise::kSilu && kFunction != Pointwise::kScale &&
                       kFunction != Pointwise::kSoftcap) {
    b = load_pack<kT, kVector>(args.b, at);
  }
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    if constexpr (kFunction >= Pointwise::kScale) {
      y.at[i] = by_factor<Config>(a.at[i], b.at[i]);
    } else {
      y.at[i] = pointwise_of<kFunction>(a.at[i], b.at[i]);
    }
  }
  store_pack<kT>(args.y, at, y);
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(flashlab::device::kPointwiseBlock)
    flash_fwd_pointwise(const __grid_constant__ flashlab::device::PointwiseArguments args) {
  flashlab::device::pointwise<Config>(args);
}
