// The mean of a step's losses, summed in fp64 by one block in an order that depends on their number
// alone.

#include "train/arguments.h"

namespace flashlab::device {

inline constexpr int kMeanBlock = 1024;

__device__ inline void mean_loss(const MeanLossArguments& args) {
  __shared__ double sSums[kMeanBlock];
  double sum = 0;
  for (long long row = threadIdx.x; row < args.rows; row += kMeanBlock) sum += args.losses[row];
  sSums[threadIdx.x] = sum;
  for (int half = kMeanBlock / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sSums[threadIdx.x] += sSums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) args.loss[0] = static_cast<float>(sSums[0] / args.rows);
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(flashlab::device::kMeanBlock)
    flash_fwd_mean_loss(const __grid_constant__ flashlab::device::MeanLossArguments args) {
  flashlab::device::mean_loss(args);
}
