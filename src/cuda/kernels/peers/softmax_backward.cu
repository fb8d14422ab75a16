// P = exp(scale S + mask - LSE) and dS = P * (dP - delta), delta = rowsum(dO * O) - dLSE, of
// scores and dP that GEMMs have left in memory. The GEMMs of dQ and dK multiply by scale.
//
// One block per row. Rows with LSE = -inf give zeros, and so does every hidden key.

#include "peers/scores.h"

namespace flashlab::device {

__device__ inline Int64 row_offset(const Rows& rows, int b, int h, int i) {
  return b * rows.batch_stride + h * rows.head_stride + i * rows.row_stride;
}

__device__ inline Int64 scalar_offset(const RowScalars& scalars, int b, int h, int i) {
  return b * scalars.batch_stride + h * scalars.head_stride + i * scalars.row_stride;
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(flashlab::device::kScoreThreads)
    flash_bwd_cublas_scores(const __grid_constant__ flashlab::device::ComposedGradient args) {
  using namespace flashlab::device;
  __shared__ float shared[kScoreWarps];
  const Shape& shape = args.shape;
  const int i = blockIdx.x, h = blockIdx.y, b = args.batch;
  const Int64 offset = (static_cast<Int64>(h) * shape.seqlen_q + i) * shape.seqlen_k;
  const ScoreRow row = score_row(args.scores + offset, args.mask, shape, b, h, i);
  const float lse = static_cast<const float*>(args.lse.data)[scalar_offset(args.lse, b, h, i)];

  float delta = 0;
  const Int64 at_o = row_offset(args.o, b, h, i), at_d_o = row_offset(args.d_o, b, h, i);
  for (int d = threadIdx.x; d < shape.head_dim_v; d += kScoreThreads) {
    delta += load_element<Config::kO>(args.o.data, at_o + d) *
             load_element<Config::kGradO>(args.d_o.data, at_d_o + d);
  }
  delta = reduce_block<false>(delta, shared);
  if (args.d_lse.data != nullptr) {
    delta -= static_cast<const float*>(args.d_lse.data)[scalar_offset(args.d_lse, b, h, i)];
  }

  const bool empty = lse == -infinity();
  if (threadIdx.x == 0 && args.empty != nullptr) {
    args.empty[static_cast<Int64>(h) * shape.seqlen_q + i] = empty;
  }
  for (int j = threadIdx.x; j < shape.seqlen_k; j += kScoreThreads) {
    const bool hidden = empty || !row.visible(j);
    const float p = hidden ? 0.0f : expf(row.at(j) - lse);
    const float ds = hidden ? 0.0f : p * (args.d_probabilities[offset + j] - delta);
    store_element<Config::kElement>(args.probabilities, offset + j, p);
    store_element<Config::kElement>(args.d_scores, offset + j, ds);
  }
}
