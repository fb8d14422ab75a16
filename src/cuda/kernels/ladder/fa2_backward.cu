// FlashAttention-2, backward (Dao 2023, algorithm 2): one walk, five products per pair of tiles.
//
//   P = exp(S - LSE)    dP = dO V^T    dS = P * (dP - delta)        nothing of [Sq, Sk] in memory
//   dV = P^T dO         dK = scale dS^T Q         dQ = scale dS K
//
//                   keys
//              +----+----+----+      A block owns one tile of keys and walks down the queries.
//   queries  | |    | vv |    |      dK and dV are sums over queries: they stay in registers.
//            v |    | vv | -> | ->   dQ is a sum over keys, and every block has a part of it: each
//              |    | vv |    |      adds its part to fp32 memory atomically, in the order in
//              +----+----+----+      which blocks happen to come: not repeatable in the last bits.
//                     dK, dV
//
// fa2_backward_rows.cu runs before (delta) and after (dQ to its type). Regions: 0 delta
// [B, Hq, Sq], 1 dQ [B, Hq, Sq, D] fp32, zeros at the start.

#include "ladder/backward_walk.h"
#include "ptx/atomic.h"

namespace flashlab::device {

/// Adds dS K of the tile to dQ in memory; scaled later, once.
__device__ inline void add_query_gradient(const Storage& shared, const BackwardArguments& args,
                                          BlockTile at, int query0) {
  float rDQ[kShareQ][kShareD] = {};
  add_rows_by_columns<kTileK, kStrideK, kStrideD>(rDQ, shared.sDS, shared.sK);
  float* gDQ = static_cast<float*>(args.regions[1]);
  for (int m = 0; m < kShareQ; ++m) {
    const int i = query0 + thread_y() + kSide * m;
    if (i >= args.shape.seqlen_q) return;
    for (int n = 0; n < kShareD; ++n) {
      const int d = neighbour<kShareD>(thread_x(), n);
      if (d < kD) ptx::add_global(gDQ + dense_row(args.shape, at, i) * kD + d, rDQ[m][n]);
    }
  }
}

}  // namespace flashlab::device

using namespace flashlab::device;

extern "C" __global__ void __launch_bounds__(kBlockThreads, kBlocksPerProcessor)
    flash_bwd_fa2(const __grid_constant__ BackwardArguments args) {
  extern __shared__ __align__(128) unsigned char memory[];
  Storage& shared = *reinterpret_cast<Storage*>(memory);
  walk_queries(shared, args, [&](BlockTile at, int query0) {
    add_query_gradient(shared, args, at, query0);
  });
}
