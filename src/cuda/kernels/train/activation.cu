// What stands between the two products of an MLP, and its gradient.
//
//   SwiGLU   y = g s(g) u,  s(g) = 1 / (1 + exp(-g));   dg = dy u (s + g s (1 - s)),  du = dy g s
//   GEGLU    y = gelu(g) u;                                  dg = u dgelu(g, dy),  du = dy gelu(g)
//   GELU     y = x/2 (1 + t),  t = tanh(sqrt(2/pi) (x + 0.044715 x^3))
//            dx = dy ((1 + t)/2 + x/2 (1 - t^2) sqrt(2/pi) (1 + 3 0.044715 x^2))
//
// One pack of columns a thread; the loads of a warp are neighbours. The last rows come first: the
// product before wrote them last, so that some are in L2 still.
//
// Config: Element kElement; bool kGelu, kGeGlu; int kHidden, kVector.

#include "ptx/math.h"
#include "train/arguments.h"
#include "train/column_sums.h"
#include "train/packs.h"

namespace flashlab::device {

inline constexpr int kActivationBlock = 256;

__device__ inline float sigmoid(float x) {
  constexpr float kLog2E = 1.4426950408889634f;
  return ptx::reciprocal_fast(1.0f + ptx::exp2_fast(-kLog2E * x));
}

inline constexpr float kGeluScale = 0.7978845608028654f;  // sqrt(2 / pi)
inline constexpr float kGeluCube = 0.044715f;

__device__ inline float gelu_tanh(float x) {
  return 2.0f * sigmoid(2.0f * kGeluScale * (x + kGeluCube * x * x * x)) - 1.0f;
}

__device__ inline float gelu(float x) {
  return 0.5f * x * (1.0f + gelu_tanh(x));
}

__device__ inline float gelu_gradient(float x, float dy) {
  constexpr float kHighest = 3.402823466e38f;
  const float t = gelu_tanh(x);
  // 1 - t^2 is 0 long before x^2 overflows: their product must not be 0 times infinity.
  const float inner = fminf(kGeluScale * (1.0f + 3.0f * kGeluCube * x * x), kHighest);
  return dy * 0.5f * (1.0f + t + x * (1.0f - t * t) * inner);
}

/// The pack of this thread: its row and first column; false past the end.
template <class Config>
__device__ inline bool find_pack(const ActivationArguments& args, Index& row, int& column) {
  constexpr int kRowPacks = Config::kHidden / Config::kVector;
  const Index block = gridDim.x - 1 - blockIdx.x;
  const Index pack = block * kActivationBlock + threadIdx.x;
  row = pack / kRowPacks;
  column = static_cast<int>(pack % kRowPacks) * Config::kVector;
  return row < args.rows;
}

template <class Config>
__device__ inline void activation_forward(const ActivationArguments& args) {
  constexpr int kVector = Config::kVector, kHidden = Config::kHidden;
  Index row;
  int column;
  if (!find_pack<Config>(args, row, column)) return;
  Pack<kVector> y;
  if constexpr (Config::kGelu) {
    const auto x = load_pack<Config::kElement, kVector>(args.x, row * kHidden + column);
    for (int i = 0; i < kVector; ++i) y.at[i] = gelu(x.at[i]);
  } else {
    const Index at = row * 2 * kHidden + column;
    const auto g = load_pack<Config::kElement, kVector>(args.x, at);
    const auto u = load_pack<Config::kElement, kVector>(args.x, at + kHidden);
    for (int i = 0; i < kVector; ++i) {
      const float gate = Config::kGeGlu ? gelu(g.at[i]) : g.at[i] * sigmoid(g.at[i]);
      y.at[i] = gate * u.at[i];
    }
  }
  store_pack<Config::kElement>(args.out, row * kHidden + column, y);
}

template <class Config>
__device__ inline void activation_backward(const ActivationArguments& args) {
  constexpr int kVector = Config::kVector, kHidden = Config::kHidden;
  Index row;
  int column;
  if (!find_pack<Config>(args, row, column)) return;
  const auto dy = load_pack<Config::kElement, kVector>(args.dy, row * kHidden + column);
  if constexpr (Config::kGelu) {
    const auto x = load_pack<Config::kElement, kVector>(args.x, row * kHidden + column);
    Pack<kVector> dx;
    for (int i = 0; i < kVector; ++i) dx.at[i] = gelu_gradient(x.at[i], dy.at[i]);
    store_pack<Config::kElement>(args.out, row * kHidden + column, dx);
  } else {
    const Index at = row * 2 * kHidden + column;
    const auto g = load_pack<Config::kElement, kVector>(args.x, at);
    const auto u = load_pack<Config::kElement, kVector>(args.x, at + kHidden);
    Pack<kVector> dg, du;
    for (int i = 0; i < kVector; ++i) {
      if constexpr (Config::kGeGlu) {
        dg.at[i] = gelu_gradient(g.at[i], dy.at[i] * u.at[i]);
        du.at[i] = dy.at[i] * gelu(g.at[i]);
        continue;
      }
      const float s = sigmoid(g.at[i]), silu = g.at[i] * s;
      dg.at[i] = dy.at[i] * u.at[i] * (s + silu * (1.0f - s));
      du.at[i] = dy.at[i] * silu;
    }
    store_pack<Config::kElement>(args.out, at, dg);
    store_pack<Config::kElement>(args.out, at + kHidden, du);
  }
}

/// GELU's gradient and the sums over its rows, the gradient of the bias before: a block has a range
/// of columns and every gridDim.y-th group of rows. Two rows of a warp are on their way at a time.
template <class Config>
__device__ inline void gelu_backward_sums(const ActivationArguments& args) {
  constexpr int kVector = Config::kVector, kHidden = Config::kHidden, kAhead = 2;
  constexpr Element kT = Config::kElement;
  const int column = (static_cast<int>(blockIdx.x) * 32 + threadIdx.x % 32) * kVector;
  const Index stride = static_cast<Index>(gridDim.y) * kColumnRows;
  Pack<kVector> sum{};
  Index row = column < kHidden
                  ? args.rows - 1 - (blockIdx.y * kColumnRows + static_cast<int>(threadIdx.x / 32))
                  : -1;
  while (row >= 0) {
    RawPack<kT, kVector> x[kAhead], dy[kAhead];
#pragma unroll
    for (int r = 0; r < kAhead; ++r) {
      const Index at = row - r * stride;
      if (at < 0) continue;
      x[r] = load_raw<kT, kVector>(args.x, at * kHidden + column);
      dy[r] = load_raw<kT, kVector>(args.dy, at * kHidden + column);
    }
#pragma unroll
    for (int r = 0; r < kAhead; ++r, row -= stride) {
      if (row < 0) continue;
      const auto xs = floats_of<kT, kVector>(x[r]), dys = floats_of<kT, kVector>(dy[r]);
      Pack<kVector> dx;
      for (int i = 0; i < kVector; ++i) {
        dx.at[i] = gelu_gradient(xs.at[i], dys.at[i]);
        sum.at[i] += dx.at[i];
      }
      store_pack<kT>(args.out, row * kHidden + column, dx);
    }
  }
  leave_column_sums<kHidden, kVector>(sum, args.partials);
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(flashlab::device::kActivationBlock)
    flash_fwd_activation(const __grid_constant__ flashlab::device::ActivationArguments args) {
  flashlab::device::activation_forward<Config>(args);
}

extern "C" __global__ void __launch_bounds__(flashlab::device::kActivationBlock)
    flash_bwd_activation(const __grid_constant__ flashlab::device::ActivationArguments args) {
  flashlab::device::activation_backward<Config>(args);
}

extern "C" __global__ void __launch_bounds__(flashlab::device::kColumnBlock)
    flash_bwd_gelu_sums(const __grid_constant__ flashlab::device::ActivationArguments args) {
  flashlab::device::gelu_backward_sums<Config>(args);
}
