// P = softmax(scale S + mask) of scores that a GEMM has left in memory, with the LSE.
//
// One block per row, three walks over it: maximum, sum, probabilities. A row without a visible key
// gets zeros and LSE = -inf; one that sees NaN or +inf becomes NaN.

#include "peers/scores.h"

extern "C" __global__ void __launch_bounds__(flashlab::device::kScoreThreads)
    flash_fwd_cublas_softmax(const __grid_constant__ flashlab::device::ComposedSoftmax args) {
  using namespace flashlab::device;
  __shared__ float shared[kScoreWarps];
  const Shape& shape = args.shape;
  const int i = blockIdx.x, h = blockIdx.y;
  const Int64 offset = (static_cast<Int64>(h) * shape.seqlen_q + i) * shape.seqlen_k;
  const ScoreRow row = score_row(args.scores + offset, args.mask, shape, args.batch, h, i);

  float largest = -infinity();
  bool nan = false;
  for (int j = threadIdx.x; j < shape.seqlen_k; j += kScoreThreads) {
    const float score = row.at(j);
    largest = fmaxf(largest, score);
    nan |= score != score;
  }
  largest = reduce_block<true>(largest, shared);
  nan = __syncthreads_or(nan) != 0;
  const bool empty = largest == -infinity() && !nan;

  float sum = 0;
  if (!empty) {
    for (int j = threadIdx.x; j < shape.seqlen_k; j += kScoreThreads) {
      sum += expf(row.at(j) - largest);
    }
  }
  sum = reduce_block<false>(sum, shared);
  const float inverse = empty ? 0.0f : 1.0f / sum;
  for (int j = threadIdx.x; j < shape.seqlen_k; j += kScoreThreads) {
    const float p = empty ? 0.0f : expf(row.at(j) - largest) * inverse;
    store_element<Config::kElement>(args.probabilities, offset + j, p);
  }
  if (threadIdx.x == 0 && args.empty != nullptr) {
    args.empty[static_cast<Int64>(h) * shape.seqlen_q + i] = empty;
  }
  if (threadIdx.x == 0 && args.lse.data != nullptr) {
    const Int64 at =
        args.batch * args.lse.batch_stride + h * args.lse.head_stride + i * args.lse.row_stride;
    static_cast<float*>(args.lse.data)[at] = empty ? -infinity() : largest + logf(sum);
  }
}
