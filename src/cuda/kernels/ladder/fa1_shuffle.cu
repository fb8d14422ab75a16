// FlashAttention-1 with row reductions by warp shuffles.
//
//   m' = max(m, max_j S[i, j])     l = c l + sum_j P[i, j]      by lanes that swap values:
//
//   lane      0   1   2   3   4   5   6   7        Bc lanes (a power of two up to 32) hold the Bc
//   step 4    0+4 1+5 2+6 3+7 0+4 1+5 2+6 3+7      scores of one row. After log2(Bc) exchanges
//   step 2    +2+6    ...                          with lane xor 16, 8, 4, 2, 1 every lane has
//   step 1    every lane: 0+1+2+3+4+5+6+7          the row's maximum; the same again for its sum.
//
// In the rungs before, one thread per query walked along its row twice, through shared memory,
// while all others waited at a barrier. Here every row is reduced by its own lanes, out of
// registers; scores do not touch shared memory until they are probabilities. Threads and tiles
// are as in fa1-vector.

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
constexpr int kStrideO = kFoursV * 4;

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
    flash_fwd_fa1_shuffle(const __grid_constant__ ForwardArguments args) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<Storage*>(memory);
  const Shape& shape = args.shape;
  const int batch = blockIdx.x / shape.heads_q, head = blockIdx.x % shape.heads_q;
  const int head_k = head / shape.group;
  const int ty = threadIdx.x / kTileK, tx = threadIdx.x % kTileK;
  const Int64 first_row = static_cast<Int64>(blockIdx.x) * shape.seqlen_q;
  auto* gO = static_cast<float*>(args.regions[0]) + first_row * kStrideO;  // [Sq, Dv]
  auto* gRows = static_cast<RowStatistics*>(args.regions[1]) + first_row;  // [Sq]

  for (int k0 = 0; k0 == 0 || k0 < shape.seqlen_k; k0 += kTileK) {
    load_tile_vector<Config::kElement, Config::kAlignK, kTileK, Config::kHeadDim, kStride>(
        shared.k[0], args.k, batch, head_k, k0, shape.seqlen_k);
    load_tile_vector<Config::kElement, Config::kAlignV, kTileK, Config::kHeadDimV, kStrideV>(
        shared.v[0], args.v, batch, head_k, k0, shape.seqlen_k);
    for (int q0 = 0; q0 < shape.seqlen_q; q0 += kTileQ) {
      const int last_k0 = last_key_tile<Config::kBoundedRight, kTileK>(shape, q0 + kTileQ - 1);
      if (k0 > last_k0) continue;
      load_tile_vector<Config::kElement, Config::kAlignQ, kTileQ, Config::kHeadDim, kStride>(
          shared.q[0], args.q, batch, head, q0, shape.seqlen_q);
      const int own = q0 + ty;
      RowStatistics row;  // fetched here, so that the products hide the way from global memory
      if (k0 > 0 && own < shape.seqlen_q) row = gRows[own];
      __syncthreads();

      float dot = 0;
#pragma unroll 8
      for (int d = 0; d < Config::kHeadDim; d += 4) {
        dot += dot_four(four(&shared.q[ty][d]), four(&shared.k[tx][d]));
      }
      const bool visible = k0 + tx < key_end<Config::kBoundedRight>(shape, own);
      const float score = visible ? dot * shape.scale : kMinusInfinity;
      const float largest = fmaxf(row.maximum, row_maximum(score));
      const float p = exp_difference(score, finite_or_zero(largest));
      const float correction = correction_of(row.maximum, finite_or_zero(largest));
      row = {largest, row.sum * correction + row_sum(p)};
      shared.s[ty][tx] = p;
      if (tx == 0 && own < shape.seqlen_q) {
        gRows[own] = row;
        shared.correction[ty] = correction;
        shared.sum[ty] = row.sum;
        if (Config::kLse && k0 == last_k0) {
          static_cast<float*>(args.lse.data)[row_index(args.lse, batch, head, own)] =
              log_sum_exp(row.maximum, row.sum);
        }
      }
      __syncthreads();

      for (int unit = threadIdx.x; unit < kTileQ * kFoursV; unit += kThreads) {
        const int r = unit / kFoursV, c = unit % kFoursV * 4, row = q0 + r;
        if (row >= shape.seqlen_q) break;
        float4& saved = four(&gO[row * static_cast<Int64>(kStrideO) + c]);
        float4 o = {0, 0, 0, 0};
#pragma unroll 8
        for (int j = 0; j < kTileK; ++j) add_times(o, shared.s[r][j], four(&shared.v[j][c]));
        if (k0 > 0) add_times(o, shared.correction[r], saved);
        if (k0 < last_k0) {
          saved = o;
        } else {
          store_up_to_four<Config::kOutput, Config::kAlignO, Config::kHeadDimV>(
              args.o.data, row_index(args.o, batch, head, row) + c, c,
              normalised(o, shared.sum[r]));
        }
      }
      __syncthreads();
    }
    __syncthreads();
  }
}
