// FlashAttention-1, first version (Dao et al. 2022, algorithm 1).
//
//   for every tile of keys                        S = scale Q_i K_j^T      m' = max(m, rowmax S)
//     for every tile of queries i                 P = exp(S - m')          c  = exp(m - m')
//       correct l, O and add this tile's part     l = c l + rowsum P       O  = c O + P V_j
//
//            keys ->  tile 0   tile 1   tile 2      One block owns one (batch, head). A tile of K
//   queries  tile 0 | v      | v      |        |    and V stays in shared memory while all queries
//            tile 1 | v      | v      |        |    pass by; O, l and m of a query live in global
//            tile 2 | v   -> | v   -> |        |    memory and are read and written per tile.
//
// Thread (ty, tx) of Br x Bc owns the score of query ty and key tx, then features tx, tx + Bc, ...
// of row ty of O. One thread per query does its row's softmax while the others wait.

#include "ladder/elements.h"
#include "ladder/float_tiles.h"
#include "ladder/softmax.h"
#include "ladder/visibility.h"

namespace flashlab::device {

constexpr int kTileQ = Config::kTileQ, kTileK = Config::kTileK;
// Lanes of a warp read neighbouring rows: an odd stride puts them on 32 different banks.
constexpr int kStride = Config::kHeadDim | 1;
constexpr int kStrideO = (Config::kHeadDimV + 3) / 4 * 4;  // of the workspace, as all fa1 rungs

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
    flash_fwd_fa1(const __grid_constant__ ForwardArguments args) {
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
    load_tile<Config::kElement, kTileK, Config::kHeadDim, kStride>(shared.k[0], args.k, batch,
                                                                   head_k, k0, shape.seqlen_k);
    load_tile<Config::kElement, kTileK, Config::kHeadDimV, Config::kHeadDimV>(
        shared.v[0], args.v, batch, head_k, k0, shape.seqlen_k);
    for (int q0 = 0; q0 < shape.seqlen_q; q0 += kTileQ) {
      const int last_k0 = last_key_tile<Config::kBoundedRight, kTileK>(shape, q0 + kTileQ - 1);
      if (k0 > last_k0) continue;
      load_tile<Config::kElement, kTileQ, Config::kHeadDim, kStride>(shared.q[0], args.q, batch,
                                                                     head, q0, shape.seqlen_q);
      __syncthreads();

      float dot = 0;
      for (int d = 0; d < Config::kHeadDim; ++d) dot += shared.q[ty][d] * shared.k[tx][d];
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

      const int row = q0 + ty;
      for (int c = tx; c < Config::kHeadDimV && row < shape.seqlen_q; c += kTileK) {
        float& saved = gO[row * static_cast<Int64>(kStrideO) + c];
        float o = 0;
        for (int j = 0; j < kTileK; ++j) o += shared.s[ty][j] * shared.v[j][c];
        if (k0 > 0) o += saved * shared.correction[ty];
        if (k0 < last_k0) {
          saved = o;
        } else {
          store_element<Config::kOutput>(args.o.data, row_index(args.o, batch, head, row) + c,
                                         normalised(o, shared.sum[ty]));
        }
      }
      __syncthreads();
    }
    __syncthreads();
  }
}
