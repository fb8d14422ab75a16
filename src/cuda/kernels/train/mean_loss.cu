// The mean of a step's losses, summed in fp64 by one block in an order that depends on their number
// alone. Of several shares each has a sum of its own, and these are added as a binary tree; ranks
// exchange the sum before it becomes the mean.

#include "train/arguments.h"

namespace flashlab::device {

inline constexpr int kMeanBlock = 1024;

// Thread 0 gets it.
__device__ inline double sum_of_losses(const float* losses, long long rows) {
  __shared__ double sSums[kMeanBlock];
  double sum = 0;
  for (long long row = threadIdx.x; row < rows; row += kMeanBlock) sum += losses[row];
  sSums[threadIdx.x] = sum;
  for (int half = kMeanBlock / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sSums[threadIdx.x] += sSums[threadIdx.x + half];
  }
  return sSums[0];
}

__device__ inline void mean_loss(const MeanLossArguments& args) {
  const double sum = sum_of_losses(args.losses, args.rows);
  if (threadIdx.x == 0) args.loss[0] = static_cast<float>(sum / args.rows);
}

// Shares are counted in binary: a sum of 2^i of them waits at place i for its neighbour.
__device__ inline void loss_sum(const MeanLossArguments& args) {
  __shared__ double sWaiting[32];
  int waiting = 0;
  for (int share = 0; share < args.shares; ++share) {
    const double sum = sum_of_losses(args.losses + share * args.rows, args.rows);
    __syncthreads();
    if (threadIdx.x != 0) continue;
    sWaiting[waiting++] = sum;
    const bool last = share + 1 == args.shares;
    for (int done = share + 1; waiting > 1 && (last || done % 2 == 0); done /= 2) {
      --waiting;
      sWaiting[waiting - 1] += sWaiting[waiting];
    }
  }
  if (threadIdx.x == 0) args.sum[0] = sWaiting[0];
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(flashlab::device::kMeanBlock)
    flash_fwd_mean_loss(const __grid_constant__ flashlab::device::MeanLossArguments args) {
  flashlab::device::mean_loss(args);
}

extern "C" __global__ void __launch_bounds__(flashlab::device::kMeanBlock)
    flash_fwd_loss_sum(const __grid_constant__ flashlab::device::MeanLossArguments args) {
  flashlab::device::loss_sum(args);
}

extern "C" __global__ void __launch_bounds__(1)
    flash_fwd_loss_of_sum(const __grid_constant__ flashlab::device::MeanLossArguments args) {
  args.loss[0] = static_cast<float>(args.sum[0] / args.rows);
}
