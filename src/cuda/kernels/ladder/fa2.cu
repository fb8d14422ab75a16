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

#include "ladder/row_threads.h"
#include "ladder/single_features.h"

using namespace flashlab::device;

extern "C" __global__ void __launch_bounds__(kTileQ* kTileK)
    flash_fwd_fa2(const __grid_constant__ ForwardArguments args) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<Storage*>(memory);
  const Shape& shape = args.shape;
  const QueryBlock at(shape);
  const int ty = threadIdx.x / kTileK, tx = threadIdx.x % kTileK, row = at.q0 + ty;
  constexpr int kColumns = (kHeadDimV + kTileK - 1) / kTileK;  // of O per thread

  load_queries(shared, args, at, at.q0);
  RowStatistics statistics;  // of row threadIdx.x, in the first kTileQ threads
  float o[kColumns] = {};    // of row ty
  const int end = key_end(shape, row), first_end = key_end(shape, at.q0);

  for (int k0 = 0; k0 <= at.last_k0; k0 += kTileK) {
    load_keys(shared, args, at, k0);
    __syncthreads();

    float score = 0;
    for (int d = 0; d < kHeadDim; ++d) score += shared.q[ty][d] * shared.k[tx][d];
    score *= shape.scale;
    const bool on_the_edge = k0 + kTileK > first_end;  // the diagonal, or the end of the keys
    if (on_the_edge && k0 + tx >= end) score = kMinusInfinity;
    shared.s[ty][tx] = score;
    __syncthreads();
    softmax_of_rows(shared, statistics);
    __syncthreads();

#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const int c = tx + n * kTileK;
      if (c >= kHeadDimV) break;
      float added = 0;  // a short sum of its own: rounds less than one long sum
      for (int j = 0; j < kTileK; ++j) added += shared.s[ty][j] * shared.v[j][c];
      o[n] = o[n] * shared.correction[ty] + added;
    }
    __syncthreads();
  }
  finish_rows(shared, args, at, statistics);
  __syncthreads();
#pragma unroll
  for (int n = 0; n < kColumns && row < shape.seqlen_q; ++n) {
    const int c = tx + n * kTileK;
    if (c >= kHeadDimV) break;
    store_element<Config::kOutput>(args.o.data, row_index(args.o, at.batch, at.head, row) + c,
                                   normalised(o[n], shared.sum[ty]));
  }
}
