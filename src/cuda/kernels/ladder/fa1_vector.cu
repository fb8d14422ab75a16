// FlashAttention-1 with 128-bit loads: four features per instruction.
//
//   S[i, j] = scale sum over d in fours of  q.x k.x + q.y k.y + q.z k.z + q.w k.w
//   O[i, c..c+3] = c O[i, c..c+3] + sum_j P[i, j] V[j, c..c+3]
//
//   the rung before                            here
//   thread:  load q, load k, multiply          thread:  load 4 q, load 4 k, multiply 4 times
//   (ty, tx) has S[ty][tx] and O[ty][tx + n Bc]         unit u has O[u / (Dv/4)][4 (u % (Dv/4))..]
//
// A multiply-add needs two operands from shared memory, which delivers 128 bytes per cycle: with
// scalar loads it is the loads that are counted, not the arithmetic. A broadcast of 16 bytes to a
// warp costs as much as one of 4, so Q and P come at a quarter of the price.

#include "ladder/elements.h"
#include "ladder/float_tiles.h"
#include "ladder/softmax.h"
#include "ladder/strides.h"
#include "ladder/visibility.h"

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
  float s[kTileQ][kTileK | 1];            // [Br, Bc] scores, then probabilities
  float correction[kTileQ];               // exp(m - m')
  float sum[kTileQ];                      // l
};
static_assert((sizeof(Storage) + 15) / 16 * 16 == Config::kSharedBytes);

}  // namespace flashlab::device

using namespace flashlab::device;

extern "C" __global__ void __launch_bounds__(kThreads)
    flash_fwd_fa1_vector(const __grid_constant__ ForwardArguments args) {
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
      __syncthreads();

      float dot = 0;
#pragma unroll 8
      for (int d = 0; d < Config::kHeadDim; d += 4) {
        dot += dot_four(four(&shared.q[ty][d]), four(&shared.k[tx][d]));
      }
      const bool visible = k0 + tx < key_end<Config::kBoundedRight>(shape, q0 + ty);
      shared.s[ty][tx] = visible ? dot * shape.scale : kMinusInfinity;
      __syncthreads();

      const int own = q0 + static_cast<int>(threadIdx.x);
      if (threadIdx.x < kTileQ && own < shape.seqlen_q) {
        RowStatistics row;
        if (k0 > 0) row = gRows[own];
        shared.correction[threadIdx.x] = softmax_row<kTileK>(shared.s[threadIdx.x], row);
        shared.sum[threadIdx.x] = row.sum;
        gRows[own] = row;
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
