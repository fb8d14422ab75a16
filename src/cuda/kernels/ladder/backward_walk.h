#pragma once

// The walk of FlashAttention-2's backward by tiles of keys: dK and dV are sums over queries.

#include "ladder/backward_tiles.h"

namespace flashlab::device {

/// Writes [kTileK][kDim] sums of a block's keys to dK or dV.
template <Element kElement, int kDim, int kShareDim>
__device__ inline void store_keys(const Rows& gradient, const float (&sums)[kShareK][kShareDim],
                                  float scale, int batch, int head_k, int key0, int seqlen_k) {
  for (int m = 0; m < kShareK; ++m) {
    const int j = key0 + neighbour<kShareK>(thread_y(), m);
    for (int n = 0; n < kShareDim; ++n) {
      const int d = neighbour<kShareDim>(thread_x(), n);
      if (j >= seqlen_k || d >= kDim) continue;
      store_gradient<kElement, Config::kAccumulate>(
          gradient.data, row_index(gradient, batch, head_k, j) + d, scale * sums[m][n]);
    }
  }
}

/// A block's walk down the queries that see its tile of keys. dK and dV stay in registers;
/// each(at, query0) is called once for every pair of tiles, whose dS is in shared memory then.
template <class Each>
__device__ inline void walk_queries(Storage& shared, const BackwardArguments& args,
                                    const Each& each) {
  const Shape& shape = args.shape;
  BlockTile at = place_by_tile(blockIdx.x, shape.heads_k, shape.batch);
  const int key0 = at.tile * kTileK, head_k = at.head;

  float rDK[kShareK][kShareD] = {}, rDV[kShareK][kShareDv] = {};
  at.head = head_k * shape.group;
  load_keys(shared, args, at, key0);
  for (; at.head < (head_k + 1) * shape.group; ++at.head) {
    const int end = end_query<Config>(shape, key0, kTileK);
    for (int query0 = first_query<Config>(shape, key0, kTileQ); query0 < end; query0 += kTileQ) {
      load_queries(shared, args, at, query0);
      __syncthreads();
      score_gradients(shared, args, at, query0, key0);
      __syncthreads();
      add_key_gradients(shared, rDK, rDV);
      each(at, query0);
      __syncthreads();
    }
  }
  store_keys<Config::kGradV, kDv>(args.dv, rDV, 1.0f, at.batch, head_k, key0, shape.seqlen_k);
  store_keys<Config::kGradK, kD>(args.dk, rDK, shape.scale, at.batch, head_k, key0, shape.seqlen_k);
}

}  // namespace flashlab::device
