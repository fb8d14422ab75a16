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

#include "ladder/row_threads.h"
#include "ladder/single_features.h"

using namespace flashlab::device;

extern "C" __global__ void __launch_bounds__(kTileQ* kTileK)
    flash_fwd_fa1(const __grid_constant__ ForwardArguments args) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<Storage*>(memory);
  const Shape& shape = args.shape;
  const HeadBlock at(args);
  const int ty = threadIdx.x / kTileK, tx = threadIdx.x % kTileK;

  for (int k0 = 0; k0 == 0 || k0 < shape.seqlen_k; k0 += kTileK) {
    load_keys(shared, args, at, k0);
    for (int q0 = 0; q0 < shape.seqlen_q; q0 += kTileQ) {
      const int last_k0 = last_key_tile(shape, q0);
      if (k0 > last_k0) continue;
      load_queries(shared, args, at, q0);
      __syncthreads();

      float dot = 0;
      for (int d = 0; d < kHeadDim; ++d) dot += shared.q[ty][d] * shared.k[tx][d];
      const bool visible = k0 + tx < key_end(shape, q0 + ty);
      shared.s[ty][tx] = visible ? dot * shape.scale : kMinusInfinity;
      __syncthreads();
      softmax_of_rows(shared, args, at, q0, k0, last_k0);
      __syncthreads();

      const int row = q0 + ty;
      for (int c = tx; c < kHeadDimV && row < shape.seqlen_q; c += kTileK) {
        float& saved = at.saved(row, c);
        float o = 0;
        for (int j = 0; j < kTileK; ++j) o += shared.s[ty][j] * shared.v[j][c];
        if (k0 > 0) o += saved * shared.correction[ty];
        if (k0 < last_k0) {
          saved = o;
        } else {
          store_element<Config::kOutput>(args.o.data, row_index(args.o, at.batch, at.head, row) + c,
                                         normalised(o, shared.sum[ty]));
        }
      }
      __syncthreads();
    }
    __syncthreads();
  }
}
