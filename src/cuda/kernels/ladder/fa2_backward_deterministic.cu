// FlashAttention-2, backward in two passes: no atomics, the same bits in every run.
//
//   pass 1, by key tiles                          pass 2, by query tiles
//            keys                                          keys
//       +----+----+----+                               +----+----+----+
//    q  |    | vv |    |   dV = P^T dO              q  |    |    |    |   dQ = scale dS K
//       |    | vv |    |   dK = scale dS^T Q           | >> | >> | >> |   stays in registers
//       |    | vv |    |   stay in registers           |    |    |    |
//       +----+----+----+                               +----+----+----+
//
// Every sum has one owner and one order. The price: S, dP and dS are made twice, 7 products per
// pair of tiles where one walk needs 5. In return nothing waits for atomics, dQ needs no fp32 copy
// and is written once. fa2_backward_rows.cu makes delta before. Region: 0 delta [B, Hq, Sq].

#include "ladder/backward_walk.h"
#include "ladder/elements.h"

using namespace flashlab::device;

extern "C" __global__ void __launch_bounds__(kBlockThreads, kBlocksPerProcessor)
    flash_bwd_fa2_keys(const __grid_constant__ BackwardArguments args) {
  extern __shared__ __align__(128) unsigned char memory[];
  Storage& shared = *reinterpret_cast<Storage*>(memory);
  walk_queries(shared, args, [](BlockTile, int) {});
}

extern "C" __global__ void __launch_bounds__(kBlockThreads, kBlocksPerProcessor)
    flash_bwd_fa2_queries(const __grid_constant__ BackwardArguments args) {
  extern __shared__ __align__(128) unsigned char memory[];
  Storage& shared = *reinterpret_cast<Storage*>(memory);
  const Shape& shape = args.shape;
  BlockTile at = place_by_tile(blockIdx.x, shape.heads_q, shape.batch);
  // Under causal the last queries see most keys: the longest walks start first.
  const int tile = Config::kBoundedRight ? div_up(shape.seqlen_q, kTileQ) - 1 - at.tile : at.tile;
  const int query0 = tile * kTileQ;

  float rDQ[kShareQ][kShareD] = {};
  load_queries(shared, args, at, query0);
  const int end = end_key<Config>(shape, query0, kTileQ);
  for (int key0 = first_key<Config>(shape, query0, kTileK); key0 < end; key0 += kTileK) {
    load_keys(shared, args, at, key0);
    __syncthreads();
    score_gradients(shared, args, at, query0, key0);
    __syncthreads();
    add_rows_by_columns<kTileK, kStrideK, kStrideD>(rDQ, shared.sDS, shared.sK);
    __syncthreads();
  }
  const HeadLse lse(args, at);
  for (int m = 0; m < kShareQ; ++m) {
    const int i = query0 + thread_y() + kSide * m;
    if (i >= shape.seqlen_q) return;
    for (int n = 0; n < kShareD; ++n) {
      const int d = neighbour<kShareD>(thread_x(), n);
      if (d >= kD) continue;
      store_gradient<Config::kGradQ, Config::kAccumulate>(
          args.dq.data, row_index(args.dq, at.batch, at.head, i) + d,
          lse.empty(i) ? 0.0f : mutation::grad_q_scale<Config>(shape.scale) * rDQ[m][n]);
    }
  }
}
