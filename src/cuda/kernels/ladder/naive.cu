// Naive attention, forward, as the formula stands: three kernels, a matrix in memory between them.
//
//   scores   S = scale Q K^T + mask     [B, Hq, Sq, Sk]  64 x 64 scores per block
//   softmax  P = softmax(S), LSE        in place         one row per warp
//   values   O = P V                    [B, Sq, Hq, Dv]  64 queries x 64 features per block
//
//   Q [Sq, D]     K^T [D, Sk]       S [Sq, Sk]                P [Sq, Sk]     V            O
//   [.......] x  [ .. 64 .. ]  ->  [  64 x 64 ]  softmax ->  [ .......... ] x [ 64 ] -> [64 x 64]
//                                    written     rewritten        read
//
// S is fp32: a score of 20 in bf16 would be off by 0.06 and its exponential by 6%. P has the type
// of q and takes the front of its row's memory.

#include "ladder/elements.h"
#include "ladder/pairs.h"
#include "ladder/sliced_product.h"
#include "ladder/softmax.h"

namespace flashlab::device {

constexpr Element kT = Config::kElement;
constexpr int kRowsPerBlock = 8;         // softmax: one warp each
constexpr int kFold = 4 / kBytesOf<kT>;  // probabilities in the memory of one score

/// Row i of a head's S; P's row begins at the same address.
__device__ inline float* score_row(const ForwardArguments& args, BlockTile at, int i) {
  return static_cast<float*>(args.regions[0]) + dense_row(args.shape, at, i) * args.shape.seqlen_k;
}

/// LSE of a row, kept for the third kernel, which must know the empty rows.
__device__ inline float& row_lse(const ForwardArguments& args, BlockTile at, int i) {
  return static_cast<float*>(args.regions[1])[dense_row(args.shape, at, i)];
}

}  // namespace flashlab::device

using namespace flashlab::device;

extern "C" __global__ void __launch_bounds__(kBlockThreads)
    flash_fwd_naive_scores(const __grid_constant__ ForwardArguments args) {
  const Shape& shape = args.shape;
  const int tiles_k = div_up(shape.seqlen_k, kTile);
  const BlockTile at = place_of(blockIdx.x, div_up(shape.seqlen_q, kTile) * tiles_k, shape.heads_q);
  const int query0 = at.tile / tiles_k * kTile, key0 = at.tile % tiles_k * kTile;
  const HeadMatrix<kT, Config::kHeadDim> q(args.q, at.batch, at.head, shape.seqlen_q);
  const HeadMatrix<kT, Config::kHeadDim> k(args.k, at.batch, at.head / shape.group, shape.seqlen_k);

  float rS[kShare][kShare] = {};
  rows_by_rows(
      rS, Config::kHeadDim, [&](int r, int d) { return q(query0 + r, d); },
      [&](int r, int d) { return k(key0 + r, d); });
  for (int m = 0; m < kShare; ++m) {
    const int i = query0 + thread_y() + kSide * m;
    if (i >= shape.seqlen_q) return;
    for (int n = 0; n < kShare; ++n) {
      const int j = key0 + thread_x() + kSide * n;
      if (j >= shape.seqlen_k) continue;
      score_of<Config>(rS[m][n], args, at, i, j, score_row(args, at, i)[j]);
    }
  }
}

extern "C" __global__ void __launch_bounds__(32 * kRowsPerBlock)
    flash_fwd_naive_softmax(const __grid_constant__ ForwardArguments args) {
  const int lane = threadIdx.x % 32, keys = args.shape.seqlen_k;
  const int rows = args.shape.seqlen_q;
  const BlockTile at = place_of(blockIdx.x, div_up(rows, kRowsPerBlock), args.shape.heads_q);
  const int i = at.tile * kRowsPerBlock + threadIdx.x / 32;
  if (i >= rows) return;
  float* row = score_row(args, at, i);

  float maximum = kMinusInfinity, sum = 0;
  for (int j = lane; j < keys; j += 32) maximum = fmaxf(maximum, row[j]);
  maximum = warp_maximum(maximum);
  const float offset = finite_or_zero(maximum);
  for (int j = lane; j < keys; j += 32) sum += expf(row[j] - offset);
  sum = warp_sum(sum);
  // An empty row has sum 0 and P = 0. A NaN anywhere in the row is in the sum, too.
  const float factor = sum == 0 ? 0.0f : 1 / sum;
  for (int j0 = 0; j0 < keys; j0 += 32) {
    const int j = j0 + lane;
    const float p = j < keys ? expf(row[j] - offset) * factor : 0.0f;
    __syncwarp();  // the 32 probabilities lie on scores that other lanes have read by now
    if (j < keys) store_element<kT>(row, j, p);
  }
  if (lane != 0) return;
  const float lse = sum == 0 ? kMinusInfinity : maximum + logf(sum);
  row_lse(args, at, i) = lse;
  if constexpr (Config::kLse) {
    static_cast<float*>(args.lse.data)[row_index(args.lse, at.batch, at.head, i)] = lse;
  }
}

extern "C" __global__ void __launch_bounds__(kBlockThreads)
    flash_fwd_naive_values(const __grid_constant__ ForwardArguments args) {
  constexpr int kTilesD = (Config::kHeadDimV + kTile - 1) / kTile;
  const Shape& shape = args.shape;
  const BlockTile at = place_of(blockIdx.x, div_up(shape.seqlen_q, kTile) * kTilesD, shape.heads_q);
  const int query0 = at.tile / kTilesD * kTile, d0 = at.tile % kTilesD * kTile;
  const HeadMatrix<kT, Config::kHeadDimV> v(args.v, at.batch, at.head / shape.group,
                                            shape.seqlen_k);
  const Int64 row_stride = static_cast<Int64>(shape.seqlen_k) * kFold;
  const DenseMatrix<kT> p{args.regions[0], dense_row(shape, at, 0) * row_stride, row_stride,
                          shape.seqlen_q, shape.seqlen_k};

  float rO[kShare][kShare] = {};
  rows_by_columns(
      rO, shape.seqlen_k, [&](int r, int j) { return p(query0 + r, j); },
      [&](int j, int d) { return v(j, d0 + d); });
  for (int m = 0; m < kShare; ++m) {
    const int i = query0 + thread_y() + kSide * m;
    if (i >= shape.seqlen_q) return;
    // 0 times a V that is not finite is NaN; an empty row is 0 all the same.
    const bool empty = row_lse(args, at, i) == kMinusInfinity;
    for (int n = 0; n < kShare; ++n) {
      const int d = d0 + neighbour<kShare>(thread_x(), n);
      if (d >= Config::kHeadDimV) continue;
      store_element<Config::kOutput>(args.o.data, row_index(args.o, at.batch, at.head, i) + d,
                                     empty ? 0.0f : rO[m][n]);
    }
  }
}
