// RMSNorm and LayerNorm of rows, and their gradients.
//
//   RMSNorm     y = w x r                   r = 1 / sqrt(mean(x^2) + eps); or w + 1 in w's place
//   LayerNorm   y = w (x - m) r + b         r = 1 / sqrt(mean((x - m)^2) + eps)
//   backward    g = w dy,  n = (x - m) r    (m = 0 for RMSNorm)
//               dx (+)= r (g - mean(g) [LayerNorm only] - n mean(g n))
//               dw = sum over rows of dy n,  db = sum over rows of dy
//
// kRowThreads threads own a row and keep it in registers: it is read once. They wait for each other
// only, and while they have a row the next ones are on their way. Forward takes the last rows
// first: the product before wrote them last, so that they are in L2 still. In backward a thread has
// the same columns in every row, so that d weight grows in registers; so do the sums over rows of
// what dx has become, the gradient of the bias before the norm. Each block leaves one row of
// partial sums of each, which columns.cu adds in order.
//
// Config: Element kElement; bool kLayer, kOnePlus (the weight is w + 1); int kWidth, kVector
// (columns per access: 16 bytes of them, or one where the width is no multiple of that),
// kRowThreads, kPacks (of a thread), kBlock (threads); of forward kBlocks (of a multiprocessor),
// kAhead (rows); of backward bool kAccumulate (dx is added to), kSums (the columns of dx are added
// up, too).

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
  /// Zeros of a row below the first one.
  __device__ Raw load_from(const void* data, Index row, int pack) const {
    return row >= 0 ? load(data, row, pack) : Raw{};
  }
};

/// What a pack of columns is multiplied by.
template <class Config>
__device__ inline Pack<Config::kVector> factors_of(const typename RowShare<Config>::Raw& weight) {
  auto out = floats_of<Config::kElement, Config::kVector>(weight);
  if constexpr (Config::kOnePlus) {
    for (int i = 0; i < Config::kVector; ++i) out.at[i] += 1.0f;
  }
  return out;
}

template <class Config>
__device__ inline void norm_forward(const NormArguments& args) {
  using Share = RowShare<Config>;
  constexpr int kPacks = Share::kPacks, kVector = Share::kVector, kAhead = Config::kAhead;
  constexpr Element kT = Config::kElement;
  constexpr float kOneOverWidth = 1.0f / Config::kWidth;
  const Share share;
  const Index stride = static_cast<Index>(gridDim.x) * Share::kGroups;
  Index row = args.rows - 1 - static_cast<Index>(blockIdx.x) * Share::kGroups - share.group;
  // The weights are under way with the row: behind the sums they would be waited for again.
  typename Share::Raw weight[kPacks], bias[Config::kLayer ? kPacks : 1];
  typename Share::Raw x[kPacks], next[kAhead][kPacks];
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) next[i][p] = share.load_from(args.x, row - i * stride, p);
    weight[p] = share.load(args.weight, 0, p);
    if constexpr (Config::kLayer) bias[p] = share.load(args.bias, 0, p);
  }
  for (int turn = 0; row >= 0; row -= stride, turn ^= 1) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      x[p] = next[0][p];
#pragma unroll
      for (int i = 1; i < kAhead; ++i) next[i - 1][p] = next[i][p];
      next[kAhead - 1][p] = share.load_from(args.x, row - kAhead * stride, p);
    }
    float mean = 0;
    if constexpr (Config::kLayer) {
      float sum[1] = {0};
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        const auto xs = floats_of<kT, kVector>(x[p]);
        float of_pack = 0;
        for (int i = 0; i < kVector; ++i) of_pack += xs.at[i];
        sum[0] += of_pack;
      }
      sum_over_row<Share::kRowThreads, Config::kBlock>(sum, 0);
      mean = sum[0] * kOneOverWidth;
    }
    float squares[1] = {0};
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!share.inside(p)) continue;
      const auto xs = floats_of<kT, kVector>(x[p]);
      float of_pack = 0;
      for (int i = 0; i < kVector; ++i) {
        const float centred = xs.at[i] - mean;
        of_pack += centred * centred;
      }
      squares[0] += of_pack;
    }
    sum_over_row<Share::kRowThreads, Config::kBlock>(squares, Config::kLayer ? 1 : turn);
    const float rstd = rsqrtf(squares[0] * kOneOverWidth + args.epsilon);
    if (share.thread == 0) {
      args.rstd[row] = rstd;
      if constexpr (Config::kLayer) args.mean[row] = mean;
    }
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!share.inside(p)) continue;
      const auto xs = floats_of<kT, kVector>(x[p]), w = factors_of<Config>(weight[p]);
      Pack<kVector> b{}, y;
      if constexpr (Config::kLayer) b = floats_of<kT, kVector>(bias[p]);
      for (int i = 0; i < kVector; ++i) {
        y.at[i] = w.at[i] * ((xs.at[i] - mean) * rstd) + b.at[i];
      }
      store_pack<kT>(args.y, row * Config::kWidth + share.column(p), y);
    }
  }
}

/// Adds the groups' sums of a block, group 0 first, and leaves the block's row of `partials`.
template <class Config>
__device__ inline void store_partials(const Pack<Config::kVector> (&sums)[Config::kPacks],
                                      float* partials) {
  using Share = RowShare<Config>;
  const Share share;
  partials += static_cast<Index>(blockIdx.x) * Config::kWidth;
  if constexpr (Share::kGroups == 1) {
    for (int p = 0; p < Share::kPacks; ++p) {
      if (share.inside(p)) store_pack<Element::kFp32>(partials, share.column(p), sums[p]);
    }
    return;
  }
  __shared__ float sSums[Share::kGroups][Share::kGroups == 1 ? 1 : Config::kWidth];
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
    partials[column] = sum;
  }
}

/// What backward reads of a row.
template <class Config>
struct BackwardRow {
  using Share = RowShare<Config>;
  typename Share::Raw x[Config::kPacks], dy[Config::kPacks];
  typename Share::Raw before[Config::kAccumulate ? Config::kPacks : 1];
  float rstd, mean;

  /// Zeros past the last row.
  __device__ void load(const NormArguments& args, const Share& share, Index row) {
    const bool there = row < args.rows;
#pragma unroll
    for (int p = 0; p < Config::kPacks; ++p) {
      x[p] = there ? share.load(args.x, row, p) : typename Share::Raw{};
      dy[p] = there ? share.load(args.dy, row, p) : typename Share::Raw{};
      if constexpr (Config::kAccumulate) {
        before[p] = there ? share.load(args.dx, row, p) : typename Share::Raw{};
      }
    }
    rstd = there ? args.rstd[row] : 0.0f;
    mean = there && Config::kLayer ? args.mean[row] : 0.0f;
  }
};

/// What a thread adds up over its rows: of d weight, d bias, and of what is written.
template <class Config>
struct ColumnSums {
  static constexpr int kPacks = Config::kPacks;
  Pack<Config::kVector> dw[kPacks] = {}, db[Config::kLayer ? kPacks : 1] = {};
  Pack<Config::kVector> dx[Config::kSums ? kPacks : 1] = {};

  __device__ void store(float* partials) const {
    const Index vector = static_cast<Index>(gridDim.x) * Config::kWidth;
    store_partials<Config>(dw, partials);
    if constexpr (Config::kLayer) store_partials<Config>(db, partials += vector);
    if constexpr (Config::kSums) store_partials<Config>(dx, partials += vector);
  }
};

/// One row of backward; `turn` as in sum_over_row.
template <class Config>
__device__ inline void backward_row(const NormArguments& args, const RowShare<Config>& share,
                                    const BackwardRow<Config>& now,
                                    const typename RowShare<Config>::Raw (&weight)[Config::kPacks],
                                    Index row, int turn, ColumnSums<Config>& columns) {
  constexpr int kPacks = Config::kPacks, kVector = Config::kVector;
  constexpr Element kT = Config::kElement;
  float sums[Config::kLayer ? 2 : 1] = {};
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const auto xs = floats_of<kT, kVector>(now.x[p]), gs = floats_of<kT, kVector>(now.dy[p]);
    const auto ws = factors_of<Config>(weight[p]);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const float n = (xs.at[i] - now.mean) * now.rstd, g = gs.at[i] * ws.at[i];
      sums[0] += g * n;
      if constexpr (Config::kLayer) sums[1] += g;
      columns.dw[p].at[i] += gs.at[i] * n;
      if constexpr (Config::kLayer) columns.db[p].at[i] += gs.at[i];
    }
  }
  sum_over_row<Config::kRowThreads, Config::kBlock>(sums, turn);
  const float mean_gn = sums[0] / Config::kWidth;
  float mean_g = 0;
  if constexpr (Config::kLayer) mean_g = sums[1] / Config::kWidth;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (!share.inside(p)) continue;
    const auto xs = floats_of<kT, kVector>(now.x[p]), gs = floats_of<kT, kVector>(now.dy[p]);
    const auto ws = factors_of<Config>(weight[p]);
    Pack<kVector> dx{};
    if constexpr (Config::kAccumulate) dx = floats_of<kT, kVector>(now.before[p]);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const float n = (xs.at[i] - now.mean) * now.rstd;
      dx.at[i] += now.rstd * (gs.at[i] * ws.at[i] - mean_g - n * mean_gn);
      if constexpr (Config::kSums) columns.dx[p].at[i] += dx.at[i];
    }
    store_pack<kT>(args.dx, row * Config::kWidth + share.column(p), dx);
  }
}

template <class Config>
__device__ inline void norm_backward(const NormArguments& args) {
  // The next row is read while the sums of this one meet, where a thread's share is small.
  constexpr bool kAhead = Config::kPacks == 1;
  const RowShare<Config> share;
  ColumnSums<Config> columns;
  typename RowShare<Config>::Raw weight[Config::kPacks];
#pragma unroll
  for (int p = 0; p < Config::kPacks; ++p) weight[p] = share.load(args.weight, 0, p);
  const Index stride = static_cast<Index>(gridDim.x) * share.kGroups;
  Index row = static_cast<Index>(blockIdx.x) * share.kGroups + share.group;
  BackwardRow<Config> now, next;
  now.load(args, share, row);
  for (int turn = 0; row < args.rows; row += stride, turn ^= 1) {
    if constexpr (kAhead) next.load(args, share, row + stride);
    backward_row<Config>(args, share, now, weight, row, turn, columns);
    if constexpr (kAhead) {
      now = next;
    } else {
      now.load(args, share, row + stride);
    }
  }
  columns.store(args.partials);
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(Config::kBlock, Config::kBlocks)
    flash_fwd_norm(const __grid_constant__ flashlab::device::NormArguments args) {
  flashlab::device::norm_forward<Config>(args);
}

extern "C" __global__ void __launch_bounds__(Config::kBlock)
    flash_bwd_norm(const __grid_constant__ flashlab::device::NormArguments args) {
  flashlab::device::norm_backward<Config>(args);
}
