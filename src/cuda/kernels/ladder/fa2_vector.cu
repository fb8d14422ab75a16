// FlashAttention-2 with 128-bit loads: four features per instruction.
//
//   S[i, j] = scale sum over d in fours of  q.x k.x + q.y k.y + q.z k.z + q.w k.w
//   O[i, c..c+3] = c O[i, c..c+3] + sum_j P[i, j] V[j, c..c+3]          in registers
//
//   the rung before                            here
//   thread:  load q, load k, multiply          thread:  load 4 q, load 4 k, multiply 4 times
//   (ty, tx) has S[ty][tx] and O[ty][tx + n Bc]         unit u has O[u / (Dv/4)][4 (u % (Dv/4))..]
//
// As fa1-vector beside fa1. The rows of shared memory are a multiple of 16 bytes long, and an odd
// one, so that eight lanes on eight rows read from different banks.

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
constexpr int kUnits = (kTileQ * kFoursV + kThreads - 1) / kThreads;  // of four features per thread

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
    flash_fwd_fa2_vector(const __grid_constant__ ForwardArguments args) {
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
  RowStatistics statistics;  // of row threadIdx.x, in the first kTileQ threads
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
    shared.s[ty][tx] = score;
    __syncthreads();

    if (threadIdx.x < kTileQ) {
      shared.correction[threadIdx.x] = softmax_row<kTileK>(shared.s[threadIdx.x], statistics);
    }
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

  const int own = q0 + static_cast<int>(threadIdx.x);
  if (threadIdx.x < kTileQ && own < shape.seqlen_q) {
    shared.sum[threadIdx.x] = statistics.sum;
    if (Config::kLse) {
      static_cast<float*>(args.lse.data)[row_index(args.lse, batch, head, own)] =
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
