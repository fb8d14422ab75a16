// Naive attention, backward: the forward's steps mirrored, last step first, one matrix in memory.
//
//   probabilities   P  = exp(scale Q K^T + mask - LSE)      [B, Hq, Sq, Sk] in q's type
//   dv              dV = P^T dO
//   ds              dS = P * (dO V^T - delta)               over P, which nobody needs any more
//   dq              dQ = scale dS K
//   dk              dK = scale dS^T Q
//
//        keys ->                  keys ->
//      +---------+              +---------+      dQ: walk along a row of dS, K beside it
//   q  |    P    |  dV   then   |   dS    |  ->
//      +---------+   ^          +---------+      dK: walk down a column of dS, Q beside it
//                  dO V^T - delta
//
// delta = rowsum(dO * O) - dLSE: fa2_backward_rows.cu. dK and dV sum a group's heads, in order.

#include "ladder/elements.h"
#include "ladder/pairs.h"
#include "ladder/sliced_product.h"

namespace flashlab::device {

constexpr Element kT = Config::kElement;
constexpr int kD = Config::kHeadDim, kDv = Config::kHeadDimV;

/// A head's P or dS as a factor.
__device__ inline DenseMatrix<kT> score_matrix(const BackwardArguments& args, BlockTile at) {
  const Shape& shape = args.shape;
  const Int64 first = dense_row(shape, at, 0) * shape.seqlen_k;
  return {args.regions[1], first, shape.seqlen_k, shape.seqlen_q, shape.seqlen_k};
}

/// P, or dS with `kGradient`: 64 x 64 elements per block.
template <bool kGradient, class Left, class Right>
__device__ inline void write_matrix(const BackwardArguments& args, BlockTile at, int query0,
                                    int key0, int depth, const Left& left, const Right& right) {
  const DenseMatrix<kT> matrix = score_matrix(args, at);
  const HeadLse lse(args, at);
  const float* delta = static_cast<const float*>(args.regions[0]) + dense_row(args.shape, at, 0);
  float sums[kShare][kShare] = {};
  rows_by_rows(
      sums, depth, [&](int r, int d) { return left(query0 + r, d); },
      [&](int r, int d) { return right(key0 + r, d); });
  for (int m = 0; m < kShare; ++m) {
    const int i = query0 + thread_y() + kSide * m;
    if (i >= matrix.rows) return;
    for (int n = 0; n < kShare; ++n) {
      const int j = key0 + thread_x() + kSide * n;
      if (j >= matrix.columns) continue;
      float value;
      if constexpr (kGradient) {
        // A hidden pair has P = 0, and 0 times a delta that is not finite would be NaN.
        const bool counts = is_visible<Config>(args, at, i, j) && !lse.empty(i);
        value = counts ? matrix(i, j) * (sums[m][n] - delta[i]) : 0.0f;
      } else {
        value = probability_of<Config>(sums[m][n], args, at, i, j, lse(i));
      }
      store_element<kT>(matrix.data, matrix.index(i, j), value);
    }
  }
}

/// dV = P^T dO, or dK = scale dS^T Q: 64 keys x 64 features per block, over the group's heads.
template <Element kFactor, Element kGradient, int kDim>
__device__ inline void write_key_gradient(const BackwardArguments& args, const Rows& factor,
                                          const Rows& gradient, float scale) {
  constexpr int kTilesD = (kDim + kTile - 1) / kTile;
  const Shape& shape = args.shape;
  BlockTile at = place_of(blockIdx.x, div_up(shape.seqlen_k, kTile) * kTilesD, shape.heads_k);
  const int key0 = at.tile / kTilesD * kTile, d0 = at.tile % kTilesD * kTile, head_k = at.head;
  float sums[kShare][kShare] = {};
  for (at.head = head_k * shape.group; at.head < (head_k + 1) * shape.group; ++at.head) {
    const DenseMatrix<kT> matrix = score_matrix(args, at);
    const HeadLse lse(args, at);
    const HeadMatrix<kFactor, kDim> rows(factor, at.batch, at.head, shape.seqlen_q);
    columns_by_columns(
        sums, shape.seqlen_q, [&](int i, int r) { return matrix(i, key0 + r); },
        [&](int i, int d) { return lse.empty(i) ? 0.0f : rows(i, d0 + d); });
  }
  for (int m = 0; m < kShare; ++m) {
    const int j = key0 + neighbour<kShare>(thread_y(), m);
    for (int n = 0; n < kShare; ++n) {
      const int d = d0 + neighbour<kShare>(thread_x(), n);
      if (j >= shape.seqlen_k || d >= kDim) continue;
      store_gradient<kGradient, Config::kAccumulate>(
          gradient.data, row_index(gradient, at.batch, head_k, j) + d, scale * sums[m][n]);
    }
  }
}

}  // namespace flashlab::device

using namespace flashlab::device;

extern "C" __global__ void __launch_bounds__(kBlockThreads)
    flash_bwd_naive_probabilities(const __grid_constant__ BackwardArguments args) {
  const Shape& shape = args.shape;
  const int tiles_k = div_up(shape.seqlen_k, kTile);
  const BlockTile at = place_of(blockIdx.x, div_up(shape.seqlen_q, kTile) * tiles_k, shape.heads_q);
  const HeadMatrix<kT, kD> q(args.q, at.batch, at.head, shape.seqlen_q);
  const HeadMatrix<kT, kD> k(args.k, at.batch, at.head / shape.group, shape.seqlen_k);
  write_matrix<false>(args, at, at.tile / tiles_k * kTile, at.tile % tiles_k * kTile, kD, q, k);
}

extern "C" __global__ void __launch_bounds__(kBlockThreads)
    flash_bwd_naive_dv(const __grid_constant__ BackwardArguments args) {
  write_key_gradient<Config::kGradO, Config::kGradV, kDv>(args, args.d_o, args.dv, 1.0f);
}

extern "C" __global__ void __launch_bounds__(kBlockThreads)
    flash_bwd_naive_ds(const __grid_constant__ BackwardArguments args) {
  const Shape& shape = args.shape;
  const int tiles_k = div_up(shape.seqlen_k, kTile);
  const BlockTile at = place_of(blockIdx.x, div_up(shape.seqlen_q, kTile) * tiles_k, shape.heads_q);
  const HeadMatrix<Config::kGradO, kDv> d_o(args.d_o, at.batch, at.head, shape.seqlen_q);
  const HeadMatrix<kT, kDv> v(args.v, at.batch, at.head / shape.group, shape.seqlen_k);
  write_matrix<true>(args, at, at.tile / tiles_k * kTile, at.tile % tiles_k * kTile, kDv, d_o, v);
}

extern "C" __global__ void __launch_bounds__(kBlockThreads)
    flash_bwd_naive_dq(const __grid_constant__ BackwardArguments args) {
  constexpr int kTilesD = (kD + kTile - 1) / kTile;
  const Shape& shape = args.shape;
  const BlockTile at = place_of(blockIdx.x, div_up(shape.seqlen_q, kTile) * kTilesD, shape.heads_q);
  const int query0 = at.tile / kTilesD * kTile, d0 = at.tile % kTilesD * kTile;
  const HeadMatrix<kT, kD> k(args.k, at.batch, at.head / shape.group, shape.seqlen_k);
  const DenseMatrix<kT> matrix = score_matrix(args, at);
  const HeadLse lse(args, at);

  float sums[kShare][kShare] = {};
  rows_by_columns(
      sums, shape.seqlen_k, [&](int r, int j) { return matrix(query0 + r, j); },
      [&](int j, int d) { return k(j, d0 + d); });
  for (int m = 0; m < kShare; ++m) {
    const int i = query0 + thread_y() + kSide * m;
    if (i >= shape.seqlen_q) return;
    for (int n = 0; n < kShare; ++n) {
      const int d = d0 + neighbour<kShare>(thread_x(), n);
      if (d >= kD) continue;
      store_gradient<Config::kGradQ, Config::kAccumulate>(
          args.dq.data, row_index(args.dq, at.batch, at.head, i) + d,
          lse.empty(i) ? 0.0f : mutation::grad_q_scale<Config>(shape.scale) * sums[m][n]);
    }
  }
}

extern "C" __global__ void __launch_bounds__(kBlockThreads)
    flash_bwd_naive_dk(const __grid_constant__ BackwardArguments args) {
  write_key_gradient<kT, Config::kGradK, kD>(args, args.q, args.dk, args.shape.scale);
}
