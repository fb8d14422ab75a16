// Sums over rows: the gradient of a bias, and the last step of the norms' weights.
//
//   out[c] (+)= sum over rows of x[r, c]
//
// A block owns a range of columns and every gridDim.y-th group of rows and leaves one row of
// partial sums. The second kernel adds these in order, so that every run gives the same bits, of
// many sums at once: blockIdx.y says which.
//
// Config: Element kElement (of x), kGradient (of out); int kWidth, kVector (of x); bool
// kAccumulate.

#include "train/arguments.h"
#include "train/column_sums.h"

namespace flashlab::device {

inline constexpr int kFinishSlices = 32;  // shares of the partial sums of a column

template <class Config>
__device__ inline void column_partials(const ColumnArguments& args) {
  constexpr int kVector = Config::kVector, kRows = kColumnRows;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int column = (blockIdx.x * 32 + lane) * kVector;
  Pack<kVector> sum{};
  if (column < Config::kWidth) {
#pragma unroll 4
    for (Index row = blockIdx.y * kRows + warp; row < args.rows; row += gridDim.y * kRows) {
      const auto x = load_pack<Config::kElement, kVector>(args.x, row * Config::kWidth + column);
      for (int i = 0; i < kVector; ++i) sum.at[i] += x.at[i];
    }
  }
  leave_column_sums<Config::kWidth, kVector>(sum, args.partials);
}

template <class Config>
__device__ inline void column_finish(const FinishArguments& args) {
  __shared__ float sSums[kFinishSlices][33];
  const FinishedSum& of = args.sums[blockIdx.y];
  const int lane = threadIdx.x % 32, slice = threadIdx.x / 32;
  if (static_cast<int>(blockIdx.x) * 32 >= of.width) return;
  const int column = blockIdx.x * 32 + lane;
  const int share = (of.blocks + kFinishSlices - 1) / kFinishSlices;
  const int first = slice * share, end = min(first + share, of.blocks);
  float sum = 0;
  if (column < of.width) {
#pragma unroll 8
    for (int block = first; block < end; ++block) {
      sum += of.partials[static_cast<Index>(block) * of.width + column];
    }
  }
  sSums[slice][lane] = sum;
  __syncthreads();
  if (slice != 0 || column >= of.width) return;
  Pack<1> total{};
  for (int other = 0; other < kFinishSlices; ++other) total.at[0] += sSums[other][lane];
  if constexpr (Config::kAccumulate) {
    total.at[0] += load_pack<Config::kGradient, 1>(of.out, column).at[0];
  }
  store_pack<Config::kGradient>(of.out, column, total);
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(flashlab::device::kColumnBlock)
    flash_bwd_column_partials(const __grid_constant__ flashlab::device::ColumnArguments args) {
  flashlab::device::column_partials<Config>(args);
}

extern "C" __global__ void __launch_bounds__(32 * flashlab::device::kFinishSlices)
    flash_bwd_column_finish(const __grid_constant__ flashlab::device::FinishArguments args) {
  flashlab::device::column_finish<Config>(args);
}
