// FlashAttention-2's backward, what is done per row before and after the main kernel.
//
//   delta    delta = rowsum(dO * O) - dLSE     [B, Hq, Sq] fp32, one warp per row
//   round    dQ = scale dQ_fp32                [B, Sq, Hq, D], after all blocks have added
//
// Why delta: the softmax's gradient is dS[i, j] = P[i, j] (dP[i, j] - sum_k P[i, k] dP[i, k]). The
// sum runs over a row of a matrix that is never stored; but it equals dO . O, Dv products.

#include "ladder/elements.h"
#include "ladder/pairs.h"

namespace flashlab::device {

constexpr int kRowsPerBlock = 8;  // one warp each

}  // namespace flashlab::device

using namespace flashlab::device;

extern "C" __global__ void __launch_bounds__(32 * kRowsPerBlock)
    flash_bwd_delta(const __grid_constant__ BackwardArguments args) {
  const int lane = threadIdx.x % 32, rows = args.shape.seqlen_q;
  const BlockTile at = place_of(blockIdx.x, div_up(rows, kRowsPerBlock), args.shape.heads_q);
  const int i = at.tile * kRowsPerBlock + threadIdx.x / 32;
  if (i >= rows) return;
  const Int64 o = row_index(args.o, at.batch, at.head, i);
  const Int64 d_o = row_index(args.d_o, at.batch, at.head, i);
  float delta = 0;
  for (int d = lane; d < Config::kHeadDimV; d += 32) {
    delta += load_element<Config::kO>(args.o.data, o + d) *
             load_element<Config::kGradO>(args.d_o.data, d_o + d);
  }
  delta = warp_sum(delta);
  if (lane != 0) return;
  float lse_gradient = 0;
  if constexpr (Config::kLseGradient) {
    lse_gradient =
        static_cast<const float*>(args.d_lse.data)[row_index(args.d_lse, at.batch, at.head, i)];
  }
  // An empty row gives nothing to any gradient, whatever its dO and dLSE hold.
  const bool empty = HeadLse(args, at).empty(i);
  static_cast<float*>(args.regions[0])[dense_row(args.shape, at, i)] =
      empty ? 0.0f : mutation::delta<Config>(delta, lse_gradient);
}

extern "C" __global__ void __launch_bounds__(32 * kRowsPerBlock)
    flash_bwd_round_dq(const __grid_constant__ BackwardArguments args) {
  const int lane = threadIdx.x % 32, rows = args.shape.seqlen_q;
  const BlockTile at = place_of(blockIdx.x, div_up(rows, kRowsPerBlock), args.shape.heads_q);
  const int i = at.tile * kRowsPerBlock + threadIdx.x / 32;
  if (i >= rows) return;
  const Int64 dq = row_index(args.dq, at.batch, at.head, i);
  const float* sums =
      static_cast<const float*>(args.regions[1]) + dense_row(args.shape, at, i) * Config::kHeadDim;
  const bool empty = HeadLse(args, at).empty(i);
  const float scale = mutation::grad_q_scale<Config>(args.shape.scale);
  for (int d = lane; d < Config::kHeadDim; d += 32) {
    store_gradient<Config::kGradQ, Config::kAccumulate>(args.dq.data, dq + d,
                                                        empty ? 0.0f : scale * sums[d]);
  }
}
