// RMSNorm and LayerNorm of rows, and their gradients.
//
//   RMSNorm     y = w x r                   r = 1 / sqrt(mean(x^2) + eps)
//   LayerNorm   y = w (x - m) r + b         r = 1 / sqrt(mean((x - m)^2) + eps)
//   backward    g = w dy,  n = (x - m) r    (m = 0 for RMSNorm)
//               dx (+)= r (g - mean(g) [LayerNorm only] - n mean(g n))
//               dw = sum over rows of dy n,  db = sum over rows of dy
//
// kRowThreads threads own a row and keep it in registers: it is read once. In backward a thread has
// the same columns in every row of its block, so that d weight grows in registers; each block
// leaves one row of partial sums, which columns.cu adds in order.
//
// Config: Element kElement; bool kLayer; int kWidth, kVector (columns per access: 16 bytes of them,
// or one where the width is no multiple of that), kRowThreads, kPacks (of a thread), kBlock
// (threads); bool kAccumulate (dx is added to).

#include "train/arguments.h"
#include "train/packs.h"

namespace flashlab::device {

/// A thread's share of a row: packs `thread`, `thread + kRowThreads`, ...
template <class Config>
struct RowShare {
  static constexpr int kVector = Config::kVector, kPacks = Config::kPacks;
  static constexpr int kRowThreads = Config::kRowThreads, kGroups = Config::kBlock / kRowThreads;
  using Raw = RawPack<Config::kElement, kVector>;

  int group = threadIdx.x / kRowThreads, thread = threadIdx.x % kRowThreads;

  __device__ int column(int pack) const { return (pack * kRowThreads + thread) * kVector; }
  __device__ bool inside(int pack) const {
    if constexpr (kPacks * kRowThreads * kVector == Config::kWidth) return true;
    return column(pack) < Config::kWidth;
  }
  __device__ Raw load(const void* data, Index row, int pack) const {
    return inside(pack)
               ? load_raw<Config::kElement, kVector>(data, row * Config::kWidth + column(pack))
               : Raw{};
  }
};

template <class Config>
__device__ inline void norm_forward(const NormArguments& args) {
  using Share = RowShare<Config>;
  constexpr int kPacks = Share::kPacks, kVector = Share::kVector;
  const Share share;
  const Index row = static_cast<Index>(blockIdx.x) * Share::kGroups + share.group;
  const bool there = row < args.rows;
  Pack<kVector> x[kPacks];
  float sum[1] = {0};
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    x[p] =
        there ? floats_of<Config::kElement, kVector>(share.load(args.x, row, p)) : Pack<kVector>{};
    for (int i = 0; i < kVector; ++i) sum[0] += Config::kLayer ? x[p].at[i] : 0.0f;
  }
  float mean = 0;
  if constexpr (Config::kLayer) {
    sum_over_row<Share::kRowThreads, Config::kBlock>(sum);
    mean = sum[0] / Config::kWidth;
  }
  float squares[1] = {0};
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (!share.inside(p)) continue;
    for (int i = 0; i < kVector; ++i) {
      const float centred = x[p].at[i] - mean;
      squares[0] += centred * centred;
    }
  }
  sum_over_row<Share::kRowThreads, Config::kBlock>(squares);
  const float rstd = 1.0f / sqrtf(squares[0] / Config::kWidth + args.epsilon);
  if (!there) return;
  if (share.thread == 0) {
    args.rstd[row] = rstd;
    if constexpr (Config::kLayer) args.mean[row] = mean;
  }
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (!share.inside(p)) continue;
    const int column = share.column(p);
    const auto w = load_pack<Config::kElement, kVector>(args.weight, column);
    Pack<kVector> b{}, y;
    if constexpr (Config::kLayer) b = load_pack<Config::kElement, kVector>(args.bias, column);
    for (int i = 0; i < kVector; ++i) {
      y.at[i] = w.at[i] * ((x[p].at[i] - mean) * rstd) + b.at[i];
    }
    store_pack<Config::kElement>(args.y, row * Config::kWidth + column, y);
  }
}

/// Adds the groups' sums of a block, group 0 first, and leaves the block's row of `partials`.
template <class Config>
__device__ inline void store_partials(const Pack<Config::kVector> (&sums)[Config::kPacks],
                                      float* partials) {
  using Share = RowShare<Config>;
  __shared__ float sSums[Share::kGroups][Config::kWidth];
  const Share share;
  __syncthreads();
#pragma unroll
  for (int p = 0; p < Share::kPacks; ++p) {
    if (!share.inside(p)) continue;
    for (int i = 0; i < Share::kVector; ++i) {
      sSums[share.group][share.column(p) + i] = sums[p].at[i];
    }
  }
  __syncthreads();
  for (int column = threadIdx.x; column < Config::kWidth; column += Config::kBlock) {
    float sum = 0;
    for (int group = 0; group < Share::kGroups; ++group) sum += sSums[group][column];
    partials[static_cast<Index>(blockIdx.x) * Config::kWidth + column] = sum;
  }
}

/// Backward fills a multiprocessor with two blocks: where a thread's share leaves it the registers.
template <class Config>
inline constexpr bool kTwoBlocks = Config::kBlock <= (Config::kPacks == 1 ? 384 : 256);

template <class Config>
__device__ inline void norm_backward(const NormArguments& args) {
  using Share = RowShare<Config>;
  constexpr int kPacks = Share::kPacks, kVector = Share::kVector;
  constexpr Element kT = Config::kElement;
  const Share share;
  Pack<kVector> dw[kPacks] = {}, db[Config::kLayer ? kPacks : 1] = {};
  const Index stride = static_cast<Index>(gridDim.x) * Share::kGroups;
  for (Index base = static_cast<Index>(blockIdx.x) * Share::kGroups; base < args.rows;
       base += stride) {
    const Index row = base + share.group;
    const bool there = row < args.rows;
    // All of the row's loads are under way at once; the weight comes from the first-level cache.
    typename Share::Raw x[kPacks], dy[kPacks], before[Config::kAccumulate ? kPacks : 1];
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      x[p] = there ? share.load(args.x, row, p) : typename Share::Raw{};
      dy[p] = there ? share.load(args.dy, row, p) : typename Share::Raw{};
      if constexpr (Config::kAccumulate) {
        before[p] = there ? share.load(args.dx, row, p) : typename Share::Raw{};
      }
    }
    const float rstd = there ? args.rstd[row] : 0.0f;
    const float mean = there && Config::kLayer ? args.mean[row] : 0.0f;
    float sums[2] = {0, 0};
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const auto xs = floats_of<kT, kVector>(x[p]), gs = floats_of<kT, kVector>(dy[p]);
      const auto ws = floats_of<kT, kVector>(share.load(args.weight, 0, p));
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const float n = (xs.at[i] - mean) * rstd, g = gs.at[i] * ws.at[i];
        sums[0] += g * n;
        if constexpr (Config::kLayer) sums[1] += g;
        dw[p].at[i] += gs.at[i] * n;
        if constexpr (Config::kLayer) db[p].at[i] += gs.at[i];
      }
    }
    sum_over_row<Share::kRowThreads, Config::kBlock>(sums);
    if (!there) continue;
    const float mean_gn = sums[0] / Config::kWidth, mean_g = sums[1] / Config::kWidth;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!share.inside(p)) continue;
      const Index at = row * Config::kWidth + share.column(p);
      const auto xs = floats_of<kT, kVector>(x[p]), gs = floats_of<kT, kVector>(dy[p]);
      const auto ws = floats_of<kT, kVector>(share.load(args.weight, 0, p));
      Pack<kVector> dx{};
      if constexpr (Config::kAccumulate) dx = floats_of<kT, kVector>(before[p]);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const float n = (xs.at[i] - mean) * rstd;
        dx.at[i] += rstd * (gs.at[i] * ws.at[i] - mean_g - n * mean_gn);
      }
      store_pack<kT>(args.dx, at, dx);
    }
  }
  store_partials<Config>(dw, args.partials);
  if constexpr (Config::kLayer) {
    store_partials<Config>(db, args.partials + static_cast<Index>(gridDim.x) * Config::kWidth);
  }
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(Config::kBlock)
    flash_fwd_norm(const __grid_constant__ flashlab::device::NormArguments args) {
  flashlab::device::norm_forward<Config>(args);
}

extern "C" __global__ void __launch_bounds__(Config::kBlock,
                                             flashlab::device::kTwoBlocks<Config> ? 2 : 1)
    flash_bwd_norm(const __grid_constant__ flashlab::device::NormArguments args) {
  flashlab::device::norm_backward<Config>(args);
}
