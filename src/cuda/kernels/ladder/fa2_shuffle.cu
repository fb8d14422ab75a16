// FlashAttention-2 with row reductions by warp shuffles.
//
//   m' = max(m, max_j S[i, j])     l = c l + sum_j P[i, j]      by lanes that swap values:
//
//   lane      0   1   2   3   4   5   6   7        Bc lanes (a power of two up to 32) hold the Bc
//   step 4    0+4 1+5 2+6 3+7 0+4 1+5 2+6 3+7      scores of one row; log2(Bc) exchanges with lane
//   step 2    +2+6    ...                          xor 16, 8, 4, 2, 1 give each of them the row's
//   step 1    every lane: 0+1+2+3+4+5+6+7          maximum, and as many its sum.
//
// As fa1-shuffle beside fa1-vector. All lanes of a row know its m and l, in registers, for as long
// as the block lives, and a barrier per tile is gone.

#include "ladder/elements.h"
#include "ladder/float_tiles.h"
#include "ladder/softmax.h"
#include "ladder/strides.h"
#include "ladder/visibility.h"
#include "ptx/warp.h"

namespace flashlab::device {

constexpr int kTileQ = Config::kTileQ, kTileK = Config::kTileK;
constexpr int kThreads = kTileQ * kTileK;
constexpr int kStride = kVectorStride<Config::kHeadDim>;
constexpr int kStrideV = kVectorStride<Config::kHeadDimV>;
constexpr int kFoursV = (Config::kHeadDimV + 3) / 4;
constexpr int kUnits = (kTileQ * kFoursV + kThreads - 1) / kThreads;  // of four features per thread

struct Storage {
  alignas(16) float q[kTileQ][kStride];   // [Br, D]
  alignas(16) float k[kTileK][kStride];   // [Bc, D]
  alignas(16) float v[kTileK][kStrideV];  // [Bc, Dv]
  float s[kTileQ][kTileK | 1];            // [Br, Bc] probabilities
  float correction[kTileQ];               // exp(m - m')
  float sum[kTileQ];                      // l
};
static_assert(kTileK <= 32 && (kTileK & (kTileK - 1)) == 0 && kThreads % 32 == 0);
static_assert((sizeof(Storage) + 15) / 16 * 16 == Config::kSharedBytes);

/// Of the kTileK lanes that hold a row: the largest value, the sum.
__device__ inline float row_maximum(float value) {
  for (int lanes = kTileK / 2; lanes > 0; lanes /= 2) {
    value = fmaxf(value, ptx::shuffle_xor(value, lanes));
  }
  return value;
}
__device__ inline float row_sum(float value) {
  for (int lanes = kTileK / 2; lanes > 0; lanes /= 2) value += ptx::shuffle_xor(value, lanes);
  return value;
}

}  // namespace flashlab::device

using namespace flashlab::device;

extern "C" __global__ void __launch_bounds__(kThreads)
    flash_fwd_fa2_shuffle(const __grid_constant__ ForwardArguments args) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<Storage*>(memory);
  const Shape& shape = args.shape;
  const int tiles = (shape.seqlen_q + kTileQ - 1) / kTileQ, heads = blockIdx.x / tiles;
  const int q0 = blockIdx.x % tiles * kTileQ;
  const int batch = heads / shape.heads_q, head = heads % shape.heads_q;
  const int head_k = head / shape.group;
  const int ty = threadIdx.x / kTileK, tx = threadIdx.x % kTileK;

  load_tile_vector<Config::kElement, Config::kAlignQ, kTileQ, Config::kHeadDim, kStride>(
      shared.q[0], args.q, batch, head, q0, shape.seqlen_q);
  RowStatistics statistics;  // of row ty, in each of its lanes
  float4 o[kUnits] = {};
  const int end = key_end<Config::kBoundedRight>(shape, q0 + ty);
  const int first_end = key_end<Config::kBoundedRight>(shape, q0);
  const int last_k0 = last_key_tile<Config::kBoundedRight, kTileK>(shape, q0 + kTileQ - 1);

  for (int k0 = 0; k0 <= last_k0; k0 += kTileK) {
    load_tile_vector<Config::kElement, Config::kAlignK, kTileK, Config::kHeadDim, kStride>(
        shared.k[0], args.k, batch, head_k, k0, shape.seqlen_k);
    load_tile_vector<Config::kElement, Config::kAlignV, kTileK, Config::kHeadDimV, kStrideV>(
        shared.v[0], args.v, batch, head_k, k0, shape.seqlen_k);
    __syncthreads();

    float score = 0;
#pragma unroll 8
    for (int d = 0; d < Config::kHeadDim; d += 4) {
      score += dot_four(four(&shared.q[ty][d]), four(&shared.k[tx][d]));
    }
    score *= shape.scale;
    const bool on_the_edge = k0 + kTileK > first_end;  // the diagonal, or the end of the keys
    if (on_the_edge && k0 + tx >= end) score = kMinusInfinity;

    const float largest = fmaxf(statistics.maximum, row_maximum(score));
    const float p = exp_difference(score, finite_or_zero(largest));
    const float correction = correction_of(statistics.maximum, finite_or_zero(largest));
    statistics = {largest, statistics.sum * correction + row_sum(p)};
    shared.s[ty][tx] = p;
    if (tx == 0) shared.correction[ty] = correction;
    __syncthreads();

#pragma unroll
    for (int n = 0; n < kUnits; ++n) {
      const int unit = threadIdx.x + n * kThreads, r = unit / kFoursV, c = unit % kFoursV * 4;
      if (r >= kTileQ) break;
      float4 added = {0, 0, 0, 0};  // a short sum of its own: rounds less than one long sum
#pragma unroll 8
      for (int j = 0; j < kTileK; ++j) add_times(added, shared.s[r][j], four(&shared.v[j][c]));
      add_times(added, shared.correction[r], o[n]);
      o[n] = added;
    }
    __syncthreads();
  }

  if (tx == 0 && q0 + ty < shape.seqlen_q) {
    shared.sum[ty] = statistics.sum;
    if (Config::kLse) {
      static_cast<float*>(args.lse.data)[row_index(args.lse, batch, head, q0 + ty)] =
          log_sum_exp(statistics.maximum, statistics.sum);
    }
  }
  __syncthreads();
#pragma unroll
  for (int n = 0; n < kUnits; ++n) {
    const int unit = threadIdx.x + n * kThreads, r = unit / kFoursV, c = unit % kFoursV * 4;
    if (r >= kTileQ || q0 + r >= shape.seqlen_q) break;
    store_up_to_four<Config::kOutput, Config::kAlignO, Config::kHeadDimV>(
        args.o.data, row_index(args.o, batch, head, q0 + r) + c, c,
        normalised(o[n], shared.sum[r]));
  }
}
