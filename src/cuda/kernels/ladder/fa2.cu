// FlashAttention-2, first version (Dao 2023, algorithm 1): the loops change places.
//
//   one block per tile of queries:                      m' = max(m, rowmax S)   c = exp(m - m')
//     for every tile of keys that one of them sees      P  = exp(S - m')        l = c l + rowsum P
//       S = scale Q K_j^T                               O  = c O + P V_j
//     O / l and LSE = m + log l are written once
//
//            keys ->  tile 0   tile 1   tile 2      The sums of a query never leave its block: O
//   block 0  tile 0 |   \    |        |        |    stays in registers, m and l with one thread.
//   block 1  tile 1 |   ->   |   \    |        |    Blocks of one head work side by side. Under
//   block 2  tile 2 |   ->   |   ->   |   \    |    causal, tiles right of the diagonal (\) are
//                                                   skipped, and only the diagonal is masked.
//
// Thread (ty, tx) of Br x Bc owns the score of query ty and key tx, and features tx, tx + Bc, ...
// of row ty of O. One thread per query does its row's softmax while the others wait.

#include "ladder/elements.h"
#include "ladder/float_tiles.h"
#include "ladder/softmax.h"
#include "ladder/visibility.h"

namespace flashlab::device {

constexpr int kTileQ = Config::kTileQ, kTileK = Config::kTileK;
// Lanes of a warp read neighbouring rows: an odd stride puts them on 32 different banks.
constexpr int kStride = Config::kHeadDim | 1;
constexpr int kColumns = (Config::kHeadDimV + kTileK - 1) / kTileK;  // of O per thread

struct Storage {
  float q[kTileQ][kStride];            // [Br, D]
  float k[kTileK][kStride];            // [Bc, D]
  float v[kTileK][Config::kHeadDimV];  // [Bc, Dv]
  float s[kTileQ][kTileK | 1];         // [Br, Bc] scores, then probabilities
  float correction[kTileQ];            // exp(m - m')
  float sum[kTileQ];                   // l
};
static_assert((sizeof(Storage) + 15) / 16 * 16 == Config::kSharedBytes);

}  // namespace flashlab::device

using namespace flashlab::device;

extern "C" __global__ void __launch_bounds__(kTileQ* kTileK)
    flash_fwd_fa2(const __grid_constant__ ForwardArguments args) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<Storage*>(memory);
  const Shape& shape = args.shape;
  const int tiles = (shape.seqlen_q + kTileQ - 1) / kTileQ, heads = blockIdx.x / tiles;
  const int q0 = blockIdx.x % tiles * kTileQ;
  const int batch = heads / shape.heads_q, head = heads % shape.heads_q;
  const int head_k = head / shape.group;
  const int ty = threadIdx.x / kTileK, tx = threadIdx.x % kTileK, row = q0 + ty;

  load_tile<Config::kElement, kTileQ, Config::kHeadDim, kStride>(shared.q[0], args.q, batch, head,
                                                                 q0, shape.seqlen_q);
  RowStatistics statistics;  // of row threadIdx.x, in the first kTileQ threads
  float o[kColumns] = {};    // of row ty
  const int end = key_end<Config::kBoundedRight>(shape, row);
  const int first_end = key_end<Config::kBoundedRight>(shape, q0);
  const int last_k0 = last_key_tile<Config::kBoundedRight, kTileK>(shape, q0 + kTileQ - 1);

  for (int k0 = 0; k0 <= last_k0; k0 += kTileK) {
    load_tile<Config::kElement, kTileK, Config::kHeadDim, kStride>(shared.k[0], args.k, batch,
                                                                   head_k, k0, shape.seqlen_k);
    load_tile<Config::kElement, kTileK, Config::kHeadDimV, Config::kHeadDimV>(
        shared.v[0], args.v, batch, head_k, k0, shape.seqlen_k);
    __syncthreads();

    float score = 0;
    for (int d = 0; d < Config::kHeadDim; ++d) score += shared.q[ty][d] * shared.k[tx][d];
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
    for (int n = 0; n < kColumns; ++n) {
      const int c = tx + n * kTileK;
      if (c >= Config::kHeadDimV) break;
      float added = 0;  // a short sum of its own: rounds less than one long sum
      for (int j = 0; j < kTileK; ++j) added += shared.s[ty][j] * shared.v[j][c];
      o[n] = o[n] * shared.correction[ty] + added;
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
  for (int n = 0; n < kColumns && row < shape.seqlen_q; ++n) {
    const int c = tx + n * kTileK;
    if (c >= Config::kHeadDimV) break;
    store_element<Config::kOutput>(args.o.data, row_index(args.o, batch, head, row) + c,
                                   normalised(o[n], shared.sum[ty]));
  }
}
